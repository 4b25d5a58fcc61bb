// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-project/penstock/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server with a client of generated types, in memory.
type rig struct {
	*fake
	t      *testing.T
	server *Server
	conn   *grpc.ClientConn
	client extprocv3.ExternalProcessorClient
	log    bytes.Buffer
	stop   func() error // stops the server and waits
}

func newRig(t *testing.T, f *fake, opt Options) *rig {
	t.Helper()
	r := &rig{fake: f, t: t}
	if opt.Drain == 0 {
		opt.Drain = 10 * time.Second
	}
	opt.Log = slog.New(slog.NewTextHandler(&r.log, nil))
	r.server = newServer(opt, f.begin)
	r.server.maxBody = f.max
	r.server.poison = true
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.server.Run(ctx, lis) }()
	var once atomic.Bool
	r.stop = func() error {
		cancel()
		if once.Swap(true) {
			return nil
		}
		return <-done
	}
	var err error
	r.conn, err = grpc.NewClient("passthrough:///x", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	r.client = extprocv3.NewExternalProcessorClient(r.conn)
	t.Cleanup(r.close)
	return r
}

// close checks that nothing is left.
func (r *rig) close() {
	if err := r.stop(); err != nil {
		r.t.Errorf("Run: %v", err)
	}
	r.conn.Close()
	if n := r.memory.Held(); n != 0 {
		r.t.Errorf("%d bytes of bodies are still held", n)
	}
	if n := r.server.transport.Live(); n != 0 {
		r.t.Errorf("%d buffers of the transport were not given back", n)
	}
}

// open begins a stream.
func (r *rig) open(opts ...grpc.CallOption) *call {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	stream, err := r.client.Process(ctx, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cancel)
	return &call{t: r.t, stream: stream, cancel: cancel}
}

// outcome waits for the exchange to end.
func (r *rig) outcome() *fakeExchange {
	r.t.Helper()
	select {
	case x := <-r.ended:
		return x
	case <-time.After(30 * time.Second):
		r.t.Fatal("the exchange did not end")
		return nil
	}
}

// wantEnd checks how the exchange ended: once.
func (r *rig) wantEnd(want observe.End) *fakeExchange {
	r.t.Helper()
	x := r.outcome()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.ends) == 0 || x.ends[0] != want {
		r.t.Errorf("ended as %v, want %v", x.ends, want)
	}
	return x
}

// call is a client's side of a stream.
type call struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]
	cancel context.CancelFunc
}

func (c *call) send(messages ...*extprocv3.ProcessingRequest) {
	c.t.Helper()
	for _, m := range messages {
		if err := c.stream.Send(m); err != nil {
			c.t.Errorf("send: %v", err) // not Fatal: tests send from goroutines of their own
			return
		}
	}
}

func (c *call) recv() *extprocv3.ProcessingResponse {
	c.t.Helper()
	m, err := c.stream.Recv()
	if err != nil {
		c.t.Fatalf("recv: %v", err)
	}
	return m
}

// finish closes our side, and expects a clean end.
func (c *call) finish() {
	c.t.Helper()
	if err := c.stream.CloseSend(); err != nil {
		c.t.Fatal(err)
	}
	c.clean()
}

// clean expects the stream to be over.
func (c *call) clean() {
	c.t.Helper()
	if m, err := c.stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Fatalf("got %v, %v at the end", m, err)
	}
}

// body receives a streamed body until its end, or n bytes when the end is not to be.
func (c *call) body(of func(*extprocv3.ProcessingResponse) *extprocv3.BodyResponse, n int) []byte {
	c.t.Helper()
	var b []byte
	for {
		s := of(c.recv()).GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil {
			c.t.Fatal("want a streamed response")
		}
		if len(s.Body) > 62_000 {
			c.t.Errorf("a piece of %d bytes", len(s.Body))
		}
		b = append(b, s.Body...)
		if s.EndOfStream || n >= 0 && len(b) >= n {
			if s.EndOfStream != (n < 0) {
				c.t.Errorf("end of stream is %v", s.EndOfStream)
			}
			return b
		}
	}
}

func reqBody(m *extprocv3.ProcessingResponse) *extprocv3.BodyResponse  { return m.GetRequestBody() }
func respBody(m *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return m.GetResponseBody() }

func newClient(c *grpc.ClientConn) extprocv3.ExternalProcessorClient {
	return extprocv3.NewExternalProcessorClient(c)
}

// Messages of a proxy.

var chatHeaders = []string{":method", "POST", ":path", "/v1/chat/completions", ":authority", "x", "content-type", "application/json", "x-request-id", "r1"}

func headerMap(kv []string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func reqHeadersMsg(end bool, kv ...string) *extprocv3.ProcessingRequest {
	if len(kv) == 0 {
		kv = chatHeaders
	}
	return &extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(kv), EndOfStream: end}},
		ProtocolConfig: modes(filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED),
	}
}

func modes(request, response filterv3.ProcessingMode_BodySendMode) *extprocv3.ProtocolConfiguration {
	return &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
}

func reqBodyMsg(b []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}

func reqTrailersMsg() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap([]string{"x-sum", "1"})}}}
}

func respHeadersMsg(status int, contentType string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap([]string{":status", strconv.Itoa(status), "content-type", contentType}), EndOfStream: end}},
		MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-served": structpb.NewStringValue("10.0.0.2:8000")}}}},
	}
}

func respBodyMsg(b []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}

func respTrailersMsg() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// chunks cuts b into n-byte messages, the last of which ends the body, or an empty one after it.
func chunks(b []byte, n int, emptyEnd bool) []*extprocv3.ProcessingRequest {
	var m []*extprocv3.ProcessingRequest
	for len(b) > 0 {
		k := min(n, len(b))
		m = append(m, reqBodyMsg(b[:k], k == len(b) && !emptyEnd))
		b = b[k:]
	}
	if emptyEnd || len(m) == 0 {
		m = append(m, reqBodyMsg(nil, true))
	}
	return m
}

// text is n bytes that repeat at no power of two.
func text(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := 0; len(b) < n; i++ {
		b = append(b, "chat "...)
		b = strconv.AppendInt(b, int64(i), 36)
	}
	return b[:n]
}
