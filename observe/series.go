// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
)

// What clients may put into labels is bounded, for the life of the process.
const (
	// MaxValues bounds the distinct models, and the distinct tenants; later ones are Other.
	// A model that some endpoint serves is never folded.
	MaxValues = 1000
	// MaxSets bounds the distinct sets of labels. Beyond it new sets lose their tenant, then their model.
	MaxSets = 500
	// MaxLabel bounds one value, in bytes; longer ones are cut.
	MaxLabel = 128
	// Other stands for what was not admitted.
	Other = "other"
)

// errorCodes are the values of error_code.
var errorCodes = [...]string{
	"BadRequest", "Unauthorized", "Forbidden", "NotFound", "PreconditionFailed", "ResourceExhausted",
	"Internal", "ServiceUnavailable", "ModelServerError", "ClientCancelled", "Unknown",
}

const (
	badRequest = iota
	unauthorized
	forbidden
	notFound
	preconditionFailed
	resourceExhausted
	internal
	serviceUnavailable
	modelServerError
	clientCancelled
	unknownError
	noError = -1
)

// codeOf says which error an outcome counts as.
func codeOf(o *Outcome) int {
	switch o.End {
	case ClientLeft:
		return clientCancelled
	case Broken:
		return modelServerError
	case Evicted:
		return resourceExhausted
	case Complete:
		if o.Status < 400 {
			return noError
		}
		return modelServerError
	}
	switch o.Status {
	case 400, 405, 413, 415:
		return badRequest
	case 401:
		return unauthorized
	case 403:
		return forbidden
	case 404:
		return notFound
	case 412:
		return preconditionFailed
	case 429:
		return resourceExhausted
	case 502, 504:
		return modelServerError
	case 503:
		return serviceUnavailable
	case 500:
		return internal
	}
	return unknownError
}

// series is all that is counted for one set of labels.
type series struct {
	labels Labels // as exported
	pairs  []*dto.LabelPair

	total   atomic.Uint64
	errors  [len(errorCodes)]atomic.Uint64
	running atomic.Int64

	duration, requestSize, responseSize hist
	input, output, cached               hist
	ntpot, tpot, itl                    hist
	ttft                                [2]hist // whole, streamed

	entered timings // flow control, in whatever queue
	queues  atomic.Pointer[[]*inQueue]
}

func newSeries(l Labels) *series {
	s := &series{labels: l, pairs: []*dto.LabelPair{
		pair("fairness_id", l.Tenant), pair("model_name", l.Model),
		pair("priority", strconv.Itoa(l.Priority)), pair("target_model_name", l.Target),
	}}
	all := []struct {
		h *hist
		b []float64
	}{
		{&s.duration, durationBounds}, {&s.requestSize, sizeBounds}, {&s.responseSize, responseBounds},
		{&s.input, tokenBounds}, {&s.output, outputBounds}, {&s.cached, tokenBounds},
		{&s.ntpot, ntpotBounds}, {&s.tpot, tpotBounds}, {&s.itl, itlBounds},
		{&s.ttft[0], ttftBounds}, {&s.ttft[1], ttftBounds},
	}
	n := 0
	for _, x := range all {
		n += len(x.b) + 1
	}
	slab := make([]atomic.Uint64, n)
	for _, x := range all {
		slab = x.h.init(x.b, slab)
	}
	return s
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// count adds one outcome.
func (s *series) count(o *Outcome) {
	s.total.Add(1)
	if c := codeOf(o); c != noError {
		s.errors[c].Add(1)
	}
	s.requestSize.observe(float64(o.RequestBytes))
	if o.Endpoint == "" {
		return // never dispatched: it has no latency worth the name
	}
	s.duration.observe(o.Duration.Seconds())
	s.responseSize.observe(float64(o.ResponseBytes))
	if o.PromptTokens > 0 {
		s.input.observe(float64(o.PromptTokens))
	}
	if o.Cached >= 0 {
		s.cached.observe(float64(o.Cached))
	}
	tokens := outputTokens(o)
	if tokens > 0 {
		s.output.observe(float64(tokens))
		if o.End == Complete {
			s.ntpot.observe(o.Duration.Seconds() / float64(tokens))
		}
	}
	if o.TTFT <= 0 {
		return
	}
	if !o.Stream {
		s.ttft[0].observe(o.TTFT.Seconds())
		return
	}
	s.ttft[1].observe(o.TTFT.Seconds())
	if tokens > 1 && o.Last >= o.TTFT {
		s.tpot.observe((o.Last - o.TTFT).Seconds() / float64(tokens-1))
	}
	s.countGaps(o)
}

// outputTokens is what the engine reported. For a stream that was not asked to report it is the
// number of events with output, since engines send one for each token or few.
func outputTokens(o *Outcome) int {
	if o.OutputTokens < 0 && o.Stream {
		return o.Events
	}
	return o.OutputTokens
}

func (s *series) countGaps(o *Outcome) {
	if o.Gaps != (Gaps{}) {
		s.itl.addGaps(&o.Gaps)
	} else if o.Events > 1 && o.Last > o.TTFT {
		var g Gaps
		g.add((o.Last-o.TTFT)/time.Duration(o.Events-1), uint32(o.Events-1))
		s.itl.addGaps(&g)
	}
}

// table finds the series of a set of labels.
type table struct {
	served func(model string) bool // a model that is never folded

	mu      sync.RWMutex
	sets    map[Labels]*series
	models  map[string]bool
	tenants map[string]bool
}

func (t *table) of(l Labels) *series {
	t.mu.RLock()
	s := t.sets[l]
	t.mu.RUnlock()
	if s != nil {
		return s
	}
	return t.admit(l)
}

// admit finds or makes the series of labels that are new, unclean or beyond the bounds.
func (t *table) admit(l Labels) *series {
	l.Model, l.Target, l.Tenant = clean(l.Model), clean(l.Target), clean(l.Tenant)
	t.mu.Lock()
	defer t.mu.Unlock()
	l.Model, l.Target = t.model(l.Model), t.model(l.Target)
	l.Tenant = take(t.tenants, l.Tenant)
	if t.sets[l] == nil && len(t.sets) >= MaxSets {
		l.Tenant = Other
		if t.sets[l] == nil && len(t.sets) >= MaxSets+MaxValues {
			l.Model, l.Target = Other, Other
		}
	}
	s := t.sets[l]
	if s == nil {
		s = newSeries(l)
		t.sets[l] = s
	}
	return s
}

func (t *table) model(v string) string {
	if w := take(t.models, v); w == v || !t.served(v) {
		return w
	}
	t.models[v] = true
	return v
}

func take(seen map[string]bool, v string) string {
	if seen[v] || v == "" {
		return v
	}
	if len(seen) >= MaxValues {
		return Other
	}
	seen[v] = true
	return v
}

// all lists the series there are.
func (t *table) all() []*series {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]*series, 0, len(t.sets))
	for _, s := range t.sets {
		list = append(list, s)
	}
	return list
}

// clean makes a value fit for a label: printable, without quotes and backslashes, and bounded.
// It copies what it returns, since the value may be part of something large.
func clean(v string) string { return cleanTo(v, MaxLabel) }

// cleanName does so for names that operators give, which Kubernetes lets be longer.
func cleanName(v string) string { return cleanTo(v, 4*MaxLabel) }

func cleanTo(v string, limit int) string {
	if len(v) <= limit && strings.IndexFunc(v, odd) < 0 {
		return strings.Clone(v)
	}
	var b strings.Builder
	for _, r := range v {
		if odd(r) {
			r = '_'
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

func odd(r rune) bool {
	return r == '"' || r == '\\' || r == utf8.RuneError || !unicode.IsPrint(r)
}
