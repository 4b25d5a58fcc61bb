// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/gateway/wire"
)

// maxPiece is the most body bytes that one message may carry: Envoy's limit of 64 KiB for a
// message, less its frame.
const maxPiece = 62_000

// Fields of a ProcessingResponse's oneof, and dynamic_metadata.
const (
	replyRequestHeaders   = 1
	replyResponseHeaders  = 2
	replyRequestBody      = 3
	replyResponseBody     = 4
	replyRequestTrailers  = 5
	replyResponseTrailers = 6
	replyImmediate        = 7
	replyMetadata         = 8
)

// reply is an encoded ProcessingResponse. Who sends it gives its references away.
type reply struct{ data []wire.Piece }

// Replies that say "go on, nothing to change".
var (
	plainRequestHeaders   = plain(replyRequestHeaders)
	plainResponseHeaders  = plain(replyResponseHeaders)
	plainRequestBody      = plain(replyRequestBody)
	plainResponseBody     = plain(replyResponseBody)
	plainRequestTrailers  = plain(replyRequestTrailers)
	plainResponseTrailers = plain(replyResponseTrailers)
)

func plain(field protowire.Number) reply {
	return encoded(appendBytes(nil, field, ""))
}

// encoded makes b, which must not change any more, a reply.
func encoded(b []byte) reply { return reply{[]wire.Piece{{P: b}}} }

// appendBytes appends a field of bytes, a string or a whole message.
func appendBytes[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

// nest makes what begins at start of b a field of its own: the innermost message is written first, and
// wrapped from there.
func nest(b []byte, start int, field protowire.Number) []byte {
	n := len(b) - start
	head := protowire.SizeTag(field) + protowire.SizeVarint(uint64(n))
	for range head {
		b = append(b, 0)
	}
	copy(b[start+head:], b[start:start+n])
	h := protowire.AppendTag(b[:start], field, protowire.BytesType)
	protowire.AppendVarint(h, uint64(n))
	return b
}

// mutation is what changes in the headers of a request or of an answer of our own.
type mutation struct {
	set    []gateway.Header
	remove []string
}

// append writes the mutation's fields of a HeaderMutation: 1 set_headers, 2 remove_headers.
func (m *mutation) append(b []byte) []byte {
	for _, h := range m.set {
		b = appendSet(b, h)
	}
	for _, name := range m.remove {
		b = appendBytes(b, 2, name)
	}
	return b
}

// appendSet writes a HeaderValueOption, 1 header (1 key, 3 raw_value) and 3 append_action, which
// replaces whatever is there.
func appendSet(b []byte, h gateway.Header) []byte {
	const overwriteIfExistsOrAdd = 2
	option := len(b)
	b = appendBytes(b, 1, h.Name)
	b = appendBytes(b, 3, h.Value)
	b = nest(b, option, 1)
	b = appendNumber(b, 3, overwriteIfExistsOrAdd)
	return nest(b, option, 1)
}

// decision is the reply that carries a choice, to the headers or, where a proxy waits for them
// to be answered first, to the body. scratch is used and given back.
func decision(scratch []byte, field protowire.Number, p *gateway.Placement, m *mutation, body []byte, replaced bool) (reply, []byte) {
	b := scratch[:0]
	b = m.append(b)
	b = nest(b, 0, 2) // header_mutation
	if replaced {
		start := len(b)
		b = appendBytes(b, 1, body)
		b = nest(b, start, 3) // body_mutation
	}
	b = appendNumber(b, 5, 1) // clear_route_cache
	b = nest(b, 0, 1)         // response
	b = nest(b, 0, field)
	start := len(b)
	b = appendBytes(b, 3, p.Destination) // Value.string_value
	b = appendEntry(b, start, destinationKey)
	if p.Scores != nil {
		b = appendScores(b, p.Scores)
	}
	b = nest(b, start, 5) // Value.struct_value
	b = appendEntry(b, start, namespace)
	b = nest(b, start, replyMetadata)
	return encoded(append([]byte(nil), b...)), b
}

// replaced is the reply that puts body in the place of what came: 2 header_mutation, 3 body_mutation with
// 1 body or 2 clear_body.
func replaced(field protowire.Number, m *mutation, body []byte) reply {
	b := nest(m.append(nil), 0, 2)
	start := len(b)
	if len(body) > 0 {
		b = appendBytes(b, 1, body)
	} else {
		b = appendNumber(b, 2, 1)
	}
	b = nest(b, start, 3)
	b = nest(b, 0, 1)
	return encoded(nest(b, 0, field))
}

// appendScores appends the totals by address, a Struct of numbers, as an entry of its own.
func appendScores(b []byte, scores []gateway.Score) []byte {
	start := len(b)
	for _, s := range scores {
		entry := len(b)
		b = protowire.AppendTag(b, 2, protowire.Fixed64Type) // Value.number_value
		b = protowire.AppendFixed64(b, math.Float64bits(s.Total))
		b = appendEntry(b, entry, s.Address)
	}
	b = nest(b, start, 5) // Value.struct_value
	return appendEntry(b, start, scoresKey)
}

// headersReply is a reply that changes headers and nothing else.
func headersReply(field protowire.Number, m *mutation) reply {
	b := nest(m.append(nil), 0, 2) // header_mutation
	b = nest(b, 0, 1)              // response
	return encoded(nest(b, 0, field))
}

// appendEntry makes the value that begins at start an entry of a Struct's fields.
func appendEntry(b []byte, start int, key string) []byte {
	b = nest(b, start, 2)
	b = appendBytes(b, 1, key)
	return nest(b, start, 1)
}

// immediate is an answer of our own: 1 status (1 code), 2 headers, 3 body, 5 details.
func immediate(status int, h []gateway.Header, body []byte, details string) reply {
	b := appendNumber(nil, 1, uint64(status))
	b = nest(b, 0, 1)
	start := len(b)
	b = (&mutation{set: h}).append(b)
	b = nest(b, start, 2)
	b = appendBytes(b, 3, body)
	b = appendBytes(b, 5, details)
	return encoded(nest(b, 0, replyImmediate))
}

// bodyHead is what comes before the n bytes of a body piece: a BodyResponse with 1 response, 3
// body_mutation, 3 streamed_response, 2 end_of_stream and 1 body.
func bodyHead(b []byte, field protowire.Number, n int, end bool) []byte {
	streamed := 0
	if end {
		streamed = 2
	}
	if n > 0 {
		streamed += 1 + protowire.SizeBytes(n)
	}
	mutation := 1 + protowire.SizeBytes(streamed)
	common := 1 + protowire.SizeBytes(mutation)
	response := 1 + protowire.SizeBytes(common)
	b = protowire.AppendVarint(append(b, byte(field)<<3|bytesType), uint64(response))
	b = protowire.AppendVarint(append(b, 1<<3|bytesType), uint64(common))
	b = protowire.AppendVarint(append(b, 3<<3|bytesType), uint64(mutation))
	b = protowire.AppendVarint(append(b, 3<<3|bytesType), uint64(streamed))
	if end {
		b = append(b, 2<<3|byte(protowire.VarintType), 1)
	}
	if n > 0 {
		b = protowire.AppendVarint(append(b, 1<<3|bytesType), uint64(n))
	}
	return b
}

// bytesType is the type in a tag; numbers below 16 make it a single byte.
const bytesType = byte(protowire.BytesType)

// inline is the length up to which a body piece is copied behind its head: less than a buffer
// of its own costs.
const inline = 1 << 10

// headRoom is enough for every head.
const headRoom = 40

// inlined makes a body reply of pieces that are short altogether.
func inlined(field protowire.Number, pieces []wire.Piece, n int, end bool) reply {
	b := bodyHead(make([]byte, 0, n+headRoom), field, n, end)
	for i := range pieces {
		b = append(b, pieces[i].P...)
	}
	return encoded(b)
}

// bodyWriter cuts a body into messages of at most maxPiece bytes. The list of one is used again
// for the next: who sends it must not keep it.
type bodyWriter struct {
	field protowire.Number
	send  func(reply) error
	list  []wire.Piece // of the message in the making; the first is its head
	open  bool         // there is one
	n     int          // body bytes in it
}

// view adds a piece without copying it, and takes references of its own.
func (w *bodyWriter) view(p wire.Piece) error {
	for len(p.P) > 0 {
		k, err := w.room(len(p.P))
		if err != nil {
			return err
		}
		p.Ref()
		w.list = append(w.list, wire.Piece{P: p.P[:k:k], Buffer: p.Buffer})
		w.n += k
		p.P = p.P[k:]
	}
	return nil
}

// copied adds a copy of p.
func (w *bodyWriter) copied(p []byte) error { return w.view(wire.Piece{P: append([]byte(nil), p...)}) }

// room tells how many of want bytes go into the current message, which is sent when it is full.
func (w *bodyWriter) room(want int) (int, error) {
	if w.n == maxPiece {
		if err := w.flush(false); err != nil {
			return 0, err
		}
	}
	w.begin()
	return min(want, maxPiece-w.n), nil
}

func (w *bodyWriter) begin() {
	if !w.open {
		w.open = true
		w.list = append(w.list[:0], wire.Piece{})
	}
}

// flush sends what there is, also if it is nothing.
func (w *bodyWriter) flush(end bool) error {
	w.begin()
	w.list[0].P = bodyHead(make([]byte, 0, headRoom), w.field, w.n, end)
	w.open, w.n = false, 0
	return w.send(reply{w.list})
}

// drop gives back what was not sent.
func (w *bodyWriter) drop() {
	if w.open {
		for _, p := range w.list[1:] {
			p.Free()
		}
		w.open, w.n = false, 0
	}
	clear(w.list[:cap(w.list)])
}
