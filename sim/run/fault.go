// SPDX-License-Identifier: Apache-2.0

package run

import (
	"time"

	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/sim/work"
)

// noticed is how long it takes until an endpoint that died is told to be gone, as a readiness probe does.
const noticed = time.Second

// planFaults plans what goes wrong.
func (r *run) planFaults() {
	for _, f := range r.Faults {
		r.plan(f.At, call(func() { r.fault(f) }), 0)
	}
}

// fault begins one, and plans its end.
func (r *run) fault(f work.Fault) {
	heals := func(what func()) {
		if f.For > 0 {
			r.plan(r.now+f.For, call(what), 0)
		}
	}
	if f.Kind == "gateway-loss" {
		if f.Endpoint < len(r.doors) && !r.doors[f.Endpoint].down {
			d := r.doors[f.Endpoint]
			d.lose()
			heals(func() {
				d.down = false
				if err := d.begin(); err != nil && r.err == nil {
					r.err = err
				}
			})
		}
		return
	}
	for i, n := range r.engines {
		if f.Endpoint >= 0 && f.Endpoint != i {
			continue
		}
		switch f.Kind {
		case "loss":
			if !n.down {
				n.lose(f.For)
				heals(n.heal)
			}
		case "slow":
			n.slow *= f.Factor
			heals(func() { n.slow /= f.Factor })
		case "scrape-stall":
			n.mute = true
			heals(func() { n.mute = false })
		case "event-delay":
			d := time.Duration(f.Factor * float64(time.Second))
			n.late += d
			heals(func() { n.late -= d })
		case "event-loss":
			was := n.deaf
			n.deaf = 1 - (1-n.deaf)*(1-f.Factor)
			heals(func() { n.deaf = was })
		}
	}
}

// lose ends an engine's process, and after a while tells the gateways.
func (n *instance) lose(lasts time.Duration) {
	var lost []*exchange
	n.engine.Each(func(s *engine.Seq, _ bool) {
		if x, ok := s.Tag.(*exchange); ok {
			lost = append(lost, x)
		}
	})
	n.down = true
	for _, x := range lost {
		x.broke()
	}
	if lasts == 0 || lasts > noticed {
		n.r.plan(n.r.now+noticed, call(func() { n.hide(true) }), 0)
	}
}

// heal starts it again.
func (n *instance) heal() {
	n.down = false
	if err := n.begin(); err != nil && n.r.err == nil {
		n.r.err = err
	}
	if n.hidden {
		n.hide(false)
	}
}

// hide tells the gateways whether it is there.
func (n *instance) hide(gone bool) {
	if gone && !n.down {
		return
	}
	n.hidden = gone
	for _, d := range n.r.doors {
		if !d.down {
			d.look()
			d.fresh = nil
			d.store.SetEndpoints("sim", d.members()["sim"])
			n.r.know(d)
		}
	}
}

// lose ends a gateway's process: what went through it breaks off.
func (d *door) lose() {
	d.down = true
	for i := len(d.r.under) - 1; i >= 0; i-- { // those that end leave the list, and the last takes their place
		if x := d.r.under[i]; x.d == d {
			if x.seq != nil {
				x.engine.abort(x)
			}
			x.drop()
		}
	}
	d.ready, d.parked = nil, nil
}

// drop ends a request whose gateway is gone; nothing of that is told any more.
func (x *exchange) drop() {
	r := x.d.r
	x.gone = true
	r.rec.Failed(x.req.Index, r.now, "gateway-lost")
	r.over(x, false)
}
