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

// The waits when nobody set any.
const defaultTTL = time.Minute

// gate makes the gate of a pool: a queue where the feature gate flowControl is on, else what sheds only.
func (s *site) gate(b *planner, pool fleet.ID, p *config.Picker) (flow.Gate, error) {
	detector, err := one(b, p, p.Detector.Name, "utilization-detector", policy.Detectors)
	if err != nil {
		return nil, err
	}
	if !p.Gates.FlowControl {
		return flow.NewLegacy(), nil
	}
	fc := p.FlowControl
	if fc == nil {
		fc = &api.FlowControl{}
	}
	text, _ := json.Marshal(fc)
	fmt.Fprintf(&b.from, "flow control %s\n", text)
	o := flow.Options{
		MaxRequests: int64(value(fc.MaxRequests)), MaxBytes: int64(value(fc.MaxBytes)), TTL: defaultTTL,
		Bands: map[int]flow.BandSpec{}, Detector: detector, Evict: fc.EnableEviction, Pool: pool, Store: s.store, Stale: s.gw.Stale,
		Listener: gateway.Queued{Queue: s.gw.Observer.Queue(pool), Detector: p.Detector.Name},
	}
	if fc.DefaultRequestTTL != nil {
		o.TTL, o.NoEndpointTTL = time.Duration(*fc.DefaultRequestTTL), time.Duration(*fc.DefaultRequestTTL)
	} else {
		o.NoEndpointTTL = defaultTTL
	}
	if fc.NoEndpointRequestTTL != nil {
		o.NoEndpointTTL = time.Duration(*fc.NoEndpointRequestTTL)
	}
	if o.Limit, err = one(b, p, fc.UsageLimitPolicyPluginRef, "static-usage-limit-policy", policy.Limits); err != nil {
		return nil, err
	}
	if o.Default, err = b.band(p, fc.DefaultPriorityBand); err != nil {
		return nil, err
	}
	if o.Negative, err = b.band(p, cmp.Or(fc.DefaultNegativePriorityBand, fc.DefaultPriorityBand)); err != nil {
		return nil, err
	}
	for i := range fc.PriorityBands {
		spec := &fc.PriorityBands[i]
		if o.Bands[int(spec.Priority)], err = b.band(p, spec); err != nil {
			return nil, err
		}
	}
	return flow.New(o), nil
}

// band is how a band works; nil is the default.
func (b *planner) band(p *config.Picker, spec *api.PriorityBand) (flow.BandSpec, error) {
	if spec == nil {
		spec = &api.PriorityBand{}
	}
	fairness, err := one(b, p, spec.FairnessPolicyRef, "global-strict-fairness-policy", policy.Fairness)
	if err != nil {
		return flow.BandSpec{}, err
	}
	ordering, err := one(b, p, spec.OrderingPolicyRef, "fcfs-ordering-policy", policy.Orderings)
	return flow.BandSpec{
		MaxRequests: int64(value(spec.MaxRequests)), MaxBytes: int64(value(spec.MaxBytes)), TTL: time.Duration(value(spec.RequestTTL)),
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
