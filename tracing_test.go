// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// collector takes traces as a real one does, by gRPC and by HTTP.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracev1.Span
	named []string // services
}

// Export implements the OTLP service.
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				c.named = append(c.named, a.Value.GetStringValue())
			}
		}
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// ServeHTTP implements OTLP over HTTP.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m collectorv1.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &m)
	w.Header().Set("content-type", "application/x-protobuf")
}

// trace waits for the spans of a trace, and tells them as a tree.
func (c *collector) trace(t *testing.T, id string) (tree string, spans []*tracev1.Span) {
	t.Helper()
	until(t, "the trace", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		spans = nil
		for _, s := range c.spans {
			if hex.EncodeToString(s.TraceId) == id {
				spans = append(spans, s)
			}
		}
		return len(spans) > 0
	})
	var b strings.Builder
	var walk func(parent []byte, depth int)
	walk = func(parent []byte, depth int) {
		for _, s := range spans {
			if slices.Equal(s.ParentSpanId, parent) {
				fmt.Fprintf(&b, "%s%s\n", strings.Repeat("  ", depth), s.Name)
				walk(s.SpanId, depth+1)
			}
		}
	}
	root := slices.IndexFunc(spans, func(s *tracev1.Span) bool { return s.Name == "gateway.request" })
	if root >= 0 {
		walk(spans[root].ParentSpanId, 0)
	}
	return b.String(), spans
}

func attributeOf(s *tracev1.Span, key string) *commonv1.AnyValue {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

func TestTracing(t *testing.T) {
	for protocol, start := range map[string]func(t *testing.T, c *collector) string{
		"grpc": func(t *testing.T, c *collector) string {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			g := grpc.NewServer()
			collectorv1.RegisterTraceServiceServer(g, c)
			go func() { _ = g.Serve(lis) }()
			t.Cleanup(g.Stop)
			return lis.Addr().String() // bare, as some write it
		},
		"http/protobuf": func(t *testing.T, c *collector) string {
			s := httptest.NewServer(c)
			t.Cleanup(s.Close)
			return s.URL
		},
	} {
		t.Run(protocol, func(t *testing.T) {
			c := &collector{}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", start(t, c))
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
			e := newEngine(t, "m")
			urls, _, _ := doors(t, t.TempDir(), e)
			for i, door := range []string{"proxy", "extproc"} {
				traced(t, c, e, door, urls[door], i)
			}
			if len(c.named) == 0 || c.named[0] != "llm-d-epp" {
				t.Errorf("services %v", c.named)
			}
		})
	}
}

// traced sends requests through a door: one whose caller traces, one whose caller does not, and one that is refused.
func traced(t *testing.T, c *collector, e *engine, door, url string, i int) {
	t.Helper()
	ask := func(traceparent, prompt, prefer string) {
		t.Helper()
		r, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"`+prompt+`"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("content-type", "application/json")
		r.Header.Set("x-request-id", door)
		r.Header.Set("tracestate", "a=b")
		r.Header.Set("traceparent", traceparent)
		r.Header.Set("prefer", prefer)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	e.take()
	id := fmt.Sprintf("%031da", i+1)
	const parent = "00f067aa0ba902b7"
	ask("00-"+id+"-"+parent+"-01", "hi", "")
	tree, spans := c.trace(t, id)
	const want = `gateway.request
  gateway.request_orchestration
    run_scheduler_profile
      filter_endpoints
      llm_d.epp.scorer.`
	if !strings.HasPrefix(tree, want) || !strings.Contains(tree, "\n      pick_endpoints\n") || !strings.HasSuffix(tree, "\n  forward_request\n") {
		t.Errorf("%s: spans\n%s", door, tree)
	}
	sent := e.take()
	for _, s := range spans {
		if s.StartTimeUnixNano == 0 || s.EndTimeUnixNano < s.StartTimeUnixNano || s.Status.GetCode() != tracev1.Status_STATUS_CODE_UNSET || s.TraceState != "a=b" {
			t.Errorf("%s: %v", door, s)
		}
		switch s.Name {
		case "gateway.request":
			if hex.EncodeToString(s.ParentSpanId) != parent || s.Kind != tracev1.Span_SPAN_KIND_SERVER || attributeOf(s, "gen_ai.request.model").GetStringValue() != "m" ||
				attributeOf(s, "gen_ai.request.id").GetStringValue() != door || attributeOf(s, "http.response.status_code").GetIntValue() != 200 {
				t.Errorf("%s: %v", door, s)
			}
		case "gateway.request_orchestration":
			if attributeOf(s, "target_model").GetStringValue() != "m" || attributeOf(s, "request_prio") == nil {
				t.Errorf("%s: %v", door, s)
			}
		case "pick_endpoints":
			if got := attributeOf(s, "top_endpoints").GetArrayValue().GetValues(); len(got) != 1 || !strings.HasSuffix(got[0].GetStringValue(), "/e0") {
				t.Errorf("%s: %v", door, s)
			}
		case "forward_request":
			if got, want := sent[0].header.Get("traceparent"), "00-"+id+"-"+hex.EncodeToString(s.SpanId)+"-01"; got != want || sent[0].header.Get("tracestate") != "a=b" {
				t.Errorf("%s: the endpoint got %q, want %q", door, got, want)
			}
		}
	}

	quiet := "00-" + strings.Replace(id, "a", "b", 1) + "-" + parent + "-00"
	ask(quiet, "hi", "")
	if sent := e.take(); sent[0].header.Get("traceparent") != quiet {
		t.Errorf("%s: the endpoint got %q, want %q", door, sent[0].header.Get("traceparent"), quiet)
	}

	refused := strings.Replace(id, "a", "c", 1)
	ask("00-"+refused+"-"+parent+"-01", "who has this?", "if-available") // nobody
	for _, s := range second(c.trace(t, refused)) {
		if s.Name == "forward_request" || s.Name == "gateway.request" && (s.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR || s.Status.Message == "") {
			t.Errorf("%s, refused: %v", door, s)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(c.spans, func(s *tracev1.Span) bool { return hex.EncodeToString(s.TraceId)[31] == 'b' }) {
		t.Errorf("%s: a request is traced whose caller does not trace", door)
	}
}

func second[A, B any](_ A, b B) B { return b }
