// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
)

// noted keeps how requests ended.
type noted struct{ ends []sched.Ending }

// Produce implements [sched.Producer].
func (*noted) Produce(*sched.Cycle) {}

// Placed implements [sched.Placer].
func (n *noted) Placed(c *sched.Cycle, _ *fleet.Endpoint) { c.Receipts = append(c.Receipts[:0], n) }

// Settle implements [sched.Receipt].
func (n *noted) Settle(e sched.Ending) { n.ends = append(n.ends, e) }

// What an endpoint that nobody chose reports says nothing of the one that was.
func TestReceiptOfAnotherEndpoint(t *testing.T) {
	r := newRig(t, 1, slog.LevelInfo)
	n := &noted{}
	r.with(func(p *sched.Plan) {
		p.Producers = append(p.Producers, sched.Named[sched.Producer]{Name: "noted", Plugin: n})
	})
	for _, c := range []struct {
		address string
		served  bool
	}{{"10.0.0.1:8000", true}, {"10.9.9.9:8000", false}} {
		n.ends = nil
		x, _, ref := r.place(t, nil, chat("hello"))
		if ref != nil {
			t.Fatal(ref)
		}
		x.Served(c.address)
		x.Answer(http.StatusOK, headers{})
		x.End(observe.Complete)
		if len(n.ends) != 1 || n.ends[0].Served != c.served {
			t.Errorf("by %s: %+v, want served %v", c.address, n.ends, c.served)
		}
	}
}
