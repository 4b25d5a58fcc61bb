// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
)

// wantDecision checks the reply that carries a choice, and gives its header changes.
func wantDecision(t *testing.T, m *extprocv3.ProcessingResponse, common *extprocv3.CommonResponse, want string) (set map[string]string, removed []string) {
	t.Helper()
	if !common.GetClearRouteCache() {
		t.Error("the route cache is not cleared")
	}
	set = map[string]string{}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			t.Errorf("%s does not replace", h.Header.Key)
		}
		set[h.Header.Key] = string(h.Header.RawValue)
	}
	lb := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()
	if set[destinationKey] != want || lb[destinationKey].GetStringValue() != want {
		t.Errorf("destination is %q in the header, %q in metadata, want %q", set[destinationKey], lb[destinationKey], want)
	}
	return set, common.GetHeaderMutation().GetRemoveHeaders()
}

func TestPost(t *testing.T) {
	for _, c := range []struct {
		name     string
		size     int
		chunk    int
		emptyEnd bool
		trailers bool
	}{
		{"one message", 1000, 1000, false, false},
		{"empty", 0, 1, false, false},
		{"bytes, one a message", 3000, 1, false, false},
		{"16 KiB messages", 300_000, 16 << 10, false, false},
		{"64 KiB messages and an empty end", 300_000, 64 << 10, true, false},
		{"at the limit of a piece", 124_000, 124_000, false, false},
		{"just over it", 124_001, 124_001, false, false},
		{"8 MiB in one message", 8 << 20, 8 << 20, false, false},
		{"long and short pieces", 50_000, 511, true, false},
		{"ends with trailers", 100_000, 30_000, false, true},
		{"nothing but trailers", 0, 1, false, true},
	} {
		post := func(t *testing.T, opts ...grpc.CallOption) {
			r := newRig(t, newFake(0), Options{})
			call := r.open(opts...)
			body := text(c.size)
			call.send(reqHeadersMsg(false))
			var messages []*extprocv3.ProcessingRequest
			if c.size > 0 || !c.trailers {
				messages = chunks(body, c.chunk, c.emptyEnd)
			}
			if c.trailers {
				if n := len(messages); n > 0 {
					messages[n-1].GetRequestBody().EndOfStream = false
				}
				messages = append(messages, reqTrailersMsg())
			}
			go call.send(messages...)

			m := call.recv()
			wantDecision(t, m, m.GetRequestHeaders().GetResponse(), "10.0.0.1:8000")
			want := -1
			if c.trailers {
				want = c.size
			}
			if c.size > 0 || !c.trailers {
				if got := call.body(reqBody, want); !bytes.Equal(got, body) {
					t.Errorf("%d bytes came back, want %d, or they differ", len(got), len(body))
				}
			}
			if c.trailers && call.recv().GetRequestTrailers() == nil {
				t.Error("want trailers")
			}
			answer(call, 200, text(100_000), 40_000)
			call.finish()
			x := r.wantEnd(observe.Complete)
			if !bytes.Equal(x.sent, body) || x.status != 200 || x.served != "10.0.0.2:8000" || x.ctype != "text/event-stream" || !bytes.Equal(x.passed, text(100_000)) {
				t.Errorf("the gateway saw %d bytes, status %d, served %q, type %q, %d bytes of answer", len(x.sent), x.status, x.served, x.ctype, len(x.passed))
			}
			if x.head.Method != "POST" || x.head.Path != "/v1/chat/completions" || x.head.HasSubset {
				t.Errorf("the gateway saw head %+v", x.head)
			}
		}
		t.Run(c.name, func(t *testing.T) { post(t) })
		if c.size > 1<<20 {
			continue
		}
		t.Run(c.name+", compressed", func(t *testing.T) { post(t, grpc.UseCompressor(gzip.Name)) })
	}
}

// answer plays an answer and checks that it comes back, piece by piece.
func answer(c *call, status int, body []byte, chunk int) {
	c.t.Helper()
	c.send(respHeadersMsg(status, "text/event-stream", false))
	if h := c.recv().GetResponseHeaders(); h == nil || h.Response != nil {
		c.t.Errorf("response headers are answered by %v", h)
	}
	for len(body) > 0 {
		k := min(chunk, len(body))
		c.send(respBodyMsg(body[:k], false))
		if got := c.body(respBody, k); !bytes.Equal(got, body[:k]) {
			c.t.Fatal("the answer differs")
		}
		body = body[k:]
	}
	c.send(respBodyMsg(nil, true))
	if got := c.body(respBody, -1); len(got) != 0 {
		c.t.Errorf("%d bytes at the end", len(got))
	}
}

// BL-02: header-only requests go the same way, and end with their answer's headers or body.
func TestHeadersOnly(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t, newFake(0), Options{})
			c := r.open()
			c.send(reqHeadersMsg(true, ":method", method, ":path", "/v1/models"))
			m := c.recv()
			wantDecision(t, m, m.GetRequestHeaders().GetResponse(), "10.0.0.1:8000")
			if method == "HEAD" {
				c.send(respHeadersMsg(200, "application/json", true))
				c.recv()
			} else {
				c.send(respHeadersMsg(200, "application/json", false), respBodyMsg([]byte("{}"), true))
				c.recv()
				if got := c.body(respBody, -1); string(got) != "{}" {
					t.Errorf("got %q", got)
				}
			}
			c.finish()
			if x := r.wantEnd(observe.Complete); x.head.Method != method || x.body.Size() != 0 {
				t.Errorf("the gateway saw %+v", x.head)
			}
		})
	}
}

func TestResponseTrailersEndTheAnswer(t *testing.T) {
	r := newRig(t, newFake(0), Options{})
	c := r.open()
	c.send(reqHeadersMsg(true))
	c.recv()
	c.send(respHeadersMsg(200, "application/grpc", false), respBodyMsg([]byte("abc"), false), respTrailersMsg())
	c.recv()
	if got := c.body(respBody, 3); string(got) != "abc" {
		t.Errorf("got %q", got)
	}
	if c.recv().GetResponseTrailers() == nil {
		t.Error("want trailers")
	}
	c.finish()
	r.wantEnd(observe.Complete)
}

// Placement's edits reach the proxy; what only we may set is removed first, whatever its case.
func TestEdits(t *testing.T) {
	f := newFake(0)
	f.place = func(ctx context.Context, x *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
		p, _ := edited(f, bytes.ToUpper)(ctx, x)
		p.Destination = "10.0.0.1:8000,10.0.0.2:8000"
		p.Set, p.Remove = []gateway.Header{{Name: "x-request-id", Value: "made"}}, []string{"x-llm-d-inference-objective"}
		return p, nil
	}
	r := newRig(t, f, Options{})
	c := r.open()
	body := text(200_000)
	c.send(reqHeadersMsg(false, ":method", "POST", ":path", "/v1/completions", "X-Gateway-Destination-Endpoint", "169.254.169.254:80",
		"x-gateway-destination-endpoint", "10.0.0.9:1", "x-gateway-destination-endpoint-subset", "10.0.0.9", "content-length", "200000", "cookie", "a", "cookie", "b"))
	c.send(chunks(body, 16<<10, false)...)
	m := c.recv()
	set, removed := wantDecision(t, m, m.GetRequestHeaders().GetResponse(), "10.0.0.1:8000,10.0.0.2:8000")
	if set["x-request-id"] != "made" || set["content-length"] != "200000" {
		t.Errorf("set %v", set)
	}
	if want := []string{"x-llm-d-inference-objective", destinationKey, subsetKey}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want %v", removed, want)
	}
	if got := c.body(reqBody, -1); !bytes.Equal(got, bytes.ToUpper(body)) {
		t.Error("not the edited body")
	}
	c.cancel()
	if x := r.wantEnd(observe.ClientLeft); x.cookie != "a, b" {
		t.Errorf("cookie is %q", x.cookie)
	}
}

func TestSubset(t *testing.T) {
	value := func(v any) *structpb.Value {
		s, err := structpb.NewValue(v)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, c := range []struct {
		name string
		meta map[string]*structpb.Struct
		want []string
		has  bool
	}{
		{"none", nil, nil, false},
		{"other namespace", map[string]*structpb.Struct{"envoy.lb": {Fields: map[string]*structpb.Value{subsetKey: value("a")}}}, nil, false},
		{"other key", map[string]*structpb.Struct{subsetNamespace: {Fields: map[string]*structpb.Value{"x": value("a")}}}, nil, false},
		{"list", map[string]*structpb.Struct{subsetNamespace: {Fields: map[string]*structpb.Value{subsetKey: value([]any{"10.0.0.1", 5, "10.0.0.2:80"})}}}, []string{"10.0.0.1", "10.0.0.2:80"}, true},
		{"string", map[string]*structpb.Struct{subsetNamespace: {Fields: map[string]*structpb.Value{subsetKey: value("10.0.0.1, 10.0.0.2:80,")}}}, []string{"10.0.0.1", "10.0.0.2:80"}, true},
		{"empty list", map[string]*structpb.Struct{subsetNamespace: {Fields: map[string]*structpb.Value{subsetKey: value([]any{})}}}, nil, true},
		{"null", map[string]*structpb.Struct{subsetNamespace: {Fields: map[string]*structpb.Value{subsetKey: value(nil)}}}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, newFake(0), Options{})
			call := r.open()
			m := reqHeadersMsg(true)
			m.MetadataContext = &corev3.Metadata{FilterMetadata: c.meta}
			call.send(m)
			call.recv()
			call.finish()
			if x := r.outcome(); !slices.Equal(x.head.Subset, c.want) || x.head.HasSubset != c.has {
				t.Errorf("got %q %v, want %q %v", x.head.Subset, x.head.HasSubset, c.want, c.has)
			}
		})
	}
}

func TestRefusal(t *testing.T) {
	f := newFake(0)
	f.place = func(context.Context, *fakeExchange) (*gateway.Placement, *gateway.Refusal) {
		return nil, &gateway.Refusal{Status: 429, Reason: "rejected-saturated", Type: "overloaded_error", Message: "busy", RetryAfter: 1}
	}
	r := newRig(t, f, Options{})
	c := r.open()
	c.send(reqHeadersMsg(false), reqBodyMsg([]byte(`{"model":"m"}`), true))
	i := c.recv().GetImmediateResponse()
	set := map[string]string{}
	for _, h := range i.GetHeaders().GetSetHeaders() {
		set[h.Header.Key] = string(h.Header.RawValue)
	}
	if i.GetStatus().GetCode() != 429 || set["content-type"] != "application/json" || set[gateway.DroppedReason] != "rejected-saturated" || set["retry-after"] != "1" ||
		!strings.Contains(string(i.GetBody()), `"message":"busy"`) || !strings.Contains(i.GetDetails(), "rejected-saturated") {
		t.Errorf("got %v", i)
	}
	c.clean()
	if x := r.wantEnd(observe.Refused); x.refused.Status != 429 {
		t.Errorf("refused %+v", x.refused)
	}
}

// BL-04: the limit is enforced while the body comes in, not at its end.
func TestTooLarge(t *testing.T) {
	for _, chunk := range []int{1, 1000, 64 << 10, 1 << 20} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			r := newRig(t, newFake(100_000), Options{})
			ok := r.open()
			ok.send(reqHeadersMsg(false))
			ok.send(chunks(text(100_000), max(chunk, 100), false)...)
			ok.recv()
			if got := ok.body(reqBody, -1); !bytes.Equal(got, text(100_000)) {
				t.Error("at the limit the body differs")
			}
			ok.finish()
			r.outcome()

			c := r.open()
			c.send(reqHeadersMsg(false))
			go func() {
				b := text(100_001)
				for i := 0; i < len(b) && c.stream.Send(reqBodyMsg(b[i:min(i+chunk, len(b))], false)) == nil; i += chunk {
				}
			}()
			i := c.recv().GetImmediateResponse()
			if i.GetStatus().GetCode() != 413 || !strings.Contains(string(i.GetBody()), "100000") {
				t.Errorf("got %v", i)
			}
			c.clean()
			r.wantEnd(observe.Refused)
		})
	}
}

// Other body modes are answered in their own shape.
func TestModes(t *testing.T) {
	const (
		NONE      = filterv3.ProcessingMode_NONE
		STREAMED  = filterv3.ProcessingMode_STREAMED
		BUFFERED  = filterv3.ProcessingMode_BUFFERED
		PARTIAL   = filterv3.ProcessingMode_BUFFERED_PARTIAL
		GRPC      = filterv3.ProcessingMode_GRPC
		placement = "10.0.0.1:8000"
	)
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{BUFFERED, PARTIAL} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t, newFake(0), Options{})
			c := r.open()
			h := reqHeadersMsg(false)
			h.ProtocolConfig = modes(mode, mode)
			c.send(h)
			if m := c.recv(); m.GetRequestHeaders() == nil || m.GetRequestHeaders().Response != nil {
				t.Errorf("got %v", m)
			}
			c.send(reqBodyMsg(text(10_000), mode == BUFFERED))
			m := c.recv()
			wantDecision(t, m, m.GetRequestBody().GetResponse(), placement)
			if m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
				t.Error("the body was to stay")
			}
			c.send(respHeadersMsg(200, "application/json", false), respBodyMsg([]byte("{}"), true))
			c.recv()
			if m := c.recv(); m.GetResponseBody() == nil || m.GetResponseBody().Response != nil {
				t.Errorf("got %v", m)
			}
			c.finish()
			if x := r.wantEnd(observe.Complete); len(x.sent) != 10_000 || string(x.passed) != "{}" {
				t.Errorf("the gateway saw %d bytes", len(x.sent))
			}
		})
	}
	t.Run("BUFFERED with an edit", func(t *testing.T) {
		f := newFake(0)
		f.place = edited(f, bytes.ToUpper)
		r := newRig(t, f, Options{})
		c := r.open()
		h := reqHeadersMsg(false)
		h.ProtocolConfig = modes(BUFFERED, NONE)
		c.send(h)
		c.recv()
		c.send(reqBodyMsg([]byte("abc"), true))
		if b := c.recv().GetRequestBody().GetResponse().GetBodyMutation().GetBody(); string(b) != "ABC" {
			t.Errorf("got %q", b)
		}
		c.finish()
		r.wantEnd(observe.Complete)
	})
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{NONE, STREAMED} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t, newFake(0), Options{})
			c := r.open()
			h := reqHeadersMsg(false)
			h.ProtocolConfig = modes(mode, NONE)
			c.send(h)
			m := c.recv()
			wantDecision(t, m, m.GetRequestHeaders().GetResponse(), placement)
			if mode == STREAMED {
				c.send(reqBodyMsg([]byte("abc"), false), reqTrailersMsg())
				if m := c.recv(); m.GetRequestBody() == nil || m.GetRequestBody().Response != nil {
					t.Errorf("got %v", m)
				}
				if c.recv().GetRequestTrailers() == nil {
					t.Error("want trailers")
				}
			}
			c.send(respHeadersMsg(200, "application/json", false))
			c.recv()
			c.finish()
			r.wantEnd(observe.Complete)
		})
	}
	t.Run("GRPC", func(t *testing.T) {
		r := newRig(t, newFake(0), Options{})
		c := r.open()
		h := reqHeadersMsg(false)
		h.ProtocolConfig = modes(GRPC, GRPC)
		c.send(h)
		if _, err := c.stream.Recv(); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "FULL_DUPLEX_STREAMED") {
			t.Errorf("got %v", err)
		}
	})
}

// An answer of the proxy's own may come before the request is complete.
func TestLocalReply(t *testing.T) {
	r := newRig(t, newFake(0), Options{})
	c := r.open()
	c.send(reqHeadersMsg(false), reqBodyMsg(text(5000), false), respHeadersMsg(401, "text/plain", false), respBodyMsg([]byte("no"), true))
	if c.recv().GetResponseHeaders() == nil {
		t.Error("want response headers")
	}
	if got := c.body(respBody, -1); string(got) != "no" {
		t.Errorf("got %q", got)
	}
	c.finish()
	if x := r.wantEnd(observe.Complete); x.status != 401 {
		t.Errorf("status %d", x.status)
	}
}

// An answer of the proxy's own, to a request that it never showed us, passes.
func TestAnswerOfTheProxysOwn(t *testing.T) {
	r := newRig(t, newFake(0), Options{})
	for _, body := range []int{0, 300, 100_000} {
		call := r.open()
		call.send(respHeadersMsg(400, "text/plain", body == 0))
		if call.recv().GetResponseHeaders() == nil {
			t.Fatal("want the headers to pass")
		}
		if body > 0 {
			call.send(respBodyMsg(text(body), true))
			if got := call.body(respBody, -1); !bytes.Equal(got, text(body)) {
				t.Errorf("%d bytes came back of %d", len(got), body)
			}
		}
		if _, err := call.stream.Recv(); err != io.EOF {
			t.Errorf("ended with %v", err)
		}
	}
}
