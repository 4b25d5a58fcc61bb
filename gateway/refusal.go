// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/request"
)

// DroppedReason is the header that tells why a request was not served.
const DroppedReason = "x-llm-d-request-dropped-reason"

// The error types of the OpenAI error object.
const (
	invalidRequest = "invalid_request_error"
	overloaded     = "overloaded_error"
	serverError    = "server_error"
)

// Refusal is an answer of our own instead of an endpoint's. It is a closed set of causes.
type Refusal struct {
	Status  int    // HTTP status
	Reason  string // x-llm-d-request-dropped-reason, empty for client mistakes
	Type    string // error.type of the OpenAI and Anthropic error object
	Code    string // error.code, such as model_not_found
	Param   string // error.param, the field at fault
	Message string // one sentence for a person; no addresses
	// RetryAfter is sent as Retry-After in whole seconds, when above zero.
	RetryAfter time.Duration
}

// Error makes a Refusal an error.
func (r *Refusal) Error() string { return r.Message }

// JSON is the error object: OpenAI's, or Anthropic's on its paths.
func (r *Refusal) JSON(api request.API) []byte {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	optional := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	var v any
	if api.Anthropic() {
		v = map[string]any{"type": "error", "error": map[string]string{"type": r.anthropic(), "message": r.Message}}
	} else {
		v = map[string]any{"error": object{r.Message, r.Type, optional(r.Param), optional(r.Code)}}
	}
	b, err := json.Marshal(v)
	if err != nil { // strings always marshal
		panic(err)
	}
	return b
}

// anthropic is Anthropic's error type for the status.
func (r *Refusal) anthropic() string {
	switch r.Status {
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return overloaded
	}
	if r.Status >= 500 {
		return "api_error"
	}
	return invalidRequest
}

// Evicted reports whether the request was taken back after it was placed.
func (r *Refusal) Evicted() bool { return r.Reason == string(flow.Evicted) }

// Headers are the answer's headers beside its length.
func (r *Refusal) Headers() []Header {
	h := []Header{{"content-type", "application/json"}}
	if r.Reason != "" {
		h = append(h, Header{DroppedReason, r.Reason})
	}
	if r.RetryAfter > 0 {
		h = append(h, Header{"retry-after", strconv.Itoa(int(math.Ceil(r.RetryAfter.Seconds())))})
	}
	return h
}

// Refusals. Rule of thumb: 429 is capacity that is contended, 503 is no capacity now.

func tooLarge(limit int64) *Refusal {
	return &Refusal{Status: http.StatusRequestEntityTooLarge, Type: invalidRequest, Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than the limit of %d bytes (spec.limits.maxBodyBytes)", limit)}
}

func noMemory() *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Reason: string(flow.Saturated), Type: overloaded, RetryAfter: time.Second,
		Message: "the gateway holds as many request bytes as it may (spec.limits.maxBufferedBytes); try again"}
}

func badEncoding(status int, message string) *Refusal {
	return &Refusal{Status: status, Type: invalidRequest, Code: "content_encoding", Message: message}
}

// UnknownModel is the answer for a model that nobody serves.
func UnknownModel(model string) *Refusal {
	return &Refusal{Status: http.StatusNotFound, Type: invalidRequest, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %q does not exist; GET /v1/models lists those that do", model)}
}

func noEndpoints() *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Reason: string(flow.NoEndpoints), Type: overloaded, RetryAfter: time.Second,
		Message: "no endpoint is ready to serve this request"}
}

// notCached is the answer to Prefer: if-available when the best endpoint holds nothing of the prompt.
func notCached() *Refusal {
	return &Refusal{Status: http.StatusPreconditionFailed, Type: invalidRequest, Code: "prefix_not_cached",
		Message: "no endpoint holds a part of this prompt in its cache, and the request prefers not to be served then (Prefer: if-available)"}
}

// nobodyLeft is the answer when filters leave no endpoint: 429 as in the field, for they mostly tell of load.
func nobodyLeft() *Refusal {
	r := refusalOf(flow.Saturated)
	r.Message = "the filters of the configuration leave no endpoint for this request: those that may serve it are busy, or none may"
	return r
}

// noProfile is the answer when the request names no way to choose that there is.
func noProfile(why string) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Type: invalidRequest, Code: "unknown_profile", Message: why}
}

// notAdmitted is the answer when an admitter turns the request away.
func notAdmitted(why string) *Refusal {
	return &Refusal{Status: http.StatusTooManyRequests, Reason: string(flow.Saturated), Type: overloaded, RetryAfter: time.Second,
		Message: "the request is not admitted: " + why}
}

// refusalOf turns a gate's reason into an answer.
func refusalOf(reason flow.Reason) *Refusal {
	r := &Refusal{Status: http.StatusTooManyRequests, Reason: string(reason), Type: overloaded}
	switch reason {
	case flow.Saturated:
		r.Message, r.RetryAfter = "all endpoints are busy", time.Second
	case flow.TTLExpired:
		r.Message, r.RetryAfter = "the request waited as long as it may", time.Second
	case flow.NoEndpoints:
		return noEndpoints()
	case flow.Cancelled:
		r.Status, r.Message = http.StatusServiceUnavailable, "the client left"
	case flow.ShuttingDown:
		r.Status, r.Message, r.RetryAfter = http.StatusServiceUnavailable, "the gateway is shutting down", time.Second
	case flow.Evicted:
		r.Message, r.RetryAfter = "the request was evicted for one of higher priority", time.Second
	default:
		return InternalError()
	}
	return r
}

// InternalError is the answer when the fault is ours.
func InternalError() *Refusal {
	return &Refusal{Status: http.StatusInternalServerError, Reason: string(flow.Internal), Type: serverError, Message: "internal error"}
}
