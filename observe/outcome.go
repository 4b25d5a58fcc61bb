// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"
)

// End says how a request ended.
type End string

// The ends of a request.
const (
	Complete   End = "complete"          // the whole answer was passed on
	ClientLeft End = "client-disconnect" // the client went away first
	Broken     End = "error"             // the endpoint or the proxy broke off
	Refused    End = "refused"           // we answered ourselves; Reason and Status say why
	Evicted    End = "evicted"           // taken back after dispatch
)

// Labels are the request's identity in metrics: the label set M of the contract
// (model_name, target_model_name, fairness_id, priority).
type Labels struct {
	Model, Target, Tenant string
	Priority              int
}

// Unknown is the value of a token count that nobody told.
const Unknown = -1

// Part is one scorer's share of the winner's total.
type Part struct {
	Scorer string
	Score  float64 // before its weight, 0 to 1
	Weight float64
}

// Wait is what flow control made of a request. The zero Wait is none: it is off, or the request did not come so far.
type Wait struct {
	// Outcome is how the wait ended, also where there was none: Dispatched, RejectedCapacity and so on.
	Outcome string
	// For is what it waited for when it began to: endpoints, room, ceiling or turn; "" when it did not wait. The rest is
	// of that moment.
	For string
	// Ahead are those that waited with its priority or a higher one, Own those of its tenant and priority.
	Ahead, Own int
	// Flows are the tenants that waited with its priority, its own included.
	Flows int
}

// Outcome is all that is worth telling of one request when it ended.
// Durations are zero when the request did not get that far. No prompt text.
type Outcome struct {
	Labels
	ID                                 string
	Door                               string // proxy or extproc
	API                                string
	Path                               string // without its query
	Pool                               string // namespace/name
	Rewrite                            string // the InferenceModelRewrite whose rule chose Labels.Target
	Endpoint                           string // namespace/name
	Address                            string // ip:port that served, or was chosen
	Stream                             bool
	End                                End
	Status                             int    // HTTP status that the client saw
	Reason                             string // x-llm-d-request-dropped-reason, when refused
	Message                            string // why it was refused or broke
	Start                              time.Time
	Body                               time.Duration // until the request body was complete
	Queue                              time.Duration // waiting in flow control
	Wait                               Wait
	Schedule                           time.Duration // filters, scorers, picker
	Deciding                           time.Duration // from complete body to decision, queue excluded
	TTFT                               time.Duration // from Start to the first token
	Last                               time.Duration // from Start to the last token
	Duration                           time.Duration // from Start to the end
	Candidates                         int
	Score                              float64 // the winner's total
	Parts                              []Part
	Retries                            int
	Requeued                           int           // times that it was taken back and waited again
	Attempts                           []Attempt     // endpoints that failed before the one that answered
	Decision                           *Decision     // nil when it did not come to one
	Events                             int           // SSE events with output
	Gaps                               Gaps          // between them; when empty, the mean stands for all
	Answering                          time.Duration // our own work on the answer; 0 when not measured
	RequestBytes, ResponseBytes        int64
	PromptTokens, OutputTokens, Cached int // as the engine reported, Unknown when it did not
	EstimatedTokens, PredictedCached   int // as we estimated before dispatch
	// Tokenizer says who counted EstimatedTokens, and Untold, in a word, why not the one that was asked first; empty for nobody.
	Tokenizer, Untold string
	Trace             *TraceContext // nil when it is not sampled
}
