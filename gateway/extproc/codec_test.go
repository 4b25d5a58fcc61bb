// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/gateway/wire"
)

// cut splits b into pieces of n bytes, with an empty one in between.
func cut(b []byte, n int) []wire.Piece {
	var s []wire.Piece
	for len(b) > 0 {
		k := min(n, len(b))
		s = append(s, wire.Piece{P: b[:k]}, wire.Piece{})
		b = b[k:]
	}
	return s
}

// agree checks that a message of ours says what the generated type does.
func agree(t *testing.T, m *message, p *extprocv3.ProcessingRequest) {
	t.Helper()
	var k kind
	var end bool
	var list []*corev3.HeaderValue
	var body []byte
	switch r := p.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		k, end, list = requestHeaders, r.RequestHeaders.GetEndOfStream(), r.RequestHeaders.GetHeaders().GetHeaders()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		k, end, list = responseHeaders, r.ResponseHeaders.GetEndOfStream(), r.ResponseHeaders.GetHeaders().GetHeaders()
	case *extprocv3.ProcessingRequest_RequestBody:
		k, end, body = requestBody, r.RequestBody.GetEndOfStream(), r.RequestBody.GetBody()
	case *extprocv3.ProcessingRequest_ResponseBody:
		k, end, body = responseBody, r.ResponseBody.GetEndOfStream(), r.ResponseBody.GetBody()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		k = requestTrailers
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		k = responseTrailers
	}
	if m.kind != k || m.end != end || m.observing != p.ObservabilityMode {
		t.Fatalf("kind %d end %v observing %v, want %d %v %v", m.kind, m.end, m.observing, k, end, p.ObservabilityMode)
	}
	var want headers
	for _, h := range list {
		v := h.GetValue()
		if len(h.GetRawValue()) > 0 {
			v = string(h.GetRawValue())
		}
		want = append(want, header{strings.ToLower(h.GetKey()), v})
	}
	if !slices.Equal(m.headers, want) {
		t.Fatalf("headers %q, want %q", m.headers, want)
	}
	var got []byte
	for i := range m.body {
		got = append(got, m.body[i].P...)
	}
	if !bytes.Equal(got, body) || sizeOf(m.body) != len(body) {
		t.Fatalf("body %q, want %q", got, body)
	}
	if c := p.ProtocolConfig; (c != nil) != m.hasProtocol || mode(c.GetRequestBodyMode()) != m.requestMode || mode(c.GetResponseBodyMode()) != m.responseMode {
		t.Fatalf("modes %v %d %d, want %v", m.hasProtocol, m.requestMode, m.responseMode, c)
	}
	meta := p.GetMetadataContext().GetFilterMetadata()
	subset, has := listOf(meta[subsetNamespace].GetFields()[subsetKey])
	served, _ := listOf(meta[namespace].GetFields()[servedKey])
	if !slices.Equal(m.subset, subset) || m.hasSubset != has || m.served != strings.Join(served, ",") {
		t.Fatalf("subset %q %v served %q, want %q %v %q", m.subset, m.hasSubset, m.served, subset, has, served)
	}
}

// listOf is what stringList should read.
func listOf(v *structpb.Value) (list []string, has bool) {
	switch v := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		for s := range strings.SplitSeq(v.StringValue, ",") {
			if s = strings.TrimSpace(s); s != "" {
				list = append(list, s)
			}
		}
		return list, true
	case *structpb.Value_ListValue:
		for _, e := range v.ListValue.GetValues() {
			if s, ok := e.GetKind().(*structpb.Value_StringValue); ok {
				list = append(list, s.StringValue)
			}
		}
		return list, true
	}
	return nil, false
}

// samples are messages of every kind.
func samples() []*extprocv3.ProcessingRequest {
	meta, err := structpb.NewStruct(map[string]any{subsetKey: []any{"10.0.0.1:80", 1, nil, "[fd00::10]:8000"}, "other": map[string]any{"a": true}})
	if err != nil {
		panic(err)
	}
	one, err := structpb.NewStruct(map[string]any{subsetKey: " 10.0.0.1:80,,10.0.0.2"})
	if err != nil {
		panic(err)
	}
	served := respHeadersMsg(503, "text/plain", true)
	served.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
		detailsKey: structpb.NewStringValue(resetEarly + "remote_connection_failure|delayed_connect_error:_Connection_refused}")}}}
	long := reqHeadersMsg(false, ":path", strings.Repeat("/x", 20_000), "cookie", "a", "cookie", "b", "empty", "", "bin", "\xff\x00")
	long.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetNamespace: meta, namespace: one}}
	old := reqHeadersMsg(true)
	old.ProtocolConfig = nil
	old.ObservabilityMode = true
	old.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": meta}
	old.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetNamespace: one}}
	old.GetRequestHeaders().Headers.Headers = []*corev3.HeaderValue{{Key: "X-Upper", Value: "v"}, {Key: "both", Value: "v", RawValue: []byte("raw")}, {}}
	buffered := reqBodyMsg([]byte("{}"), true)
	buffered.ProtocolConfig = modes(filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_NONE)
	return []*extprocv3.ProcessingRequest{{}, reqHeadersMsg(true), served, long, old, buffered, reqBodyMsg(nil, true), reqBodyMsg(nil, false), reqBodyMsg(text(100_000), false),
		respBodyMsg(text(300), true), reqTrailersMsg(), respTrailersMsg()}
}

func TestDecode(t *testing.T) {
	for _, p := range samples() {
		b, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 2, 3, 7, 100, 16 << 10, len(b) + 1} {
			var m message
			if err := m.decode(cut(b, n)); err != nil {
				t.Fatalf("%v: %v", p, err)
			}
			agree(t, &m, p)
		}
		// Two pieces, at every border there may be.
		for i := 0; i < len(b) && i < 1000; i++ {
			var m message
			if err := m.decode([]wire.Piece{{P: b[:i]}, {P: b[i:]}}); err != nil {
				t.Fatalf("%v at %d: %v", p, i, err)
			}
			agree(t, &m, p)
		}
		// What is cut short is either malformed for both or complete for both.
		for i := 0; i < len(b) && i < 1000; i++ {
			compare(t, b[:i], 7)
		}
	}
}

// What the proxy says of an answer of its own tells whether the endpoint was reached.
func TestUnreached(t *testing.T) {
	for details, want := range map[string]string{
		"via_upstream": "",
		"upstream_reset_before_response_started{connection_timeout}":     "connection_timeout",
		"upstream_reset_before_response_started{connection_termination}": "connection_termination",
		"upstream_reset_before_response_started{overflow}":               "",
		"upstream_reset_before_response_started":                         "",
	} {
		p := respHeadersMsg(503, "text/plain", true)
		p.Attributes = map[string]*structpb.Struct{"other": {}, "envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			detailsKey: structpb.NewStringValue(details), "response.flags": structpb.NewNumberValue(1)}}}
		b, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var m message
		if err := m.decode([]wire.Piece{{P: b}}); err != nil || m.unreached != want {
			t.Errorf("%s: got %q, %v, want %q", details, m.unreached, err, want)
		}
	}
}

// compare decodes b both ways. Ours may accept more, since it does not look at all of it.
func compare(t *testing.T, b []byte, n int) {
	t.Helper()
	var m message
	ours := m.decode(cut(b, n))
	var p extprocv3.ProcessingRequest
	theirs := proto.Unmarshal(b, &p)
	if theirs != nil {
		return
	}
	if ours != nil {
		t.Fatalf("%x is well-formed", b)
	}
	agree(t, &m, &p)
}

func FuzzDecode(f *testing.F) {
	for _, p := range samples() {
		if b, err := proto.Marshal(p); err == nil && len(b) < 10_000 {
			f.Add(b, uint8(5))
			f.Add(append(b, b...), uint8(200))
		}
	}
	// Twice the same member, another member, groups, unknown fields and wrong types.
	f.Add([]byte("\x22\x03\x0a\x01a\x22\x02\x10\x01"), uint8(1))
	f.Add([]byte("\x22\x03\x0a\x01a\x2a\x02\x10\x01"), uint8(2))
	f.Add([]byte("\x0b\x08\x01\x0c\x22\x00"), uint8(3))
	f.Add([]byte("\x20\x01\x25abcd\x21abcdefgh\xfa\x01\x01x"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) { compare(t, b, max(1, int(n))) })
}

func decoded(t *testing.T, r reply) *extprocv3.ProcessingResponse {
	t.Helper()
	var p extprocv3.ProcessingResponse
	if err := proto.Unmarshal(joined(r.data), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func joined(pieces []wire.Piece) []byte {
	var b []byte
	for _, p := range pieces {
		b = append(b, p.P...)
	}
	return b
}

func wantEqual(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func option(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

func TestEncodeDecision(t *testing.T) {
	for _, field := range []kind{replyRequestHeaders, replyRequestBody} {
		for _, long := range []int{1, 20, 3000} {
			destination := strings.Repeat("10.0.0.1:8000,", long)
			m := &mutation{set: []gateway.Header{{Name: destinationKey, Value: destination}, {Name: "x-request-id", Value: "1"}}, remove: []string{"a", strings.Repeat("b", 200)}}
			got, _ := decision([]byte("left over"), field, &gateway.Placement{Destination: destination}, m, []byte("new"), field == replyRequestBody)
			common := &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: []*corev3.HeaderValueOption{option(destinationKey, destination), option("x-request-id", "1")}, RemoveHeaders: m.remove}}
			want := &extprocv3.ProcessingResponse{DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
				namespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{destinationKey: structpb.NewStringValue(destination)}})}}}
			if field == replyRequestHeaders {
				want.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}
			} else {
				common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: []byte("new")}}
				want.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
			}
			wantEqual(t, decoded(t, got), want)
		}
	}
}

func TestEncodeImmediate(t *testing.T) {
	got := immediate(429, []gateway.Header{{Name: "retry-after", Value: "1"}}, []byte("{}"), "why")
	wantEqual(t, decoded(t, got), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode_TooManyRequests}, Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{option("retry-after", "1")}},
		Body: []byte("{}"), Details: "why"}}})
}

func TestEncodePlain(t *testing.T) {
	empty := &extprocv3.HeadersResponse{}
	wantEqual(t, decoded(t, plainRequestHeaders), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: empty}})
	wantEqual(t, decoded(t, plainResponseHeaders), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: empty}})
	body, trailers := &extprocv3.BodyResponse{}, &extprocv3.TrailersResponse{}
	wantEqual(t, decoded(t, plainRequestBody), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: body}})
	wantEqual(t, decoded(t, plainResponseBody), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: body}})
	wantEqual(t, decoded(t, plainRequestTrailers), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: trailers}})
	wantEqual(t, decoded(t, plainResponseTrailers), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: trailers}})
}

func streamedReply(field kind, b []byte, end bool) *extprocv3.ProcessingResponse {
	r := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: end}}}}}
	if field == replyRequestBody {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: r}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: r}}
}

func TestEncodeBody(t *testing.T) {
	for _, field := range []kind{replyRequestBody, replyResponseBody} {
		for _, n := range []int{0, 1, 100, 127, 128, 1000, 16_384, maxPiece - 1, maxPiece, maxPiece + 1, 3*maxPiece + 5} {
			for _, end := range []bool{false, true} {
				var sent []reply
				w := bodyWriter{field: field, send: func(r reply) error { sent = append(sent, encoded(joined(r.data))); return nil }}
				body := text(n)
				if err := w.view(wire.Piece{P: body[:n/2]}); err != nil {
					t.Fatal(err)
				}
				if err := w.copied(body[n/2:]); err != nil {
					t.Fatal(err)
				}
				if err := w.flush(end); err != nil {
					t.Fatal(err)
				}
				for i, r := range sent {
					part := body[i*maxPiece : min((i+1)*maxPiece, n)]
					wantEqual(t, decoded(t, r), streamedReply(field, part, end && i == len(sent)-1))
				}
				if len(sent) != max(1, (n+maxPiece-1)/maxPiece) {
					t.Errorf("%d bytes went in %d messages", n, len(sent))
				}
				if n <= inline {
					wantEqual(t, decoded(t, inlined(field, []wire.Piece{{P: body[:n/3]}, {P: body[n/3:]}}, n, end)), streamedReply(field, body, end))
				}
			}
		}
	}
	if n := len(bodyHead(nil, replyResponseBody, maxPiece, true)); n > headRoom {
		t.Errorf("a head takes %d bytes", n)
	}
}

// Streams are what costs; nothing of ours may be allocated for a piece that is passed on but the reply.
func TestAllocations(t *testing.T) {
	b, err := proto.Marshal(respBodyMsg(text(200), false))
	if err != nil {
		t.Fatal(err)
	}
	data := []wire.Piece{{P: b}}
	var m message
	if n := testing.AllocsPerRun(100, func() {
		m.reset()
		_ = m.decode(data)
	}); n != 0 {
		t.Errorf("%v allocations to decode a piece", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = inlined(replyResponseBody, m.body, sizeOf(m.body), false) }); n > 2 {
		t.Errorf("%v allocations to answer a piece", n)
	}
}
