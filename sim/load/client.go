// SPDX-License-Identifier: Apache-2.0

// Package load answers: how does a server answer? It has a client for OpenAI-compatible servers, which says when
// each token came and in a word what went wrong, and a meter and a screen for those who watch.
package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/request"
)

// Client asks one OpenAI-compatible server. It may be used by many goroutines at once.
type Client struct {
	// URL is where the API begins, as [Base] gives it.
	URL string
	// API is [request.Chat] or [request.Completions].
	API request.API
	// HTTP carries the requests. [NewTransport] makes what it needs.
	HTTP *http.Client
	// Header goes with every request.
	Header http.Header
	// Timeout bounds a request from its sending to its last byte; 0 for none.
	Timeout time.Duration
}

// NewTransport is a transport that keeps as many connections as there are requests at once, asks for
// no compression, and knows no proxies: what is between us and the server is measured as its own.
// config may be nil. With h2 it speaks HTTP/2 only, in clear text to http:// URLs.
func NewTransport(most int, config *tls.Config, h2 bool) *http.Transport {
	t := &http.Transport{
		MaxIdleConnsPerHost: most, IdleConnTimeout: time.Minute, DisableCompression: true, TLSClientConfig: config,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10,
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetHTTP2(h2)
	t.Protocols.SetUnencryptedHTTP2(h2)
	return t
}

// Base is where the API begins in what a person gave as its URL: without /v1 and what follows it.
func Base(said string) (string, error) {
	if !strings.Contains(said, "://") {
		said = "http://" + said
	}
	u, err := url.Parse(said)
	switch {
	case err != nil:
		return "", err
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%s: want an http or https URL", said)
	case u.Host == "":
		return "", fmt.Errorf("%s: has no host", said)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", fmt.Errorf("%s: want no user, query or fragment", said)
	}
	path := strings.TrimRight(u.Path, "/")
	for _, end := range []string{"/completions", "/chat", "/v1"} {
		path = strings.TrimSuffix(path, end)
	}
	u.Path = strings.TrimRight(path, "/")
	return u.String(), nil
}

// Ask is one request.
type Ask struct {
	// Body gives the body from its beginning; it is called again when a connection turns out to be
	// closed before anything was sent on it. Length is the body's in bytes.
	Body   func() io.ReadCloser
	Length int64
	// Header goes with this request, beside the client's own.
	Header http.Header
	// Text asks for the answer's text.
	Text bool
}

// Arrival is output that came in one piece.
type Arrival struct {
	At     time.Time
	Events int // that carried output, so far
	Tokens int // that the server says it generated so far, -1 where it does not say
}

// maxArrivals bounds what is kept of an answer's pace: what follows counts for its end only.
const maxArrivals = 1 << 14

// Answer is what came of a request. It may be used again: Send keeps its memory.
type Answer struct {
	// Endpoint is who answered, as a gateway that tells says it.
	Endpoint string
	// Status is the HTTP status, 0 when there was no answer at all.
	Status int
	// Fault is empty when the answer came to its end, else what went wrong in a word, fit for
	// counting: "connect", "reset", "timeout", "no answer", a status with the reason for which a
	// gateway dropped the request ("429 rejected-saturated"), "broken stream" (it ended without its
	// end marker), "error event", "bad event", "bad answer".
	Fault string
	// Said is what the server or the network said of a fault, cut off after some hundred bytes.
	Said string
	// Sent is when the request went out, and End when its last byte was there or it went wrong.
	Sent, End time.Time
	// Arrivals are the times at which output came, the first of them that of the first token; Last is
	// the last of them, of which there may be more than are kept. A JSON document has none.
	Arrivals []Arrival
	Last     time.Time
	// Events counts the events that carried output.
	Events int
	// Usage is what the server says it computed.
	Usage request.Usage
	// Text is what was generated, when it was asked for.
	Text string

	scan request.Answer
	buf  []byte
	text strings.Builder
}

// First is when the first token came, zero if none did.
func (a *Answer) First() time.Time {
	if len(a.Arrivals) == 0 {
		return time.Time{}
	}
	return a.Arrivals[0].At
}

// Tokens is how many tokens were generated: as the server says it, else one for each event with output.
func (a *Answer) Tokens() int {
	if a.Usage.Output >= 0 {
		return a.Usage.Output
	}
	return a.Events
}

const (
	maxEvent = 1 << 20 // the longest line of a stream that we read, in bytes
	maxSaid  = 300
	readSize = 16 << 10
)

// answers are kept for later: most of a client's garbage would be their buffers.
var answers = sync.Pool{New: func() any { return new(Answer) }}

// Borrow gives an answer to send with; [Answer.Return] gives it back.
func Borrow() *Answer { return answers.Get().(*Answer) }

// Return gives the answer back, after which it must not be used.
func (a *Answer) Return() { answers.Put(a) }

func (a *Answer) reset() {
	a.Endpoint, a.Status, a.Fault, a.Said, a.Text = "", 0, "", "", ""
	a.Sent, a.End, a.Last, a.Events = time.Time{}, time.Time{}, time.Time{}, 0
	a.Usage = request.Usage{Prompt: -1, Output: -1, Cached: -1}
	a.Arrivals = a.Arrivals[:0]
	if cap(a.buf) == 0 || cap(a.buf) > 4*readSize {
		a.buf = make([]byte, readSize)
	}
	a.buf = a.buf[:cap(a.buf)]
}

// Send sends a request and reads the answer to its end. What goes wrong is in the answer.
func (c *Client) Send(ctx context.Context, ask Ask, got *Answer) {
	got.reset()
	got.Sent = time.Now()
	defer func() { got.End = time.Now() }()
	if c.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, c.Timeout)
		defer stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+c.path(), ask.Body())
	if err != nil {
		got.fail("bad URL", err.Error())
		return
	}
	req.ContentLength = ask.Length
	req.GetBody = func() (io.ReadCloser, error) { return ask.Body(), nil }
	req.Header["Content-Type"] = isJSON
	c.dress(req, c.Header)
	c.dress(req, ask.Header)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		got.fail(faultOf(err), err.Error())
		return
	}
	defer func() { _ = resp.Body.Close() }()
	got.Endpoint, got.Status = resp.Header.Get("X-Penstock-Endpoint"), resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		got.refused(resp)
		return
	}
	// Some servers stream without saying so.
	got.read(resp.Body, c.API, !strings.Contains(resp.Header.Get("Content-Type"), "json"), ask.Text)
}

// dress adds headers; Host is no header to net/http.
func (c *Client) dress(req *http.Request, h http.Header) {
	for k, v := range h {
		req.Header[k] = v
		if k == "Host" && len(v) > 0 {
			req.Host = v[0]
		}
	}
}

var isJSON = []string{"application/json"}

func (c *Client) path() string {
	if c.API == request.Completions {
		return "/v1/completions"
	}
	return "/v1/chat/completions"
}

// refused reads an answer that is none.
func (a *Answer) refused(resp *http.Response) {
	fault := strconv.Itoa(resp.StatusCode)
	if reason := resp.Header.Get("X-Llm-D-Request-Dropped-Reason"); reason != "" && len(reason) < 64 {
		fault += " " + reason
	}
	n, _ := io.ReadFull(resp.Body, a.buf[:maxSaid])
	a.fail(fault, string(a.buf[:n]))
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection is used again
}

func (a *Answer) fail(fault, said string) {
	a.Fault = fault
	if len(said) > maxSaid {
		said = said[:maxSaid]
	}
	a.Said = strings.TrimSpace(strings.ToValidUTF8(said, "?"))
}

// read reads a body to its end.
func (a *Answer) read(body io.Reader, api request.API, sse, keep bool) {
	a.scan.Reset(api, sse)
	a.text.Reset()
	have := 0
	for {
		n, err := body.Read(a.buf[have:])
		have += n
		if n > 0 {
			fed := have
			if sse {
				fed = bytes.LastIndexByte(a.buf[:have], '\n') + 1
			}
			if fed > 0 && !a.feed(a.buf[:fed], sse, keep) {
				return
			}
			have = copy(a.buf, a.buf[fed:have])
			if a.scan.Done && sse {
				break
			}
			if have == len(a.buf) {
				if have >= maxEvent {
					a.fail("bad event", "a line of the stream is longer than a megabyte")
					return
				}
				a.buf = append(a.buf, make([]byte, len(a.buf))...)
			}
		}
		if err == io.EOF {
			a.scan.Finish()
			break
		}
		if err != nil {
			a.fail(faultOf(err), err.Error())
			return
		}
	}
	a.Events, a.Usage, a.Text = a.scan.Events, a.scan.Usage, a.text.String()
	switch {
	case a.scan.Done && sse:
		_, _ = io.CopyN(io.Discard, body, 4096) // so that the connection is used again
	case a.scan.Done:
		a.Last = time.Now()
	case sse:
		a.fail("broken stream", "it ended without data: [DONE]")
	default:
		a.fail("bad answer", "neither a stream of events nor a JSON document")
	}
}

// feed reads whole lines of a stream, or a piece of a JSON document. It tells whether to go on.
func (a *Answer) feed(p []byte, sse, keep bool) bool {
	a.scan.Feed(p)
	if !sse {
		return true
	}
	if a.scan.Output {
		a.Last = time.Now()
		if len(a.Arrivals) < maxArrivals {
			a.Arrivals = append(a.Arrivals, Arrival{At: a.Last, Events: a.scan.Events, Tokens: a.scan.Usage.Output})
		}
	}
	// A quote within a text is escaped, so that this is a key.
	if !keep && !bytes.Contains(p, []byte(`"error"`)) {
		return true
	}
	for line := range bytes.Lines(p) {
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if data = bytes.TrimSpace(data); !ok || len(data) == 0 || data[0] == '[' {
			continue
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			a.fail("bad event", err.Error())
			return false
		}
		if len(e.Error) > 0 && string(e.Error) != "null" {
			a.fail("error event", string(e.Error))
			return false
		}
		for _, c := range e.Choices {
			a.text.WriteString(c.Delta.Content + c.Text)
		}
	}
	return true
}

// event is what we read of a streamed event, beside what the gateway's own reader finds.
type event struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Text string `json:"text"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

// faultOf names a transport's error.
func faultOf(err error) string {
	var op *net.OpError
	var timeout net.Error
	var name *net.DNSError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.As(err, &op) && op.Op == "dial", errors.As(err, &name), errors.As(err, &cert), errors.As(err, &record), errors.As(err, &alert),
		errors.Is(err, syscall.ECONNREFUSED):
		return "connect"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "no answer"
}

// Models asks for the names of the models that the server has. A server that does not tell them has none; an
// error means that nobody is there, still not after waiting for so long.
func (c *Client) Models(ctx context.Context, wait time.Duration) ([]string, error) {
	for began := time.Now(); ; {
		models, err := c.models(ctx)
		if err == nil || faultOf(err) != "connect" {
			return models, ctx.Err()
		}
		if time.Since(began) >= wait {
			return nil, fmt.Errorf("nothing answers at %s: %w", c.URL, rootOf(err))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

const maxModels = 4 << 20 // bytes of the list

func (c *Client) models(ctx context.Context) ([]string, error) {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	c.dress(req, c.Header)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, maxModels)).Decode(&list) != nil {
		return nil, nil
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

// rootOf is the innermost error: what of it a person can use.
func rootOf(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}
