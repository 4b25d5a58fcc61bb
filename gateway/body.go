// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"io"
	"net/http"

	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/request"
)

// Body is the body as it came, so far.
func (x *Exchange) Body() *request.Body { return x.body }

// Expect is told the length of the body before it comes, and refuses what would be too long.
func (x *Exchange) Expect(n int64) *Refusal {
	if x.g.MaxBody > 0 && n > x.g.MaxBody {
		return tooLarge(x.g.MaxBody)
	}
	x.body.Expect(n)
	return nil
}

// Write copies a piece of the body.
func (x *Exchange) Write(p []byte) *Refusal {
	if _, err := x.body.Write(p); err != nil {
		return bodyRefusal(err)
	}
	x.see(p)
	return nil
}

// Read reads the next piece of the body from r, without a copy of its own, until r ends with
// [io.EOF] or another error of r's, which is returned as it is.
func (x *Exchange) Read(r io.Reader) (*Refusal, error) {
	p, err := x.body.ReadOnce(r)
	x.see(p)
	if err != nil && (errors.Is(err, request.ErrTooLarge) || errors.Is(err, request.ErrMemory)) {
		return bodyRefusal(err), nil
	}
	return nil, err
}

// Attach takes a piece of the body without copying; owner.Free is called when it is done with.
func (x *Exchange) Attach(p []byte, owner request.Freer) *Refusal {
	if err := x.body.Attach(p, owner); err != nil {
		return bodyRefusal(err)
	}
	x.see(p)
	return nil
}

// see lets the scanner read a piece, unless it is encoded.
func (x *Exchange) see(p []byte) {
	if x.encoding == request.Identity && len(p) > 0 {
		x.scan.Feed(p)
	}
}

// decode undoes a content encoding, so that endpoints get what they can read.
func (x *Exchange) decode() *Refusal {
	if x.badBody != nil {
		return x.badBody
	}
	if x.encoding == request.Identity || x.body.Len() == 0 {
		return nil
	}
	plain, err := x.encoding.Decode(x.body)
	if err != nil {
		return bodyRefusal(err)
	}
	x.decoded = plain
	for p := range plain.Chunks {
		x.scan.Feed(p)
	}
	return nil
}

// sent is the body in the form that endpoints get.
func (x *Exchange) sent() *request.Body {
	if x.decoded != nil {
		return x.decoded
	}
	return x.body
}

// media lists the hashes of the prompt's images, sounds and videos.
func (x *Exchange) media(into []uint64) []uint64 { return x.facts.MediaHashes(x.sent(), into) }

// sending shows plugins the body as endpoints get it, but for a rewrite of its model.
type sending struct{ x *Exchange }

// Append implements [sched.Body].
func (s sending) Append(into []byte) []byte {
	for p := range s.x.sent().Chunks {
		into = append(into, p...)
	}
	return into
}

// feedPrompt lets the hasher read the prompt.
func (x *Exchange) feedPrompt(h *kvcache.Hasher) { x.facts.FeedPrompt(x.sent(), h) }

func bodyRefusal(err error) *Refusal {
	var large *request.TooLargeError
	switch {
	case errors.As(err, &large):
		return tooLarge(large.Limit)
	case errors.Is(err, request.ErrMemory):
		return noMemory()
	case errors.Is(err, request.ErrEncoding):
		return badEncoding(http.StatusUnsupportedMediaType, err.Error())
	}
	return badEncoding(http.StatusBadRequest, err.Error())
}
