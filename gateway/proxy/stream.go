// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

type flusher interface{ FlushError() error }

// stream is the way of an answer's body to the client.
type stream struct {
	c       *call
	flusher flusher
	live    bool // every piece goes on at once
	sse     bool
	fresh   bool // nothing was sent, or what was sent ends with a whole event
	restore *request.Restorer
}

// copy passes everything on, or breaks the call off. What comes last is not flushed: net/http
// sends it together with the end.
func (s *stream) copy(src source) {
	c := s.c
	for {
		p, err := src.next()
		if len(p) > 0 {
			if s.restore == nil {
				s.write(p)
			} else {
				s.write(s.restore.Feed(p))
			}
			if s.live && err == nil {
				s.flush()
			}
			c.x.Pass(p)
			if s.sse {
				s.fresh = bytes.HasSuffix(p, []byte("\n\n")) || bytes.HasSuffix(p, []byte("\r\n\r\n"))
			}
		}
		if err == nil {
			continue
		}
		if s.restore != nil {
			s.write(s.restore.Finish())
		}
		if err == io.EOF {
			return
		}
		s.broken(err)
	}
}

func (s *stream) write(p []byte) {
	if len(p) == 0 {
		return
	}
	if _, err := s.c.w.Write(p); err != nil {
		s.c.left()
	}
}

func (s *stream) flush() {
	if s.flusher != nil && s.flusher.FlushError() != nil {
		s.c.left()
	}
}

// broken ends an answer that the endpoint did not finish, so that the client cannot take it for
// whole: an error event where there are events, then the connection breaks. In the middle of an
// event there is no error event, because it would only make garbage of what is there.
func (s *stream) broken(err error) {
	c := s.c
	stopping := c.s.stopping.Load()
	if c.gone() && !stopping {
		c.left()
	}
	message := "the endpoint broke off its answer"
	if stopping {
		err, message = errStopping, "the gateway is shutting down"
	}
	c.end = observe.Broken
	if c.wasEvicted() {
		c.end, message = observe.Evicted, "the request was taken back for one of higher priority"
		err = errors.New(message)
	}
	c.x.Fail(err)
	c.s.Log.Debug("endpoint failed in its answer", slog.Any("error", err), slog.String("request", c.x.ID()))
	if s.sse && s.fresh {
		_, _ = c.w.Write(errorEvent(c.x.API(), message))
	}
	if s.flusher != nil {
		_ = s.flusher.FlushError()
	}
	c.sever()
}

// errorEvent is an error in the form of the API's stream.
func errorEvent(api request.API, message string) []byte {
	r := &gateway.Refusal{Status: http.StatusBadGateway, Type: "server_error", Code: "stream_interrupted", Message: message}
	var b bytes.Buffer
	switch api {
	case request.Messages:
		b.WriteString("event: error\ndata: ")
		b.Write(r.JSON(api))
	case request.Responses: // clients look for the error in the event, or in its error field
		b.WriteString("event: error\ndata: {\"type\":\"error\",\"code\":\"" + r.Code + "\",\"message\":\"" + message + "\",\"param\":null,")
		b.Write(r.JSON(api)[1:])
	default:
		b.WriteString("data: ")
		b.Write(r.JSON(api))
	}
	b.WriteString("\n\n")
	return b.Bytes()
}

// sever breaks the client's connection, or its stream in HTTP/2.
func (c *call) sever() {
	if !c.r.ProtoAtLeast(1, 1) {
		// To HTTP/1.0 the end of the connection is the end of the answer: only a reset tells.
		if nc, _, err := http.NewResponseController(c.w).Hijack(); err == nil {
			if tcp, ok := nc.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			nc.Close()
		}
	}
	panic(http.ErrAbortHandler)
}
