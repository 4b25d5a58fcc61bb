// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normalizer changes a text before it is cut. front is false when characters of the text's front were taken away, so that
// what is left does not begin where the text began.
type normalizer func(m *matcher, s string) (out string, front bool, err error)

// part is a part of tokenizer.json that has a type, with all the fields that parts of any type have.
type part struct {
	Type           string            `json:"type"`
	Normalizers    []json.RawMessage `json:"normalizers"`
	Pretokenizers  []json.RawMessage `json:"pretokenizers"`
	Processors     []json.RawMessage `json:"processors"`
	Prepend        string            `json:"prepend"`
	Content        string            `json:"content"`
	Pattern        *patternJSON      `json:"pattern"`
	StripLeft      *bool             `json:"strip_left"`
	StripRight     *bool             `json:"strip_right"`
	CleanText      *bool             `json:"clean_text"`
	Chinese        *bool             `json:"handle_chinese_chars"`
	StripAccents   *bool             `json:"strip_accents"`
	Lowercase      *bool             `json:"lowercase"`
	Charsmap       *string           `json:"precompiled_charsmap"`
	AddPrefixSpace *bool             `json:"add_prefix_space"`
	UseRegex       *bool             `json:"use_regex"`
	Behavior       json.RawMessage   `json:"behavior"`
	Invert         bool              `json:"invert"`
	Individual     bool              `json:"individual_digits"`
	Replacement    string            `json:"replacement"`
	Scheme         *string           `json:"prepend_scheme"`
	Split          *bool             `json:"split"`
	Delimiter      string            `json:"delimiter"`
	Length         int               `json:"length"`
	Single         []templatePiece   `json:"single"`
	SpecialTokens  map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
	CLS json.RawMessage `json:"cls"`
	SEP json.RawMessage `json:"sep"`
}

type patternJSON struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func (p *patternJSON) compile() (*pattern, error) {
	switch {
	case p == nil || p.String == nil && p.Regex == nil:
		return nil, errors.New("pattern: a String or a Regex is needed")
	case p.Regex != nil:
		return compile(*p.Regex)
	}
	return compile(quote(*p.String))
}

// quote is the pattern that matches the text itself.
func quote(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < 0x80 && !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r < 0x20 || r == ' ') {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func truth(b *bool, or bool) bool {
	if b == nil {
		return or
	}
	return *b
}

func readPart(raw json.RawMessage, what string) (*part, error) {
	var p part
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return &p, nil
}

func none(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// maxParts bounds sequences of parts within sequences.
const maxParts = 100

// readNormalizers appends what a normalizer of tokenizer.json does.
func readNormalizers(list []normalizer, raw json.RawMessage, depth int) ([]normalizer, error) {
	if none(raw) {
		return list, nil
	}
	if depth > 10 || len(list) > maxParts {
		return nil, errors.New("normalizer: too many")
	}
	p, err := readPart(raw, "normalizer")
	if err != nil {
		return nil, err
	}
	plain := func(f func(string) string) []normalizer {
		return append(list, func(_ *matcher, s string) (string, bool, error) { return f(s), true, nil })
	}
	switch p.Type {
	case "Sequence":
		for _, sub := range p.Normalizers {
			if list, err = readNormalizers(list, sub, depth+1); err != nil {
				return nil, err
			}
		}
		return list, nil
	case "NFC":
		return plain(form(norm.NFC)), nil
	case "NFD":
		return plain(form(norm.NFD)), nil
	case "NFKC":
		return plain(form(norm.NFKC)), nil
	case "NFKD":
		return plain(form(norm.NFKD)), nil
	case "Lowercase":
		return plain(lower), nil
	case "StripAccents":
		return plain(drop(bitAccent)), nil
	case "Nmt":
		return plain(nmt), nil
	case "ByteLevel":
		return plain(func(s string) string { return string(appendByteChars(nil, s)) }), nil
	case "Prepend":
		return plain(func(s string) string {
			if s == "" {
				return s
			}
			return p.Prepend + s
		}), nil
	case "Strip":
		left, right := truth(p.StripLeft, true), truth(p.StripRight, true)
		return append(list, func(_ *matcher, s string) (string, bool, error) {
			n := len(s)
			if left {
				s = strings.TrimLeftFunc(s, isSpace)
			}
			front := len(s) == n
			if right {
				s = strings.TrimRightFunc(s, isSpace)
			}
			return s, front, nil
		}), nil
	case "Replace":
		if p.Pattern != nil && p.Pattern.String != nil && *p.Pattern.String != "" {
			old := *p.Pattern.String
			return append(list, func(_ *matcher, s string) (string, bool, error) {
				return strings.ReplaceAll(s, old, p.Content), p.Content != "" || !strings.HasPrefix(s, old), nil
			}), nil
		}
		pat, err := p.Pattern.compile()
		if err != nil {
			return nil, fmt.Errorf("normalizer: Replace: %w", err)
		}
		return append(list, func(m *matcher, s string) (string, bool, error) { return replace(m, pat, s, p.Content) }), nil
	case "BertNormalizer":
		clean, chinese := truth(p.CleanText, true), truth(p.Chinese, true)
		low := truth(p.Lowercase, true)
		strip := truth(p.StripAccents, low)
		return plain(func(s string) string {
			if clean {
				s = bertClean(s)
			}
			if chinese {
				s = bertChinese(s)
			}
			if strip {
				s = drop(bitBertAccent)(form(norm.NFD)(s))
			}
			if low {
				s = lower(s)
			}
			return s
		}), nil
	case "Precompiled":
		if p.Charsmap == nil || *p.Charsmap == "" {
			return list, nil
		}
		blob, err := base64.StdEncoding.DecodeString(*p.Charsmap)
		if err != nil {
			return nil, fmt.Errorf("normalizer: Precompiled: %w", err)
		}
		m, err := readCharsmap(blob)
		if err != nil {
			return nil, fmt.Errorf("normalizer: Precompiled: %w", err)
		}
		return plain(m.normalize), nil
	}
	return nil, fmt.Errorf("normalizer: %q is not known here", p.Type)
}

func replace(m *matcher, pat *pattern, s, with string) (string, bool, error) {
	var b strings.Builder
	last, pos, front := 0, 0, true
	for pos <= len(s) {
		start, end := pat.find(m, s, pos)
		if start < 0 {
			break
		}
		if end == start {
			_, w := utf8.DecodeRuneInString(s[start:])
			pos = start + max(w, 1)
			continue
		}
		if start == 0 && with == "" {
			front = false
		}
		b.WriteString(s[last:start])
		b.WriteString(with)
		last, pos = end, end
	}
	if m.tooHard(s) {
		return "", false, errTooHard
	}
	if last == 0 {
		return s, true, nil
	}
	b.WriteString(s[last:])
	return b.String(), front, nil
}

// form applies a normal form between characters that the original does not know.
func form(f norm.Form) func(string) string {
	newer := func(r rune) bool { return r >= 0x7f && classOf(r)&bitNewer != 0 }
	return func(s string) string {
		at := strings.IndexFunc(s, newer)
		if at < 0 {
			return f.String(s)
		}
		var b strings.Builder
		for at >= 0 {
			_, n := utf8.DecodeRuneInString(s[at:])
			b.WriteString(f.String(s[:at]))
			b.WriteString(s[at : at+n])
			s = s[at+n:]
			at = strings.IndexFunc(s, newer)
		}
		b.WriteString(f.String(s))
		return b.String()
	}
}

// lower is Rust's to_lowercase, character by character: of Unicode 17, and with the one character that becomes two.
func lower(s string) string {
	if strings.Contains(s, "İ") {
		s = strings.ReplaceAll(s, "İ", "i̇")
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x1c89:
			return unicode.ToLower(r)
		case r == 0x1c89, r == 0xa7cc, r == 0xa7ce, r == 0xa7d2, r == 0xa7d4, r == 0xa7da:
			return r + 1
		case r == 0xa7cb:
			return 0x264
		case r == 0xa7dc:
			return 0x19b
		case r >= 0x10d50 && r <= 0x10d65:
			return r + 0x20
		case r >= 0x16ea0 && r <= 0x16eb8:
			return r + 0x1b
		}
		return unicode.ToLower(r)
	}, s)
}

// drop leaves out the characters with the bit.
func drop(bit uint16) func(string) string {
	return func(s string) string {
		return strings.Map(func(r rune) rune {
			if classOf(r)&bit != 0 {
				return -1
			}
			return r
		}, s)
	}
}

func bertClean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case classOf(r)&bitBertControl != 0:
			return -1
		case isSpace(r):
			return ' '
		}
		return r
	}, s)
}

func isChinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2b81f ||
		r >= 0x2b920 && r <= 0x2ceaf || r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
}

func bertChinese(s string) string {
	if strings.IndexFunc(s, isChinese) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// nmt is sentencepiece's cleaning of machine translation.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 1 && r <= 8, r == 0xb, r >= 0xe && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		case r == 9, r == 0xa, r == 0xc, r == 0xd, r == 0x1680, r >= 0x200b && r <= 0x200f, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			return ' '
		}
		return r
	}, s)
}

// byteChars are the characters that stand for bytes in byte-level vocabularies: printable bytes for themselves, the others
// from U+0100 on.
var byteChars = func() (chars [256]rune) {
	next := rune(0x100)
	for b := range chars {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			chars[b] = rune(b)
		} else {
			chars[b] = next
			next++
		}
	}
	return
}()

// charBytes is the way back.
var charBytes = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	for b, r := range byteChars {
		m[r] = byte(b)
	}
	return m
}()

func appendByteChars(to []byte, s string) []byte {
	for i := range len(s) {
		to = utf8.AppendRune(to, byteChars[s[i]])
	}
	return to
}

// charsmap is sentencepiece's table of replacements: a double array of what is replaced, and the replacements.
type charsmap struct {
	units []uint32
	texts string
}

func readCharsmap(blob []byte) (*charsmap, error) {
	if len(blob) < 4 {
		return nil, errors.New("too short")
	}
	le := func(b []byte) uint32 { return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24 }
	size := int64(le(blob))
	if size%4 != 0 || size+4 > int64(len(blob)) || size == 0 {
		return nil, errors.New("its table is cut off")
	}
	m := &charsmap{texts: string(blob[4+size:])}
	for i := int64(4); i < 4+size; i += 4 {
		m.units = append(m.units, le(blob[i:]))
	}
	return m, nil
}

// lookup returns the replacement of the shortest prefix of s that has one, as the original does.
func (m *charsmap) lookup(s string) (string, bool) {
	offset := func(u uint32) int { return int((u >> 10) << ((u & (1 << 9)) >> 6)) }
	at := offset(m.units[0])
	for i := range len(s) {
		if s[i] == 0 {
			break
		}
		at ^= int(s[i])
		if at >= len(m.units) {
			return "", false
		}
		u := m.units[at]
		if u&(1<<31|0xff) != uint32(s[i]) {
			return "", false
		}
		at ^= offset(u)
		if at >= len(m.units) {
			return "", false
		}
		if u>>8&1 == 1 {
			from := int(m.units[at] & (1<<31 - 1))
			if from >= len(m.texts) {
				return "", false
			}
			text, _, _ := strings.Cut(m.texts[from:], "\x00")
			return text, true
		}
	}
	return "", false
}

func (m *charsmap) normalize(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		g := grapheme(s)
		if g < 6 {
			if text, ok := m.lookup(s[:g]); ok {
				b.WriteString(text)
				s = s[g:]
				continue
			}
		}
		for _, r := range s[:g] {
			if text, ok := m.lookup(string(r)); ok {
				b.WriteString(text)
			} else {
				b.WriteRune(r)
			}
		}
		s = s[g:]
	}
	return b.String()
}

// grapheme returns the length of the extended grapheme cluster that s begins with, right for those of less than six bytes,
// which are all that the table is asked about as a whole.
func grapheme(s string) int {
	if strings.HasPrefix(s, "\r\n") {
		return 2
	}
	r, n := utf8.DecodeRuneInString(s)
	if prepends(r) && n < len(s) {
		if next, w := utf8.DecodeRuneInString(s[n:]); !breaks(next) {
			r = next
			n += w
		}
	}
	if breaks(r) {
		return n
	}
	for n < len(s) {
		r, w := utf8.DecodeRuneInString(s[n:])
		if !extends(r) {
			break
		}
		n += w
	}
	return n
}

// breaks reports a control character, on both sides of which a cluster ends.
func breaks(r rune) bool {
	c := categoryNames[classOf(r)&maskCat]
	return (c == "Cc" || c == "Cf" || c == "Zl" || c == "Zp") && r != 0x200c && r != 0x200d && !prepends(r) && (r < 0xe0020 || r > 0xe007f)
}

func prepends(r rune) bool {
	return r >= 0x600 && r <= 0x605 || r == 0x6dd || r == 0x70f || r == 0x890 || r == 0x891 || r == 0x8e2 || r == 0xd4e || r == 0x110bd || r == 0x110cd
}

func extends(r rune) bool {
	switch {
	case r == 0x200c || r == 0x200d || r == 0xff9e || r == 0xff9f || r == 0xe33 || r == 0xeb3 || r >= 0x1f3fb && r <= 0x1f3ff || r >= 0xe0020 && r <= 0xe007f:
		return true
	case r == 0x102b || r == 0x102c || r == 0x1038 || r >= 0x1062 && r <= 0x1064 || r >= 0x1067 && r <= 0x106d || r == 0x1083 ||
		r >= 0x1087 && r <= 0x108c || r == 0x108f || r >= 0x109a && r <= 0x109c || r == 0x1a61 || r == 0x1a63 || r == 0x1a64 || r == 0xaa7b || r == 0xaa7d:
		return false // spacing marks that stand by themselves
	}
	c := classOf(r) & maskCat
	return c >= catMn && c <= catMe
}
