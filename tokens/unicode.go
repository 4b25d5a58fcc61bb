// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	_ "embed"
	"fmt"
	"sync"
	"unicode"
)

// categoriesBin is what tokenizers 0.23 knows of each character, whatever the Go release: ranges of three bytes for the first
// character and two for its class, which holds to the next. The class's low five bits are the general category (Unicode 16)
// in the order of categoryNames, the others the bits below. e2e/tokens/unicode.py makes it by asking the package.
//
//go:embed categories.bin
var categoriesBin []byte

const (
	bitRustWord    = 0x0020 // \w of Rust's regex: the Whitespace pre-tokenizer and whole words
	bitOnigWord    = 0x0040 // \w of Oniguruma: patterns of Split
	bitPunct       = 0x0080 // what the Punctuation and Bert pre-tokenizers call punctuation: Unicode 8
	bitNewer       = 0x0100 // normalizers do not know it: they are of Unicode 9
	bitBertControl = 0x0200 // BertNormalizer drops it
	bitAccent      = 0x0400 // StripAccents drops it
	bitBertAccent  = 0x0800 // BertNormalizer drops it with the accents
	maskCat        = 0x001f
)

var categoryNames = []string{"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
	"Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"}

// A few categories by their number.
const (
	catMn = 5
	catMe = 7
	catNd = 8
	catNo = 10
)

const classRecord = 5 // bytes

var classPages = sync.OnceValue(func() *[0x1100]*[256]uint16 {
	var pages [0x1100]*[256]uint16
	same := map[[256]uint16]*[256]uint16{}
	var page [256]uint16
	var class uint16
	rec := categoriesBin
	for r := range 0x110000 {
		if len(rec) >= classRecord && r == int(rec[0])<<16|int(rec[1])<<8|int(rec[2]) {
			class, rec = uint16(rec[3])|uint16(rec[4])<<8, rec[classRecord:]
		}
		page[r&0xff] = class
		if r&0xff == 0xff {
			p := same[page]
			if p == nil {
				p = new([256]uint16)
				*p = page
				same[page] = p
			}
			pages[r>>8] = p
		}
	}
	return &pages
})

// classOf returns the class of a character: its category and the bits.
func classOf(r rune) uint16 {
	if uint32(r) >= 0x110000 {
		return 0
	}
	return classPages()[r>>8][r&0xff]
}

// isSpace is Unicode's White_Space, which Go, Rust and Oniguruma agree on.
func isSpace(r rune) bool { return unicode.IsSpace(r) }

func isRustWord(r rune) bool { return classOf(r)&bitRustWord != 0 }
func isPunct(r rune) bool    { return classOf(r)&bitPunct != 0 }

func isNumeric(r rune) bool {
	c := classOf(r) & maskCat
	return c >= catNd && c <= catNo
}

// baseMarks are the characters at which the class, or being white space, may change, and some that patterns name by letter.
func baseMarks() []rune {
	marks := []rune{'\n', '\n' + 1}
	for rec := categoriesBin; len(rec) >= classRecord; rec = rec[classRecord:] {
		marks = append(marks, rune(rec[0])<<16|rune(rec[1])<<8|rune(rec[2]))
	}
	for _, hex := range [][2]rune{{'0', '9'}, {'A', 'F'}, {'a', 'f'}} {
		marks = append(marks, hex[0], hex[1]+1)
	}
	return append(marks, tableMarks(unicode.White_Space)...)
}

func tableMarks(t *unicode.RangeTable) (marks []rune) {
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			marks = append(marks, lo, hi+1)
			return
		}
		for r := lo; r <= hi; r += stride {
			marks = append(marks, r, r+1)
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return marks
}

// property is the set that \p{name} means, and where it may change beyond baseMarks.
func property(name string) (in func(rune) bool, marks []rune, err error) {
	var mask uint32
	for i, c := range categoryNames {
		if c == name || c[:1] == name {
			mask |= 1 << i
		}
	}
	if mask != 0 {
		pages := classPages()
		return func(r rune) bool { return mask>>(pages[r>>8][r&0xff]&maskCat)&1 != 0 }, nil, nil
	}
	switch name {
	case "Han":
		return func(r rune) bool {
			return unicode.Is(unicode.Han, r) || r >= 0x2ebf0 && r <= 0x2ee5d // Unicode 15.1
		}, append(tableMarks(unicode.Han), 0x2ebf0, 0x2ee5e), nil
	case "Hiragana", "Katakana", "Latin", "Greek", "Cyrillic", "Arabic", "Hebrew", "Thai", "Hangul":
		table := unicode.Scripts[name]
		return func(r rune) bool { return unicode.Is(table, r) }, tableMarks(table), nil
	}
	return nil, nil, fmt.Errorf(`\p{%s} is not known here`, name)
}
