// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/gateway"
)

// newH2C makes the transport for pools that speak HTTP/2 without TLS. It shares the pool's way
// to dial, and so what may be dialled.
func newH2C(p *pool, idle time.Duration) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols:          &protocols,
		DialContext:        p.dial,
		DisableCompression: true,
		IdleConnTimeout:    idle,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
}

// tryH2C is try for endpoints that speak h2c.
func (c *call) tryH2C(ep *fleet.Endpoint) error {
	ctx := httptrace.WithClientTrace(c.ctx, &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
		if status != http.StatusContinue && c.r.ProtoAtLeast(1, 1) {
			clear(c.w.Header())
			copyFields(c.w.Header(), http.Header(h))
			c.w.WriteHeader(status)
		}
		return nil
	}})
	res, err := c.s.h2c.RoundTrip(c.h2cRequest(ctx, ep))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	clear(c.w.Header())
	copyFields(c.w.Header(), res.Header)
	for name := range res.Trailer { // the transport takes the announcement out of the header
		c.w.Header().Add("Trailer", name)
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	c.relay(ep, res.StatusCode, &h2cBody{res: res, buf: *buf})
	return nil
}

func (c *call) h2cRequest(ctx context.Context, ep *fleet.Endpoint) *http.Request {
	r := c.r
	u := &url.URL{Scheme: "http", Host: ep.Address}
	if t, err := url.ParseRequestURI(target(r)); err == nil {
		u.Path, u.RawPath, u.RawQuery, u.ForceQuery = t.Path, t.RawPath, t.RawQuery, t.ForceQuery
	}
	h := make(http.Header, len(r.Header)+4)
	for name, values := range r.Header {
		if !c.edits.drops(name) {
			h[name] = values
		}
	}
	for _, f := range c.edits.set {
		h.Set(f.Name, f.Value)
	}
	h.Set(gateway.Destination, ep.Address)
	if f := forwardedFor(r); f != "" {
		h.Set("X-Forwarded-For", f)
	}
	if names(r.Header["Te"], "trailers") {
		h.Set("Te", "trailers")
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = nil // none, instead of Go's
	}
	req := (&http.Request{
		Method: r.Method, URL: u, Host: r.Host, Header: h, Proto: "HTTP/2.0", ProtoMajor: 2,
		ContentLength: c.body.Len(), Trailer: r.Trailer, Body: http.NoBody,
	}).WithContext(ctx)
	if req.ContentLength > 0 {
		req.Body = c.body.Reader()
		req.GetBody = func() (io.ReadCloser, error) { return c.body.Reader(), nil }
	}
	return req
}

// copyFields copies an answer's headers, but for what is for one connection only.
func copyFields(to, from http.Header) {
	for name, values := range from {
		if !hopByHop(name) {
			to[name] = values
		}
	}
}

// h2cBody reads an answer's body piece by piece.
type h2cBody struct {
	res *http.Response
	buf []byte
}

func (b *h2cBody) next() ([]byte, error) {
	n, err := b.res.Body.Read(b.buf)
	return b.buf[:n], err
}

func (b *h2cBody) pending() bool       { return false }
func (b *h2cBody) ending() http.Header { return b.res.Trailer }
