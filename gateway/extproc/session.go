// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// exchange is the part of a gateway.Exchange that this door uses.
type exchange interface {
	API() request.API
	Body() *request.Body
	Write(p []byte) *gateway.Refusal
	Attach(p []byte, owner request.Freer) *gateway.Refusal
	Place(ctx context.Context) (*gateway.Placement, *gateway.Refusal)
	Served(address string)
	Answer(status int, h gateway.Headers)
	Pass(p []byte)
	Refuse(r *gateway.Refusal)
	Fail(err error)
	End(end observe.End)
}

// worthAttaching is the length from which on a piece of a body stays in its receive buffer;
// shorter ones are packed together.
const worthAttaching = 512

// errLeft ends a stream whose proxy ended it, and errDone one that we answered ourselves.
var (
	errLeft = errors.New("the proxy ended the stream")
	errDone = errors.New("answered")
)

// session is one stream, which is one HTTP request and its answer. All of it runs on the
// goroutine of the stream, except for a receive while the request waits (see waiting).
type session struct {
	server *Server
	stream grpc.ServerStream
	msg    message
	out    reply
	x      exchange // nil before it began
	ended  bool

	headers                   headers // of the request, which x reads
	attached                  []piece // of the request body, in order
	requestMode, responseMode mode
	bodyEnded                 bool // nothing more of the request is to come but trailers
	placed                    bool

	wait *waiting // of the request, once it is to be placed

	change  mutation
	scratch []byte
}

// serve is the handler of a stream.
func (s *Server) serve(_ any, stream grpc.ServerStream) error {
	ss := s.sessions.Get().(*session)
	ss.server, ss.stream = s, stream
	err := ss.run()
	if ss.wait == nil || ss.wait.early == nil { // else a receive may still be under way
		ss.reset()
		s.sessions.Put(ss)
	}
	switch err {
	case errDone, errLeft, io.EOF:
		return nil
	}
	return err
}

// reset makes the session ready for another stream.
func (s *session) reset() {
	s.msg.free()
	s.msg.reset()
	clear(s.headers)
	clear(s.attached)
	clear(s.change.set)
	clear(s.change.remove)
	*s = session{
		msg: s.msg, headers: s.headers[:0], attached: s.attached[:0], scratch: s.scratch[:0],
		change: mutation{set: s.change.set[:0], remove: s.change.remove[:0]},
	}
}

// run serves the stream until it ends.
func (s *session) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.server.log.Error("panic in a stream", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			s.end(observe.Broken)
			err = status.Error(codes.Internal, "internal error")
		}
		s.end(observe.ClientLeft)
	}()
	for {
		if err := s.receive(); err != nil {
			s.closed(err)
			return err
		}
		if err := s.step(); err != nil {
			return err
		}
	}
}

// receive reads the next message.
func (s *session) receive() error {
	if s.wait != nil && s.wait.early != nil {
		err := <-s.wait.early
		s.wait.early = nil
		return err
	}
	s.msg.free()
	return s.stream.RecvMsg(&s.msg)
}

// closed decides what the end of the stream means.
func (s *session) closed(err error) {
	if err == io.EOF {
		if s.placed && s.responseMode == noBody {
			s.end(observe.Complete) // we were not to see the answer, or no more than its head
		}
		return
	}
	if status.Code(err) == codes.ResourceExhausted && s.x != nil {
		s.x.Fail(err)
		s.end(observe.Broken)
	}
}

// end ends the exchange, once.
func (s *session) end(end observe.End) {
	if s.x != nil && !s.ended {
		s.ended = true
		s.x.End(end)
	}
}

// send sends a reply.
func (s *session) send(r reply) error {
	s.out = r
	return s.stream.SendMsg(&s.out)
}

// step handles one message.
func (s *session) step() error {
	m := &s.msg
	switch {
	case m.err != nil:
		return status.Error(codes.InvalidArgument, "ProcessingRequest: "+m.err.Error())
	case m.kind == none:
		return nil // such as a window update
	case s.x == nil:
		return s.begin()
	case m.kind == requestHeaders:
		return s.unexpected("request_headers came twice")
	case m.kind == requestBody:
		return s.requestBody()
	case m.kind == requestTrailers:
		return s.requestTrailers()
	case m.kind == responseHeaders:
		return s.responseHeaders()
	case m.kind == responseBody:
		return s.responseBody()
	default:
		if err := s.send(plainResponseTrailers); err != nil {
			return err
		}
		s.end(observe.Complete)
		return nil
	}
}

func (s *session) unexpected(what string) error {
	return status.Error(codes.InvalidArgument, what)
}

// begin takes the request's headers.
func (s *session) begin() error {
	m := &s.msg
	if m.observing {
		return errDone // nobody waits for an answer
	}
	if m.kind != requestHeaders {
		return s.unexpected("the first message must be request_headers: set request_header_mode to SEND")
	}
	s.requestMode, s.responseMode = fullDuplex, fullDuplex
	if m.hasProtocol {
		s.requestMode, s.responseMode = m.requestMode, m.responseMode
	}
	if s.requestMode >= grpcMessages || s.responseMode >= grpcMessages {
		return status.Errorf(codes.Unimplemented, "body mode %d is not supported: set request_body_mode and response_body_mode to FULL_DUPLEX_STREAMED",
			max(s.requestMode, s.responseMode))
	}
	s.headers, m.headers = m.headers, s.headers
	s.x = s.server.begin(gateway.Head{
		Method: s.headers.Get(":method"), Path: s.headers.Get(":path"), Headers: &s.headers,
		Peer: peerOf(s.stream.Context()), Subset: m.subset, HasSubset: m.hasSubset,
	})
	switch {
	case m.end:
		s.bodyEnded = true
		return s.place(replyRequestHeaders, nothing)
	case s.requestMode == noBody || s.requestMode == streamed:
		return s.place(replyRequestHeaders, nothing) // the proxy waits for it before it sends a body
	case s.requestMode != fullDuplex:
		return s.send(plainRequestHeaders)
	}
	return nil
}

// peerOf is the address of the proxy.
func peerOf(ctx context.Context) netip.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*net.TCPAddr); ok {
			return a.AddrPort().Addr()
		}
	}
	return netip.Addr{}
}

// requestBody takes a piece of the request's body.
func (s *session) requestBody() error {
	m := &s.msg
	if s.bodyEnded {
		return s.unexpected("request_body after its end")
	}
	s.bodyEnded = m.end
	if s.placed { // before there was a body
		return s.send(plainRequestBody)
	}
	for i := range m.body {
		if r := s.take(&m.body[i]); r != nil {
			return s.refuse(r)
		}
	}
	m.free()
	switch {
	case s.requestMode != fullDuplex:
		s.bodyEnded = true
		return s.place(replyRequestBody, nothing)
	case m.end:
		return s.place(replyRequestHeaders, toTheEnd)
	}
	return nil
}

// take gives a piece of the request's body to the exchange.
func (s *session) take(e *piece) *gateway.Refusal {
	if len(e.p) < worthAttaching {
		return s.x.Write(e.p)
	}
	e.buf.Ref()
	if r := s.x.Attach(e.p, e.buf); r != nil {
		return r
	}
	s.attached = append(s.attached, *e)
	return nil
}

// requestTrailers ends a body that no piece has ended.
func (s *session) requestTrailers() error {
	s.bodyEnded = true
	if !s.placed {
		if s.requestMode != fullDuplex {
			return s.unexpected("request_trailers without a body need request_body_mode FULL_DUPLEX_STREAMED")
		}
		if err := s.place(replyRequestHeaders, upToTrailers); err != nil {
			return err
		}
	}
	return s.send(plainRequestTrailers)
}

// sending says how much of the body follows the decision.
type sending int

const (
	nothing      sending = iota // the proxy has the body, or there is none
	toTheEnd                    // all, the last piece ending the request
	upToTrailers                // all, the trailers ending the request
)

// place has the endpoint chosen, and tells the proxy of it in the reply to its headers or body.
// It does not read msg, which the next message may be received into meanwhile.
func (s *session) place(to kind, how sending) error {
	s.wait = &waiting{stream: s.stream, msg: &s.msg}
	p, r := s.x.Place(s.wait)
	s.wait.stop()
	if r != nil {
		return s.refuse(r)
	}
	s.placed = true
	s.mutate(p)
	body := p.Body
	if body == nil {
		body = s.x.Body()
	}
	var whole []byte
	replace := to == replyRequestBody && p.Body != nil
	if replace {
		for c := range body.Chunks {
			whole = append(whole, c...)
		}
	}
	var d reply
	d, s.scratch = decision(s.scratch, to, p.Destination, &s.change, whole, replace)
	if err := s.send(d); err != nil {
		return err
	}
	if how != nothing {
		if err := s.echo(body, how); err != nil {
			return err
		}
	}
	// What was sent lives on in gRPC's hands; nothing else is needed of it while the answer runs.
	clear(s.attached)
	s.attached = s.attached[:0]
	body.Release()
	s.x.Body().Release()
	return nil
}

// mutate makes the changes to the request's headers.
func (s *session) mutate(p *gateway.Placement) {
	c := &s.change
	c.remove = append(c.remove[:0], p.Remove...)
	for _, h := range s.headers {
		if strings.HasPrefix(h.name, destinationKey) && !contains(c.remove, h.name) {
			c.remove = append(c.remove, h.name)
		}
	}
	c.set = append(c.set[:0], gateway.Header{Name: destinationKey, Value: p.Destination})
	c.set = append(c.set, p.Set...)
	if p.Body != nil && s.headers.has("content-length") {
		c.set = append(c.set, gateway.Header{Name: "content-length", Value: strconv.FormatInt(p.Body.Len(), 10)})
	}
}

func contains(list []string, name string) bool {
	for _, s := range list {
		if s == name {
			return true
		}
	}
	return false
}

// echo sends the body on. What it shares with the receive buffers, all of it if there was no edit, is not
// copied.
func (s *session) echo(body *request.Body, how sending) error {
	w := bodyWriter{field: replyRequestBody, send: s.send}
	defer w.drop()
	next := 0
	for p := range body.Chunks {
		var err error
		if i, from := s.find(p, next); i >= 0 {
			next = i
			err = w.view(&s.attached[i], from, from+len(p))
		} else {
			err = w.copied(p, s.server.pool)
		}
		if err != nil {
			return err
		}
	}
	if w.now == nil && how == upToTrailers {
		return nil // an empty body
	}
	return w.flush(how == toTheEnd)
}

// find tells which attached piece p is the start or the end of, and where it begins there.
func (s *session) find(p []byte, next int) (i, from int) {
	for i = next; i < len(s.attached); i++ {
		a := s.attached[i].p
		switch n := len(a) - len(p); {
		case n < 0:
		case &a[0] == &p[0]:
			return i, 0
		case &a[len(a)-1] == &p[len(p)-1]:
			return i, n
		}
		if i > next {
			break // chunks and pieces are in the same order, so that it is this one or the next
		}
	}
	return -1, 0
}

// refuse answers the request ourselves.
func (s *session) refuse(r *gateway.Refusal) error {
	s.x.Refuse(r)
	if s.stream.Context().Err() != nil || s.wait != nil && s.wait.gone() {
		s.end(observe.ClientLeft)
		return errLeft
	}
	details := "penstock: " + r.Code
	if r.Reason != "" {
		details = "penstock: " + r.Reason
	}
	answer := immediate(r.Status, r.Headers(), r.JSON(s.x.API()), details)
	s.end(observe.Refused)
	if err := s.send(answer); err != nil {
		return err
	}
	return errDone
}

// responseHeaders takes the head of the answer, be it an endpoint's or the proxy's own.
func (s *session) responseHeaders() error {
	m := &s.msg
	if !s.ended {
		s.x.Served(m.served)
		code, _ := strconv.Atoi(m.headers.Get(":status"))
		s.x.Answer(code, &m.headers)
	}
	if err := s.send(plainResponseHeaders); err != nil {
		return err
	}
	if m.end {
		s.end(observe.Complete)
	}
	return nil
}

// responseBody passes a piece of the answer on at once.
func (s *session) responseBody() error {
	m := &s.msg
	for i := 0; i < len(m.body) && !s.ended; i++ {
		s.x.Pass(m.body[i].p)
	}
	err := s.echoAnswer()
	if err == nil && m.end {
		s.end(observe.Complete)
	}
	return err
}

func (s *session) echoAnswer() error {
	m := &s.msg
	if s.responseMode != fullDuplex {
		return s.send(plainResponseBody)
	}
	if n := m.size(); n <= inline {
		return s.send(inlined(replyResponseBody, m.body, n, m.end))
	}
	w := bodyWriter{field: replyResponseBody, send: s.send}
	defer w.drop()
	for i := range m.body {
		if err := w.view(&m.body[i], 0, len(m.body[i].p)); err != nil {
			return err
		}
	}
	return w.flush(m.end)
}
