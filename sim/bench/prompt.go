// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"io"
	"math"
	"strconv"

	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/work"
)

// vocabulary are 256 words of three letters, each with its space: every one is one token for the
// tokenizers of GPT-2 to GPT-4o, Llama 3 and those made like them (measured: 1.000 tokens per word of
// any text of ours), nearly so for Llama 2's (1.03), and for that of `penstock sim engine`.
const vocabulary = "" +
	"ace act add age ago aid aim air ale all and ant any arc are arm art ash ask bad bag ban bar bat bay bed " +
	"bet bid big bin bit bow box boy bud bug bus but buy cab can cap car cat cod cop cow cry cup cut dad dam " +
	"day den did die dig dip dog dot dry due ear eat egg ego end era eye fan far fat fed fee few fig fin fir " +
	"fit fix flu fly fog for fox fun fur gap gas gem get god got gum gun gut guy had ham has hat hay hen her " +
	"him hip his hit hop hot how hub ice ill ink inn its jam jar jaw jet job jog joy key kid lab lad lag lap " +
	"law lay led leg let lid lie lip log lot low mad man map mat may men met mix mom mud nap net new nod nor " +
	"not now nut odd oil old one orb our out own pad pan pat pay pen per pet pie pin pit pod pop pot pro pub " +
	"put ram ran rap rat raw ray red rib rid rim rip rob rod row rub rug rum run sad sap sat saw say sea see " +
	"set sex she sin sir sit six ski sky sob son sun tag tan tap tar tax tea ten the tie tin tip toe ton too " +
	"top try tub two use van via war was way web wed wet who win wit won yes yet you zip zoo "

const (
	wordBytes = 4
	wordCount = len(vocabulary) / wordBytes
)

// piece is a part of a body: text as it stands, or the words of a segment.
type piece struct {
	text  string
	said  bool // as text, or else as the words of id
	id    uint64
	bytes int64
}

// body is a request's body. It is never whole in memory: words are made while it is sent.
type body struct {
	pieces []piece
	length int64
}

func (b *body) text(s string) {
	b.length += int64(len(s))
	if n := len(b.pieces); n > 0 && b.pieces[n-1].said {
		b.pieces[n-1].text += s
		b.pieces[n-1].bytes += int64(len(s))
		return
	}
	b.pieces = append(b.pieces, piece{text: s, said: true, bytes: int64(len(s))})
}

// words adds as many words of a segment as its tokens are worth.
func (b *body) words(id uint64, tokens int32, perWord float64) {
	n := int64(max(1, math.Round(float64(tokens)/perWord))) * wordBytes
	b.length += n
	b.pieces = append(b.pieces, piece{id: id, bytes: n})
}

// open gives the body from its beginning.
func (b *body) open() io.ReadCloser { return &reader{left: b.pieces} }

// reader reads the pieces of a body.
type reader struct {
	left []piece
	at   int64 // in the first piece
}

// Read implements [io.Reader].
func (r *reader) Read(p []byte) (int, error) {
	done := 0
	for done < len(p) && len(r.left) > 0 {
		first := &r.left[0]
		n := min(len(p)-done, int(first.bytes-r.at))
		if first.said {
			copy(p[done:done+n], first.text[r.at:])
		} else {
			speak(p[done:done+n], first.id, r.at)
		}
		done, r.at = done+n, r.at+int64(n)
		if r.at == first.bytes {
			r.left, r.at = r.left[1:], 0
		}
	}
	if done == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return done, nil
}

// Close implements [io.Closer].
func (r *reader) Close() error { return nil }

// speak writes the text of a segment from a byte on.
func speak(p []byte, id uint64, from int64) {
	word := func() string {
		at := int(work.Token(id, int32(from/wordBytes))%uint64(wordCount)) * wordBytes
		return vocabulary[at : at+wordBytes]
	}
	if off := from % wordBytes; off > 0 {
		n := copy(p, word()[off:])
		p, from = p[n:], from+int64(n)
	}
	for ; len(p) >= wordBytes; from += wordBytes {
		copy(p[:wordBytes], word())
		p = p[wordBytes:]
	}
	if len(p) > 0 {
		copy(p, word())
	}
}

// style is how requests of a run are written.
type style struct {
	api     request.API
	model   string
	perWord float64 // tokens
	most    int     // tokens of an answer; 0 for what the workload says
	stream  bool
	salt    uint64
	extra   string // members of the body, with a comma before each
}

// ask writes a request. In a chat what a model said before stands as its own, all else is the user's: where
// a message ends depends on nothing that comes later, so that equal beginnings stay equal.
func (s *style) ask(r *work.Request, said map[uint64]string) load.Ask {
	b := &body{pieces: make([]piece, 0, len(r.Prompt)+2)}
	model := r.Model
	if model == "" {
		model = s.model
	}
	b.text(`{"model":` + quoted(model))
	if s.api == request.Completions {
		b.text(`,"prompt":"`)
		for _, part := range r.Prompt {
			if text, ok := said[part.ID]; ok {
				b.text(text)
			} else {
				b.words(part.ID^s.salt, part.Tokens, s.perWord)
			}
		}
		b.text(`"`)
	} else {
		s.messages(b, r.Prompt, said)
	}
	most := r.Output
	if s.most > 0 {
		most = min(most, s.most)
	}
	b.text(`,"max_tokens":` + strconv.Itoa(most))
	if s.stream {
		b.text(`,"stream":true,"stream_options":{"include_usage":true}`)
	}
	b.text(s.extra + `}`)
	return load.Ask{Body: b.open, Length: b.length, Text: r.Session >= 0 && s.stream}
}

func (s *style) messages(b *body, prompt []work.Segment, said map[uint64]string) {
	const user, assistant, end = `{"role":"user","content":"`, `{"role":"assistant","content":"`, `"}`
	b.text(`,"messages":[`)
	open := false
	for i, part := range prompt {
		text, ok := said[part.ID]
		if ok && open {
			b.text(end)
			open = false
		}
		if !open && i > 0 {
			b.text(",")
		}
		if ok {
			b.text(assistant + text + end)
			continue
		}
		if !open {
			b.text(user)
			open = true
		}
		b.words(part.ID^s.salt, part.Tokens, s.perWord)
	}
	if open {
		b.text(end)
	}
	b.text(`]`)
}

// quoted is a string of JSON.
func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(text)
}

// answers keeps what was generated for the turns that follow, the newest up to a bound in bytes.
type answers struct {
	text  map[uint64]string // as JSON has it, without its quotes
	order []uint64
	bytes int
}

const maxSaid = 64 << 20

func (a *answers) keep(id uint64, text string) {
	if text == "" || len(text) > maxSaid {
		return
	}
	q := quoted(text)
	a.text[id] = q[1 : len(q)-1]
	a.order = append(a.order, id)
	for a.bytes += len(q) + 64; a.bytes > maxSaid; a.order = a.order[1:] {
		a.bytes -= len(a.text[a.order[0]]) + 66
		delete(a.text, a.order[0])
	}
}
