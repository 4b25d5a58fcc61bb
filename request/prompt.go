// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/binary"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// PromptSink takes the prompts of a request as an engine's prefix cache would see them.
type PromptSink interface {
	// Start begins a new prompt; there may be several in one request, or none.
	Start()
	// Write takes the next bytes, four of which count as one token. It does not keep p.
	Write(p []byte)
}

// mediaTokens is what an image, sound or video counts for: 640×360 pixels, 1,024 a token, as the
// anchor estimates when it knows no better.
const mediaTokens = 225

// Between spans stand bytes that no JSON string can contain as they are, so that two prompts
// are equal only if their roles and contents are: fieldMark and the field's number, and before
// the first field of a message messageMark.
const (
	messageMark = 0x1d
	fieldMark   = 0x1e
	sectionMark = 0x1f
)

// feeder is what FeedPrompt needs beside the sink, so that it allocates nothing.
type feeder struct {
	sink PromptSink
	at   int // bytes given since Start
	hash xxhash.Digest
	buf  [4 * mediaTokens]byte
}

var feeders = sync.Pool{New: func() any { return new(feeder) }}

// FeedPrompt gives the prompts of the body that was scanned to a sink: text as its JSON bytes,
// straight from the chunks; token ids as four bytes each, little-endian; an image as the next
// multiple of four bytes and then a fixed number of bytes made of its hash. White space and the
// order of keys around strings make no difference. It must be called before the body's Release
// and the Scanner's next Reset; edits of the body do not show.
func (f *Facts) FeedPrompt(b *Body, sink PromptSink) {
	if b.s == nil {
		return
	}
	feed := feeders.Get().(*feeder)
	feed.sink = sink
	at := seeker{chunks: b.s.chunks}
	last := PromptSpan{order: ^uint64(0)}
	for _, span := range f.Prompt {
		if span.end() > b.size {
			break // a scan of another body
		}
		if span.First {
			feed.at = 0
			sink.Start()
		}
		feed.mark(span, last)
		last = span
		switch span.Kind {
		case Text:
			for rest := span.Span; rest.Len > 0; {
				feed.write(at.next(&rest))
			}
		case Tokens:
			feed.tokens(&at, span.Span)
		case Media:
			feed.media(&at, span.Span)
		}
	}
	feed.sink = nil
	feeders.Put(feed)
}

func (f *feeder) write(p []byte) {
	f.at += len(p)
	f.sink.Write(p)
}

// mark writes what stands between two spans. A prompt that is nothing but a string, or token
// ids, has no marks, so that its tokens are those of the string.
func (f *feeder) mark(span, last PromptSpan) {
	section, field := span.order>>orderSection, byte(span.order)
	m := f.buf[:0]
	switch {
	case field != 0:
		if span.order>>orderMessage != last.order>>orderMessage {
			m = append(m, messageMark)
		}
		m = append(m, fieldMark, field)
	case section != sectionMain:
		m = append(m, sectionMark, byte(section))
	default:
		return
	}
	f.write(m)
}

// tokens writes the ids of a JSON array, a buffer at a time.
func (f *feeder) tokens(at *seeker, rest Span) {
	out := f.buf[:0]
	var id uint32
	digits := false
	for rest.Len > 0 {
		for _, c := range at.next(&rest) {
			if d := c - '0'; d < 10 {
				id, digits = id*10+uint32(d), true
				continue
			}
			if !digits {
				continue
			}
			out = binary.LittleEndian.AppendUint32(out, id)
			id, digits = 0, false
			if len(out) == cap(out) {
				f.write(out)
				out = out[:0]
			}
		}
	}
	if len(out) > 0 {
		f.write(out)
	}
}

// media writes the hash of a URL or of the data itself, many times.
func (f *feeder) media(at *seeker, rest Span) {
	f.hash.Reset()
	for rest.Len > 0 {
		f.hash.Write(at.next(&rest))
	}
	sum := f.hash.Sum64()
	if gap := -f.at & 3; gap > 0 {
		f.write(append(f.buf[:0], "\x00\x00\x00"[:gap]...))
	}
	out := f.buf[:0]
	for len(out)+8 <= cap(out) {
		out = binary.LittleEndian.AppendUint64(out, sum)
	}
	out = binary.LittleEndian.AppendUint32(out, uint32(sum))
	f.write(out)
}
