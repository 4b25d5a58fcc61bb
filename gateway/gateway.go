// SPDX-License-Identifier: Apache-2.0

// Package gateway answers: what happens to one request, end to end?
//
// It is the only place that knows the order of the stages: parse, route, enter flow
// control, schedule, forward, outcome. Both doors (gateway/extproc and gateway/proxy)
// run this code; they only translate their protocol.
package gateway

import (
	"context"
	"net/netip"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// Headers reads a request's or an answer's headers by lower-case name. Several values of one
// name are joined by ", "; the empty string is "not there".
type Headers interface {
	Get(name string) string
}

// Head is what a door knows of a request before its body.
type Head struct {
	Method, Path string // path with query
	Headers      Headers
	Peer         netip.Addr // who is connected to us: the client, or Envoy
	// Subset are the addresses (ip or ip:port) the data plane limits the choice to;
	// HasSubset tells an empty list, which allows none, from no list.
	Subset    []string
	HasSubset bool
}

// Placement is where a request goes, and what to change on the way.
type Placement struct {
	Pool     *fleet.Pool
	Endpoint *fleet.Endpoint
	// Destination lists the chosen endpoint and its fallbacks, ip:port by comma, in order.
	Destination string
	// Set and Remove edit the request's headers; names are lower case. Remove comes first.
	// The destination header is the door's own business.
	Set    []Header
	Remove []string
	// Body is what to send, with edits applied; nil when it is to be sent as it came.
	Body *request.Body
}

// Header is one name and value.
type Header struct{ Name, Value string }

// Exchange is one request and the owner of all that it holds: memory, its place in a
// queue, its share of an endpoint. A door calls, in order: Write for each piece of the
// body, Place, then Answer, Pass for each piece of the answer, and End exactly once on
// every exit path (further calls do nothing). One goroutine at a time, except that
// Place ends early when its context does.
type Exchange struct{ exchange }

// API of a door, implemented in exchange.go:
//
//	func (g *Gateway) Begin(door string, h Head) *Exchange
//	    starts an exchange. It never fails; what is wrong shows in Write or Place.
//	func (x *Exchange) ID() string                      the request's id, taken from x-request-id or made
//	func (x *Exchange) Body() *request.Body             the body so far
//	func (x *Exchange) Write(p []byte) *Refusal         copies a piece of the body
//	func (x *Exchange) Attach(p []byte, owner request.Freer) *Refusal  takes a piece without copying; owner.Free when done
//	func (x *Exchange) Place(ctx) (*Placement, *Refusal) after the last piece (or none, for a request without body)
//	func (x *Exchange) Next() *fleet.Endpoint           connecting to the current endpoint failed before a byte
//	    of answer: moves the reservation to the next fallback and returns it, nil when none is left
//	func (x *Exchange) Served(address string)           what the data plane says really served
//	func (x *Exchange) Answer(status int, h Headers)    the answer's head
//	func (x *Exchange) Pass(p []byte)                   a piece of the answer's body, not kept
//	func (x *Exchange) Refuse(r *Refusal)               records that the door answered r itself
//	func (x *Exchange) Fail(err error)                  the endpoint broke off
//	func (x *Exchange) End(end observe.End)             releases everything and reports the outcome
//	func (g *Gateway) Models() []string                 union of the models served, for GET /v1/models
//	func (g *Gateway) Draining() bool

// Refusal is an answer of our own instead of an endpoint's. It is a closed set of causes.
type Refusal struct {
	Status  int    // HTTP status
	Reason  string // x-llm-d-request-dropped-reason, empty for client mistakes
	Type    string // error.type of the OpenAI and Anthropic error object
	Code    string // error.code, such as model_not_found
	Message string // one sentence for a person; no addresses
	Param   string
	// RetryAfter is sent as Retry-After in whole seconds, when above zero.
	RetryAfter time.Duration
}

// Error makes a Refusal an error.
func (r *Refusal) Error() string { return r.Message }

// methods implemented in refusal.go:
//
//	func (r *Refusal) JSON(api request.API) []byte     OpenAI-style, or Anthropic-style on its paths
//	func (r *Refusal) Headers() []Header               content-type, dropped reason, retry-after

type exchange struct{}

var _ = context.Background
var _ observe.End
