// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/route"
)

// rename is what was done to the model's name of a request. The zero rename is nothing.
type rename struct {
	from, to string // to is empty when the body says what its client wrote
	restore  *request.Restorer
}

var restorers = sync.Pool{New: func() any { return new(request.Restorer) }}

// maxName bounds a model's name in a header, in bytes.
const maxName = 1 << 10

// aim chooses the pool and the model that its endpoints are asked for, and writes that model into the
// body where it is another one. A rule of the pool decides, else a trusted caller's header, else the body.
func (x *Exchange) aim(snap *fleet.Snapshot) (pool *fleet.Pool, model string, refused *Refusal) {
	f := x.facts
	strict := x.door.Strict && x.api != request.Unknown
	open := f.Renames() && (f.Named() || x.api != request.Unknown) // a body of unknown meaning gets no keys
	pool, unknown := route.Pool(snap, route.Ask{Model: f.Model, Strict: strict, Plain: !open})
	asked := f.Model // which a refusal names
	var rule *fleet.Rewrite
	if open {
		rule = route.Rule(pool, f.Model)
		if to := x.wanted(); rule == nil && to != "" {
			asked = to
			pool, unknown = route.Pool(snap, route.Ask{Model: to, Strict: strict, Plain: true})
			rule = route.Rule(pool, f.Model)
		}
	}
	if model = asked; rule != nil {
		asked, model, x.out.Rewrite = f.Model, route.Target(rule, x.g.chance), rule.Name
		unknown = strict && !route.Serves(pool, model)
	}
	if unknown {
		return pool, model, UnknownModel(asked)
	}
	if model != f.Model {
		if err := f.Rename(x.sent(), model); err != nil { // spans of this very body always fit
			return pool, model, InternalError()
		}
		x.rename.from, x.rename.to = f.Model, model
	}
	return pool, model, nil
}

// wanted is the model that a trusted caller names in a header.
func (x *Exchange) wanted() string {
	if !x.trusted {
		return ""
	}
	to := either(x.head.Headers, rewriteHeader)
	if len(to) > maxName {
		return ""
	}
	return to
}

// chance is a number from 0 to n-1, which the seed and the number of earlier choices tell.
func (g *Gateway) chance(n int) int {
	if g.Seed == 0 {
		return rand.IntN(n)
	}
	return rand.New(rand.NewPCG(g.choices.Add(1), g.Seed)).IntN(n)
}

// restores decides whether the model's name is put back into an answer with that head.
func (x *Exchange) restores(h Headers) {
	r := &x.rename
	if r.to == "" || r.from == "" || x.out.Status == http.StatusPartialContent || !x.sse && !isJSON(h.Get("content-type")) {
		return
	}
	r.restore = restorers.Get().(*request.Restorer)
	r.restore.Reset(x.api, x.sse, r.to, r.from)
}

// isJSON reports whether a content type is JSON, or made of it.
func isJSON(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "application/json" || strings.HasPrefix(t, "application/") && strings.HasSuffix(t, "+json")
}

// Restore is what an answer's body must pass through on its way to the client, after Answer and
// before End; nil when it goes on as it comes. An answer that is restored has another length than its
// head tells.
func (x *Exchange) Restore() *request.Restorer { return x.rename.restore }

// restored lets go of what Restore gave.
func (x *Exchange) restored() {
	if x.rename.restore != nil {
		restorers.Put(x.rename.restore)
		x.rename.restore = nil
	}
}
