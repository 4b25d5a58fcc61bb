// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// fake is a core that places every request at one address, unless told otherwise.
type fake struct {
	memory *request.Memory
	max    int64
	// place, when set, answers instead; it may wait for ctx.
	place func(ctx context.Context, x *fakeExchange) (*gateway.Placement, *gateway.Refusal)
	// quiet keeps nothing, for benchmarks.
	quiet        bool
	began, ended chan *fakeExchange
}

func newFake(max int64) *fake {
	return &fake{memory: request.NewMemory(0), max: max, began: make(chan *fakeExchange, 1000), ended: make(chan *fakeExchange, 1000)}
}

// fakeExchange records what the door told.
type fakeExchange struct {
	f    *fake
	head gateway.Head
	body *request.Body

	cookie    string // the headers are the door's again after the end
	mu        sync.Mutex
	sent      []byte // the body, as it was when placed
	served    string
	unreached string
	status    int
	ctype     string
	passed    []byte
	refused   *gateway.Refusal
	failed    error
	restore   *request.Restorer
	ends      []observe.End
}

func (f *fake) begin(h gateway.Head) exchange {
	x := &fakeExchange{f: f, head: h, body: request.NewBody(f.memory, f.max)}
	if !f.quiet {
		x.cookie = h.Headers.Get("cookie")
		f.began <- x
	}
	return x
}

func (x *fakeExchange) API() request.API    { return request.APIOf(x.head.Path) }
func (x *fakeExchange) Body() *request.Body { return x.body }

func (x *fakeExchange) Write(p []byte) *gateway.Refusal {
	_, err := x.body.Write(p)
	return tooLarge(err)
}

func (x *fakeExchange) Attach(p []byte, owner request.Freer) *gateway.Refusal {
	return tooLarge(x.body.Attach(p, owner))
}

func tooLarge(err error) *gateway.Refusal {
	if err == nil {
		return nil
	}
	return &gateway.Refusal{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large", Message: err.Error()}
}

func (x *fakeExchange) Place(ctx context.Context) (*gateway.Placement, *gateway.Refusal) {
	if !x.f.quiet {
		x.sent = slices.Concat(slices.Collect(x.body.Chunks)...)
	}
	if x.f.place != nil {
		return x.f.place(ctx, x)
	}
	return &gateway.Placement{Destination: "10.0.0.1:8000"}, nil
}

func (x *fakeExchange) OnEvict(gateway.Evictee) {}
func (x *fakeExchange) Evicted() *gateway.Refusal {
	return &gateway.Refusal{Status: 429, Reason: "evicted"}
}

func (x *fakeExchange) Served(address string)   { x.served = address }
func (x *fakeExchange) Unreached(reason string) { x.unreached = reason }

func (x *fakeExchange) Answer(status int, h gateway.Headers) []gateway.Header {
	x.status, x.ctype = status, h.Get("content-type")
	return nil
}

func (x *fakeExchange) Pass(p []byte) {
	if !x.f.quiet {
		x.passed = append(x.passed, p...)
	}
}

func (x *fakeExchange) Restore() *request.Restorer { return x.restore }

func (x *fakeExchange) Refuse(r *gateway.Refusal) { x.refused = r }
func (x *fakeExchange) Fail(err error)            { x.failed = err }

func (x *fakeExchange) End(end observe.End) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.body.Release()
	x.ends = append(x.ends, end)
	if !x.f.quiet && len(x.ends) == 1 {
		x.f.ended <- x
	}
}

// edited places with a body of its own.
func edited(f *fake, change func(b []byte) []byte) func(context.Context, *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
	return func(_ context.Context, x *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
		b := request.NewBody(f.memory, 0)
		if _, err := b.ReadFrom(bytes.NewReader(change(x.sent))); err != nil {
			panic(err)
		}
		return &gateway.Placement{Destination: "10.0.0.1:8000", Body: b}, nil
	}
}
