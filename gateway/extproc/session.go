// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/gateway/wire"
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
	Unreached(reason string)
	Answer(status int, h gateway.Headers) []gateway.Header
	Pass(p []byte)
	Restore() *request.Restorer
	OnEvict(e gateway.Evictee)
	Evicted() *gateway.Refusal
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

// longBody is the size from which on the work on a body is not to hold up the other streams of
// its connection.
const longBody = 64 << 10

// session is one stream, which is one HTTP request and its answer. It implements
// wire.Receiver, whose calls come one after the other.
type session struct {
	server *Server
	stream *wire.Stream
	msg    message
	x      exchange // nil before it began
	ended  bool
	opened time.Time // where streams are counted

	headers                   headers      // of the request, which x reads
	attached                  []wire.Piece // of the request body, in order; the references are its
	requestMode, responseMode mode
	bodyEnded                 bool // nothing more of the request is to come but trailers
	placed                    bool
	sized                     bool // the answer's head tells its length

	wait *waiting      // of the request, once it is to be placed
	kept *request.Body // of which the proxy has not taken all yet

	change  mutation
	scratch []byte
	list    []wire.Piece
}

// reset makes the session ready for another stream.
func (s *session) reset() {
	s.msg.reset()
	clear(s.headers)
	clear(s.attached)
	clear(s.change.set)
	clear(s.change.remove)
	*s = session{
		msg: s.msg, headers: s.headers[:0], attached: s.attached[:0], scratch: s.scratch[:0], list: s.list[:0],
		change: mutation{set: s.change.set[:0], remove: s.change.remove[:0]},
	}
}

// Message implements wire.Receiver.
func (s *session) Message(_ *wire.Stream, m *wire.Message) { s.after(s.message(m)) }

// HalfClose implements wire.Receiver.
func (s *session) HalfClose(*wire.Stream) { s.after(s.halfClosed()) }

// Closed implements wire.Receiver.
func (s *session) Closed(_ *wire.Stream, why error) { s.after(s.closed(why)) }

// after ends the stream if err says so. It is the last that is done in a call.
func (s *session) after(err error) {
	if err == nil {
		return
	}
	if e := s.left(); e != nil {
		err = e
	}
	var status *wire.Status // errors of sending concern a stream that is gone
	errors.As(err, &status)
	server, code := s.server, wire.OK
	if status != nil {
		code = status.Code
	}
	server.opt.Streams.Closed(s.opened, uint32(code))
	s.stream.Finish(status)
	s.reset()
	server.sessions.Put(s)
}

// contain makes a panic an error.
func (s *session) contain(err *error) {
	if p := recover(); p != nil {
		s.server.log.Error("panic in a stream", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		s.end(observe.Broken)
		*err = &wire.Status{Code: wire.Internal, Message: "internal error"}
	}
}

// left ends what nothing else has ended.
func (s *session) left() (err error) {
	defer s.contain(&err)
	s.end(observe.ClientLeft)
	return nil
}

// halfClosed decides what it means that the proxy has closed its side.
func (s *session) halfClosed() (err error) {
	defer s.contain(&err)
	if s.placed && s.responseMode == noBody {
		s.end(observe.Complete) // we were not to see the answer, or no more than its head
	}
	return errLeft
}

// closed decides what the end of the stream means.
func (s *session) closed(why error) (err error) {
	defer s.contain(&err)
	var status *wire.Status
	if !errors.As(why, &status) {
		return errLeft
	}
	if status.Code == wire.ResourceExhausted && s.x != nil {
		s.x.Fail(why)
		s.end(observe.Broken)
	}
	return status // as the proxy was told
}

// end ends the exchange, once.
func (s *session) end(end observe.End) {
	s.letGo()
	if s.x != nil && !s.ended {
		s.ended = true
		s.x.End(end)
	}
}

// letGo releases the body.
func (s *session) letGo() {
	if s.kept != nil {
		s.kept.Release()
		s.x.Body().Release()
		s.kept = nil
	}
}

// send sends a reply.
func (s *session) send(r reply) error {
	err := s.stream.Send(r.data...)
	if status, ok := err.(*wire.Status); ok && s.x != nil { // a message over a limit
		s.x.Fail(status)
		s.end(observe.Broken)
	}
	return err
}

// message handles one message.
func (s *session) message(data *wire.Message) (err error) {
	defer s.contain(&err)
	m := &s.msg
	m.reset()
	if err := m.decode(data.Pieces); err != nil {
		return s.unexpected("ProcessingRequest: " + err.Error())
	}
	switch {
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
		if r := s.restore(); r != nil && s.responseMode == fullDuplex {
			if rest := r.Finish(); len(rest) > 0 { // no piece of the body was its end
				if err := s.send(inlined(replyResponseBody, []wire.Piece{{P: rest}}, len(rest), false)); err != nil {
					return err
				}
			}
		}
		if err := s.send(plainResponseTrailers); err != nil {
			return err
		}
		s.end(observe.Complete)
		return nil
	}
}

func (s *session) unexpected(what string) error {
	return &wire.Status{Code: wire.InvalidArgument, Message: what}
}

// begin takes the request's headers.
func (s *session) begin() error {
	m := &s.msg
	if m.observing {
		return errDone // nobody waits for an answer
	}
	switch m.kind {
	case requestHeaders:
	case responseHeaders, responseBody, responseTrailers:
		return s.unasked()
	default:
		return s.unexpected("the first message must be request_headers: set request_header_mode to SEND")
	}
	s.requestMode, s.responseMode = fullDuplex, fullDuplex
	if m.hasProtocol {
		s.requestMode, s.responseMode = m.requestMode, m.responseMode
	}
	if s.requestMode >= grpcMessages || s.responseMode >= grpcMessages {
		return &wire.Status{Code: wire.Unimplemented, Message: fmt.Sprintf(
			"body mode %d is not supported: set request_body_mode and response_body_mode to FULL_DUPLEX_STREAMED", max(s.requestMode, s.responseMode))}
	}
	s.headers, m.headers = m.headers, s.headers
	s.x = s.server.begin(gateway.Head{
		Method: s.headers.Get(":method"), Path: s.headers.Get(":path"), Headers: &s.headers,
		Peer: peerOf(s.stream), Subset: m.subset, HasSubset: m.hasSubset,
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

// unasked passes on an answer whose request never came here: one of the proxy's own, such as its
// refusal of a request without a host.
func (s *session) unasked() error {
	m := &s.msg
	switch m.kind {
	case responseHeaders:
		s.responseMode = fullDuplex
		if m.hasProtocol {
			s.responseMode = m.responseMode
		}
		if err := s.send(plainResponseHeaders); err != nil {
			return err
		}
	case responseBody:
		if err := s.echoAnswer(); err != nil {
			return err
		}
	default:
		if err := s.send(plainResponseTrailers); err != nil {
			return err
		}
		return errDone
	}
	if m.end {
		return errDone
	}
	return nil
}

// peerOf is the address of the proxy.
func peerOf(stream *wire.Stream) netip.Addr {
	if a, ok := stream.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
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
		if r := s.take(m.body[i]); r != nil {
			return s.refuse(r)
		}
	}
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
func (s *session) take(p wire.Piece) *gateway.Refusal {
	if len(p.P) < worthAttaching {
		return s.x.Write(p.P)
	}
	p.Ref()
	if r := s.x.Attach(p.P, p.Buffer); r != nil {
		return r
	}
	s.attached = append(s.attached, p)
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

// choose has the endpoint chosen.
func (s *session) choose() (*gateway.Placement, *gateway.Refusal) {
	if s.x.Body().Size() > longBody || s.headers.has("content-encoding") { // a short one may become long
		s.stream.Detach()
	}
	s.x.OnEvict(s)
	s.wait = &waiting{stream: s.stream}
	defer s.wait.stop()
	return s.x.Place(s.wait)
}

// place has the endpoint chosen, and tells the proxy of it in the reply to its headers or body.
func (s *session) place(to kind, how sending) error {
	p, r := s.choose()
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
	d, s.scratch = decision(s.scratch, to, p, &s.change, whole, replace)
	if err := s.send(d); err != nil {
		return err
	}
	if how != nothing {
		if err := s.echo(body, how); err != nil {
			return err
		}
	}
	// What was sent lives on in the transport's hands; nothing else is needed of it while the answer
	// runs. What the proxy does not take yet goes on to count as memory of bodies.
	clear(s.attached)
	s.attached = s.attached[:0]
	s.kept = body
	if s.stream.Unsent() == 0 {
		s.letGo()
	}
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
	w := s.writer(replyRequestBody)
	defer s.written(&w)
	next := 0
	for p := range body.Chunks {
		var err error
		if i := s.find(p, next); i >= 0 {
			next = i
			err = w.view(wire.Piece{P: p, Buffer: s.attached[i].Buffer})
		} else {
			err = w.copied(p)
		}
		if err != nil {
			return err
		}
	}
	if !w.open && how == upToTrailers {
		return nil // an empty body
	}
	return w.flush(how == toTheEnd)
}

func (s *session) writer(field kind) bodyWriter {
	return bodyWriter{field: field, send: s.send, list: s.list}
}

// written takes the list of a writer back.
func (s *session) written(w *bodyWriter) {
	w.drop()
	s.list = w.list[:0]
}

// find tells which attached piece p is the start or the end of.
func (s *session) find(p []byte, next int) int {
	for i := next; i < len(s.attached); i++ {
		a := s.attached[i].P
		if len(p) <= len(a) && (&a[0] == &p[0] || &a[len(a)-1] == &p[len(p)-1]) {
			return i
		}
		if i > next {
			break // chunks and pieces are in the same order, so that it is this one or the next
		}
	}
	return -1
}

// refuse answers the request ourselves.
func (s *session) refuse(r *gateway.Refusal) error { return s.answer(r, observe.Refused) }

// Evict implements gateway.Evictee: the proxy is told to answer in the endpoint's stead, or to break the answer off.
func (s *session) Evict() {
	s.stream.Post(func() {
		if s.x == nil || s.ended {
			return
		}
		s.after(s.answer(s.x.Evicted(), observe.Evicted))
	})
}

// answer answers the request ourselves.
func (s *session) answer(r *gateway.Refusal, end observe.End) error {
	s.x.Refuse(r)
	if s.stream.Err() != nil || s.wait != nil && s.wait.gone() {
		s.end(observe.ClientLeft)
		return errLeft
	}
	details := "penstock: " + r.Code
	if r.Reason != "" {
		details = "penstock: " + r.Reason
	}
	answer := immediate(r.Status, r.Headers(), r.JSON(s.x.API()), details)
	s.end(end)
	if err := s.send(answer); err != nil {
		return err
	}
	return errDone
}

// responseHeaders takes the head of the answer, be it an endpoint's or the proxy's own.
func (s *session) responseHeaders() error {
	m := &s.msg
	s.letGo()
	var change mutation
	if !s.ended {
		s.x.Served(m.served)
		code, _ := strconv.Atoi(m.headers.Get(":status"))
		if m.unreached != "" {
			s.x.Unreached(m.unreached)
		}
		change.set = s.x.Answer(code, &m.headers)
	}
	if s.sized = m.headers.has("content-length"); s.sized && s.restore() != nil && s.responseMode != noBody && s.responseMode != buffered {
		change.remove = []string{"content-length"} // it will have another
	}
	r := plainResponseHeaders
	if change.set != nil || change.remove != nil {
		r = headersReply(replyResponseHeaders, &change)
	}
	if err := s.send(r); err != nil {
		return err
	}
	if m.end {
		s.end(observe.Complete)
	}
	return nil
}

// restore is what the answer's body passes through, nil when it goes on as it comes.
func (s *session) restore() *request.Restorer {
	if s.x == nil || s.ended {
		return nil
	}
	return s.x.Restore()
}

// responseBody passes a piece of the answer on at once.
func (s *session) responseBody() error {
	m := &s.msg
	for i := 0; i < len(m.body) && !s.ended; i++ {
		s.x.Pass(m.body[i].P)
	}
	var err error
	if r := s.restore(); r == nil {
		err = s.echoAnswer()
	} else if s.responseMode == fullDuplex {
		err = s.echoRestored(r)
	} else {
		err = s.replaceAnswer(r)
	}
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
	if n := sizeOf(m.body); n <= inline {
		return s.send(inlined(replyResponseBody, m.body, n, m.end))
	}
	w := s.writer(replyResponseBody)
	defer s.written(&w)
	for i := range m.body {
		if err := w.view(m.body[i]); err != nil {
			return err
		}
	}
	return w.flush(m.end)
}

// echoRestored is echoAnswer for an answer in which something changes. What does not is not copied.
func (s *session) echoRestored(r *request.Restorer) error {
	m := &s.msg
	w := s.writer(replyResponseBody)
	defer s.written(&w)
	for _, p := range m.body {
		var err error
		if out := r.Feed(p.P); shares(out, p.P) {
			err = w.view(wire.Piece{P: out, Buffer: p.Buffer})
		} else if len(out) > 0 {
			err = w.copied(out)
		}
		if err != nil {
			return err
		}
	}
	if m.end {
		if rest := r.Finish(); len(rest) > 0 {
			if err := w.copied(rest); err != nil {
				return err
			}
		}
	}
	return w.flush(m.end)
}

// shares reports whether a begins where b does.
func shares(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// replaceAnswer is what there is instead of an echo in the modes that have none: each piece is replaced
// where it changes. What is kept back must wait for another piece, so that in STREAMED mode an answer that
// breaks off within a name, and has trailers, ends at that name.
func (s *session) replaceAnswer(r *request.Restorer) error {
	m := &s.msg
	changed := false
	var body []byte
	for _, p := range m.body {
		out := r.Feed(p.P)
		changed = changed || len(out) != len(p.P) || len(out) > 0 && !shares(out, p.P)
		body = append(body, out...)
	}
	if m.end || s.responseMode != streamed { // else it is all that we get to see
		rest := r.Finish()
		body = append(body, rest...)
		changed = changed || len(rest) > 0
	}
	if !changed {
		return s.send(plainResponseBody)
	}
	var c mutation
	if s.sized && s.responseMode == buffered {
		c.set = []gateway.Header{{Name: "content-length", Value: strconv.Itoa(len(body))}}
	}
	return s.send(replaced(replyResponseBody, &c, body))
}
