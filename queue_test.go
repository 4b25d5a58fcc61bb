// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
)

var queuePool = fleet.ID{Namespace: "default", Name: "p"}

// gateOf builds the gate of a document in testdata/flow_control, and gives the problems that are more than notes.
func gateOf(t *testing.T, name string) (flow.Gate, []string) {
	t.Helper()
	path := filepath.Join("testdata", "flow_control", name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, problems := config.Text(path, string(text), options(""))
	if cfg == nil {
		t.Fatal(config.Problems(problems))
	}
	var said []string
	for _, p := range problems {
		if p.Severity != config.Note {
			said = append(said, p.String())
		}
	}
	store := fleet.NewStore()
	s := &site{store: store, gw: gateway.New(gateway.Options{Store: store, Observer: observe.New(observe.Options{Store: store})})}
	l, err := s.buildLane(queuePool, cfg.Pickers[0])
	if err != nil {
		t.Fatal(err)
	}
	return l.Gate, said
}

// bandsOf shows a controller's bounds and bands, a line each.
func bandsOf(c *flow.Controller) string {
	s := c.State()
	out := fmt.Sprintf("requests=%d bytes=%d evict=%t\n", s.MaxRequests, s.MaxBytes, s.Evict)
	for _, b := range s.Bands {
		out += fmt.Sprintf("%d requests=%d bytes=%d share=%g\n", b.Priority, b.MaxRequests, b.MaxBytes, b.Share)
	}
	return out
}

// The whole section means what it says, without a word of complaint.
func TestFlowControlInFull(t *testing.T) {
	gate, said := gateOf(t, "everything.yaml")
	if len(said) > 0 {
		t.Errorf("complaints:\n%s", strings.Join(said, "\n"))
	}
	c, ok := gate.(*flow.Controller)
	if !ok {
		t.Fatalf("the gate is a %T", gate)
	}
	want := "requests=1000 bytes=10737418240 evict=true\n100 requests=500 bytes=1000000000 share=0\n0 requests=200 bytes=1000000000 share=0\n-10 requests=50 bytes=1000000000 share=0\n"
	if got := bandsOf(c); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if q, ok := c.Listener().(gateway.Queued); !ok || q.Detector != "concurrency-detector" {
		t.Errorf("the listener is %+v", c.Listener())
	}
}

// Without the gate nothing waits, and the detector that is named says when the pool is saturated.
func TestFlowControlOff(t *testing.T) {
	gate, _ := gateOf(t, "detector_alone.yaml")
	g, ok := gate.(*flow.Legacy)
	if !ok {
		t.Fatalf("the gate is a %T", gate)
	}
	e := &fleet.Endpoint{Load: &fleet.Load{}}
	ask := &flow.Ask{Key: flow.Key{Priority: -1}, Candidates: []*fleet.Endpoint{e}, Now: time.Now(), Stale: time.Second}
	for k := range 3 {
		if got := g.Saturation(ask); got != float64(k)/2 {
			t.Errorf("%d in flight: got saturation %g", k, got)
		}
		e.Load.Take(time.Now(), 0, 0)
	}
	if _, why := g.Enter(t.Context(), ask); why != flow.Saturated {
		t.Errorf("got %q", why)
	}
}

// The older version means the same; 0 is no bound of all, and a band's own wait goes before the gate's.
func TestFlowControlOfBefore(t *testing.T) {
	gate, said := gateOf(t, "before.yaml")
	if len(said) != 1 || !strings.Contains(said[0], "deprecated") {
		t.Errorf("complaints: %q", said)
	}
	c := gate.(*flow.Controller)
	want := "requests=0 bytes=0 evict=false\n0 requests=200 bytes=1000000000 share=0\n-10 requests=5000 bytes=1048576 share=0.25\n"
	if got := bandsOf(c); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestWaits works out how long requests wait by what is written.
func TestWaits(t *testing.T) {
	for _, x := range []struct {
		name, section    string
		ttl, empty, band time.Duration
	}{
		{name: "nothing", ttl: time.Minute, empty: time.Minute},
		{name: "one for both", section: "defaultRequestTTL: 5s", ttl: 5 * time.Second, empty: 5 * time.Second},
		{name: "each", section: "defaultRequestTTL: 5s, noEndpointRequestTTL: 9s", ttl: 5 * time.Second, empty: 9 * time.Second},
		{name: "no endpoints alone", section: "noEndpointRequestTTL: 9s", ttl: time.Minute, empty: 9 * time.Second},
		{name: "no bounds", section: "defaultRequestTTL: 0s", ttl: 0, empty: 0},
		{name: "a band's", section: "priorityBands: [{priority: 0, requestTTL: 3s}]", ttl: time.Minute, empty: time.Minute, band: 3 * time.Second},
		{name: "a band without a bound", section: "priorityBands: [{priority: 0, requestTTL: 0s}]", ttl: time.Minute, empty: time.Minute, band: forever},
	} {
		cfg, problems := config.Text(x.name, "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins: [{type: queue-scorer}]\nflowControl: {"+x.section+"}\n", options(""))
		if cfg == nil {
			t.Fatal(config.Problems(problems))
		}
		o, err := (&planner{built: map[string]any{}}).flowOptions(cfg.Pickers[0], flow.Options{Pool: queuePool, Store: fleet.NewStore()})
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]time.Duration{o.TTL, o.NoEndpointTTL, o.Bands[0].TTL}; !slices.Equal(got[:], []time.Duration{x.ttl, x.empty, x.band}) {
			t.Errorf("%s: got %v, want %v, %v, %v", x.name, got, x.ttl, x.empty, x.band)
		}
	}
}
