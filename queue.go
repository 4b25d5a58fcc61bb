// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/flow/policy"
	"github.com/penstock-project/penstock/gateway"
)

// flowMakers are the sets of flow control's policies.
var flowMakers = []maker{of(policy.Fairness), of(policy.Orderings), of(policy.Limits), of(policy.Detectors), of(policy.Evictions)}

// The policies when none is named.
const (
	defaultDetector = "utilization-detector"
	defaultLimit    = "static-usage-limit-policy"
	defaultFairness = "global-strict-fairness-policy"
	defaultOrdering = "fcfs-ordering-policy"
)

// The waits when nobody set any, and where a band has no bound and others have.
const (
	defaultTTL = time.Minute
	forever    = 100 * 365 * 24 * time.Hour
)

// gate makes the gate of a pool.
func (s *site) gate(b *planner, pool fleet.ID, p *config.Picker) (flow.Gate, error) {
	at := flow.Options{Pool: pool, Store: s.store, Stale: s.gw.Stale}
	if p.Gates.FlowControl {
		at.Listener = gateway.Queued{Queue: s.gw.Observer.Queue(pool), Detector: p.Detector.Name}
	}
	return b.gate(p, at)
}

// gate makes a queue where the feature gate flowControl is on, else what sheds only.
func (b *planner) gate(p *config.Picker, at flow.Options) (flow.Gate, error) {
	if !p.Gates.FlowControl {
		g := flow.NewLegacy()
		if d := p.Detector; !d.Implied {
			detector, err := one(b, p, d.Name, defaultDetector, policy.Detectors)
			if err != nil {
				return nil, err
			}
			g.Detector = detector
		}
		return g, nil
	}
	o, err := b.flowOptions(p, at)
	if err != nil {
		return nil, err
	}
	return flow.New(o), nil
}

// flowOptions are what a pool's queue is made of, all defaults filled in but for those of a band's bounds. Where it
// stands is already said in o.
func (b *planner) flowOptions(p *config.Picker, o flow.Options) (flow.Options, error) {
	fc := p.FlowControl
	if fc == nil {
		fc = &api.FlowControl{}
	}
	text, _ := json.Marshal(fc)
	fmt.Fprintf(&b.from, "flow control %s\n", text)
	o.MaxRequests, o.MaxBytes, o.TTL, o.NoEndpointTTL = int64(value(fc.MaxRequests)), int64(value(fc.MaxBytes)), defaultTTL, defaultTTL
	o.Bands, o.Evict = map[int]flow.BandSpec{}, fc.EnableEviction
	var err error
	if d := fc.DefaultRequestTTL; d != nil {
		o.TTL, o.NoEndpointTTL = time.Duration(*d), time.Duration(*d)
	}
	if d := fc.NoEndpointRequestTTL; d != nil {
		o.NoEndpointTTL = time.Duration(*d)
	}
	if o.Detector, err = one(b, p, p.Detector.Name, defaultDetector, policy.Detectors); err != nil {
		return o, err
	}
	if o.Limit, err = one(b, p, fc.UsageLimitPolicyPluginRef, defaultLimit, policy.Limits); err != nil {
		return o, err
	}
	if o.Default, err = b.band(p, fc.DefaultPriorityBand); err != nil {
		return o, err
	}
	if o.Negative, err = b.band(p, cmp.Or(fc.DefaultNegativePriorityBand, fc.DefaultPriorityBand)); err != nil {
		return o, err
	}
	for i := range fc.PriorityBands {
		spec := &fc.PriorityBands[i]
		if o.Bands[int(spec.Priority)], err = b.band(p, spec); err != nil {
			return o, err
		}
	}
	return o, nil
}

// band is how a band works; nil is the default.
func (b *planner) band(p *config.Picker, spec *api.PriorityBand) (flow.BandSpec, error) {
	if spec == nil {
		spec = &api.PriorityBand{}
	}
	ttl := time.Duration(value(spec.RequestTTL))
	if spec.RequestTTL != nil && ttl == 0 {
		ttl = forever
	}
	fairness, err := one(b, p, spec.FairnessPolicyRef, defaultFairness, policy.Fairness)
	if err != nil {
		return flow.BandSpec{}, err
	}
	ordering, err := one(b, p, spec.OrderingPolicyRef, defaultOrdering, policy.Orderings)
	return flow.BandSpec{
		MaxRequests: int64(value(spec.MaxRequests)), MaxBytes: int64(value(spec.MaxBytes)), TTL: ttl,
		Share: spec.MinShare, Ordering: ordering, Fairness: fairness.New,
	}, err
}

// one is the plugin that a reference names, or else the default of its kind.
func one[T any](b *planner, p *config.Picker, ref, typ string, set interface {
	New(name string, decode func(any) error) (T, error)
}) (v T, err error) {
	for _, d := range p.Plugins {
		if d.Name != cmp.Or(ref, typ) || !d.Active {
			continue
		}
		made, err := b.value(d)
		if err != nil {
			return v, err
		}
		if v, ok := made.(T); ok {
			return v, nil
		}
	}
	return set.New(typ, nil)
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
