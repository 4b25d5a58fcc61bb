// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/penstock-project/penstock/gateway"
)

// lower maps canonical header names to lower case, and canon the other way, so that neither
// direction allocates for names that are common.
var lower, canon = spellings()

func spellings() (lower, canon map[string]string) {
	lower, canon = map[string]string{}, map[string]string{}
	for _, n := range strings.Fields(`Accept Accept-Charset Accept-Encoding Accept-Language Access-Control-Allow-Credentials
		Access-Control-Allow-Headers Access-Control-Allow-Methods Access-Control-Allow-Origin Access-Control-Expose-Headers
		Access-Control-Max-Age Access-Control-Request-Headers Access-Control-Request-Method Age Anthropic-Beta Anthropic-Version
		Authorization Baggage Cache-Control Connection Content-Encoding Content-Language Content-Length Content-Type Cookie Date
		Dnt Etag Expect Forwarded Host Http2-Settings Idempotency-Key If-Modified-Since If-None-Match Keep-Alive Last-Modified Link
		Location Openai-Organization Openai-Processing-Ms Openai-Project Openai-Version Origin Pragma Priority Proxy-Authenticate
		Proxy-Authorization Proxy-Connection Range Referer Retry-After Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site Server
		Set-Cookie Te Traceparent Tracestate Trailer Transfer-Encoding Upgrade User-Agent Vary Via Www-Authenticate X-Accel-Buffering
		X-Api-Key X-Content-Type-Options X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Process-Time X-Real-Ip X-Request-Id
		X-Session-Id X-Stainless-Arch X-Stainless-Async X-Stainless-Helper-Method X-Stainless-Lang X-Stainless-Os
		X-Stainless-Package-Version X-Stainless-Read-Timeout X-Stainless-Retry-Count X-Stainless-Runtime
		X-Stainless-Runtime-Version X-Stainless-Timeout X-Gateway-Destination-Endpoint X-Gateway-Inference-Fairness-Id
		X-Gateway-Inference-Objective X-Llm-D-Inference-Fairness-Id X-Llm-D-Inference-Objective
		X-Gateway-Model-Name-Rewrite X-Llm-D-Model-Name-Rewrite`) {
		l := strings.ToLower(n)
		lower[n], canon[n], canon[l] = l, n, n
	}
	return lower, canon
}

// lowered is the name in lower case.
func lowered(name string) string {
	if l, ok := lower[name]; ok {
		return l
	}
	return strings.ToLower(name)
}

// canonical is the name as http.Header keeps it.
func canonical(name string) string {
	if c, ok := canon[name]; ok {
		return c
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

func joined(v []string) string {
	switch len(v) {
	case 0:
		return ""
	case 1:
		return v[0]
	}
	return strings.Join(v, ", ")
}

// asked reads a request's headers for the core. net/http keeps Host apart.
type asked http.Request

// Get implements [gateway.Headers].
func (a *asked) Get(name string) string {
	if name == "host" {
		return a.Host
	}
	return joined(a.Header[canonical(name)])
}

// Names implements [gateway.Headers].
func (a *asked) Names(yield func(string) bool) {
	for k := range a.Header {
		if !yield(lowered(k)) {
			return
		}
	}
}

// answered reads an answer's headers for the core.
type answered http.Header

// Get implements [gateway.Headers].
func (a answered) Get(name string) string { return joined(a[canonical(name)]) }

// Names implements [gateway.Headers].
func (a answered) Names(yield func(string) bool) {
	for k := range a {
		if !yield(lowered(k)) {
			return
		}
	}
}

// hopByHop reports whether the header, in canonical form, is for one connection only.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return false
}

// names reports whether a comma separated header, such as Connection, lists the token.
func names(values []string, token string) bool {
	for _, v := range values {
		for v != "" {
			var t string
			t, v, _ = strings.Cut(v, ",")
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// edits are the changes to a request's headers on the way to an endpoint.
type edits struct {
	connection []string // values of Connection, whose tokens stay behind
	remove     []string
	set        []gateway.Header
}

// drops reports whether the client's header, in canonical form, stays behind. Headers that this
// door writes itself count too.
func (e *edits) drops(name string) bool {
	switch name {
	case "Host", "Content-Length", "Expect", "X-Forwarded-For", "X-Gateway-Destination-Endpoint":
		return true
	}
	if hopByHop(name) || e.connection != nil && names(e.connection, name) {
		return true
	}
	for _, n := range e.remove {
		if len(n) == len(name) && strings.EqualFold(n, name) {
			return true
		}
	}
	for i := range e.set {
		if n := e.set[i].Name; len(n) == len(name) && strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// appendField appends a header line. What could end the line early is not sent at all.
func appendField(b []byte, name, value string) []byte {
	if strings.ContainsAny(value, "\r\n\x00") {
		return b
	}
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
}
