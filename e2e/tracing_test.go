// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/penstock-project/penstock/e2e/rig"
)

// collector takes traces as OpenTelemetry's does.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string]map[string]*tracev1.Span // by trace and by name
}

// Export implements the OTLP service.
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				id := hex.EncodeToString(s.TraceId)
				if c.spans[id] == nil {
					c.spans[id] = map[string]*tracev1.Span{}
				}
				c.spans[id][s.Name] = s
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *collector) trace(id string) map[string]*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans[id]
}

// TestEnvoyTraces sends requests with trace headers through Envoy: what is sampled goes to a collector as a part of the caller's
// trace and reaches the engine as its parent's child; what is not leaves no span and arrives as it was sent.
func TestEnvoyTraces(t *testing.T) {
	c := &collector{spans: map[string]map[string]*tracev1.Span{}}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	receiver := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(receiver, c)
	go receiver.Serve(lis)
	t.Cleanup(receiver.Stop)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")

	engines := rig.Engines(t, 1)
	gateway, _ := rig.EPP(t, nil, engines[0].Addr)
	gateway.Ready(t, 1)
	served(t, gateway, engines)

	const sampled, quiet, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "4bf92f3577b34da6a3ce929d0e0e4737", "00f067aa0ba902b7"
	ask := func(traceparent string) (atEngine http.Header) {
		t.Helper()
		engines[0].Forget()
		header := http.Header{"Traceparent": {traceparent}, "Tracestate": {"vendor=1"}}
		a := rig.Post(t, gateway.HTTP, strings.NewReader(rig.Body("hello", true)), header)
		if err := a.Whole(); err != nil || a.Status != http.StatusOK {
			t.Fatalf("%+v, %v", a, err)
		}
		seen := engines[0].Seen()
		if len(seen) != 1 {
			t.Fatalf("the engine saw %d requests", len(seen))
		}
		if got := seen[0].Header["Tracestate"]; len(got) != 1 || got[0] != "vendor=1" {
			t.Errorf("the engine got the tracestate %q", got)
		}
		return seen[0].Header
	}
	header := "00-" + quiet + "-" + parent + "-00"
	if got := ask(header)["Traceparent"]; len(got) != 1 || got[0] != header {
		t.Errorf("not sampled: the engine got %q, want %q", got, header)
	}
	got := ask("00-" + sampled + "-" + parent + "-01")["Traceparent"]
	var spans map[string]*tracev1.Span
	rig.Eventually(t, "the trace to be collected", func() error {
		if spans = c.trace(sampled); spans["gateway.request"] == nil || spans["forward_request"] == nil {
			return errors.New("no gateway.request with a forward_request")
		}
		return nil
	})
	root, forward := spans["gateway.request"], spans["forward_request"]
	if id := hex.EncodeToString(root.ParentSpanId); id != parent {
		t.Errorf("the parent of gateway.request is %s, want %s", id, parent)
	}
	if string(forward.ParentSpanId) != string(root.SpanId) {
		t.Errorf("forward_request is not a child of gateway.request: %v", forward)
	}
	if want := "00-" + sampled + "-" + hex.EncodeToString(forward.SpanId) + "-01"; len(got) != 1 || got[0] != want {
		t.Errorf("the engine got %q, want %q", got, want)
	}
	if spans := c.trace(quiet); spans != nil { // it was sent before the other
		t.Errorf("spans of a request that is not sampled: %v", spans)
	}
}
