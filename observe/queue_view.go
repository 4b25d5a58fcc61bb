// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/penstock-project/penstock/fleet"

// The form of a queue on /debug/fleet.
type (
	// QueueView is a pool's queue at one moment. Its lists are bounded.
	QueueView struct {
		Pool     fleet.ID `json:"-"`
		Detector string   `json:"detector"` // by which endpoints have room
		Waiting  int64    `json:"waiting"`
		Bytes    int64    `json:"bytes"`
		// The bounds of all that waits are absent where there are none.
		MaxRequests int64 `json:"max_requests,omitempty"`
		MaxBytes    int64 `json:"max_bytes,omitempty"`
		NoEndpoints bool  `json:"no_endpoints,omitempty"` // there are none, and other times to wait
		// Saturation is what ceilings are compared with, Stages the same for the stages of disaggregated serving.
		Saturation float64            `json:"saturation"`
		Stages     map[string]float64 `json:"stages,omitempty"`
		Unknown    int                `json:"unknown_endpoints"` // whose signals the detector takes for unknown
		Bands      []BandView         `json:"bands"`             // by falling priority
		Unlisted   int                `json:"unlisted_bands,omitempty"`
		Leases     *LeaseView         `json:"leases,omitempty"` // where requests are taken back
		Waits      []WaitView         `json:"-"`                // what waits, by all that metrics tell apart
		Measured   []MeasureView      `json:"-"`
	}
	// BandView is one band.
	BandView struct {
		Priority    int     `json:"priority"`
		Waiting     int64   `json:"waiting"`
		MaxRequests int64   `json:"max_requests"`
		Bytes       int64   `json:"bytes"`
		MaxBytes    int64   `json:"max_bytes"`
		Ceiling     float64 `json:"ceiling"` // the saturation up to which it dispatches
		MinShare    float64 `json:"min_share,omitempty"`
		OldestMS    float64 `json:"oldest_ms,omitempty"`
		Flows       int     `json:"flows"` // with requests that wait
		// Longest are the flows with the most requests.
		Longest []FlowView `json:"longest,omitempty"`
	}
	// FlowView is one tenant's part of a band.
	FlowView struct {
		Tenant  string `json:"tenant"`
		Waiting int    `json:"waiting"`
	}
	// LeaseView is what may be taken back after dispatch.
	LeaseView struct {
		Tracked int `json:"tracked"`
		Pending int `json:"pending"` // asked back, not ended yet
		Target  int `json:"target"`  // of both, what those who wait could use
	}
	// WaitView are requests that wait and ask for the same.
	WaitView struct {
		Labels
		Requests, Bytes int64
	}
	// MeasureView is what a fairness policy tells of its service.
	MeasureView struct {
		Evenness float64
		Known    bool // whether there is an index
		Programs []ProgramView
	}
	// ProgramView is one program's service.
	ProgramView struct {
		Program          string
		WaitMS, Attained float64
	}
)

// mostBands bounds the bands of a pool on /debug/fleet.
const mostBands = 50

// looks are the queues that there are, by pool.
func (o *Observer) looks() []QueueView {
	if f := o.queues.views.Load(); f != nil {
		return (*f)()
	}
	return nil
}

// queueViews are the queues as /debug/fleet shows them.
func (o *Observer) queueViews() map[fleet.ID]*QueueView {
	out := map[fleet.ID]*QueueView{}
	for _, v := range o.looks() {
		if n := len(v.Bands); n > mostBands {
			v.Bands, v.Unlisted = v.Bands[:mostBands], n-mostBands
		}
		for i := range v.Bands {
			for k := range v.Bands[i].Longest {
				f := &v.Bands[i].Longest[k]
				f.Tenant = clean(f.Tenant)
			}
		}
		out[v.Pool] = &v
	}
	return out
}
