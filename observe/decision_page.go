// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DecisionsView is the form of /debug/decisions.
type DecisionsView struct {
	Kept KeptView `json:"kept"`
	// Matched is how many there are; Decisions are the newest of them, the newest first: each a [Summary], or a
	// [Record] when full ones were asked for.
	Matched   int               `json:"matched"`
	Decisions []json.RawMessage `json:"decisions"`
}

// KeptView says what is remembered.
type KeptView struct {
	Records int    `json:"records"`
	Bytes   int64  `json:"bytes"`
	Gone    uint64 `json:"gone"` // made room for others
	// Oldest are the times of the oldest healthy request and of the oldest in trouble; null for none.
	OldestHealthy  *time.Time `json:"oldest_healthy"`
	OldestTroubled *time.Time `json:"oldest_troubled"`
	Policy         string     `json:"policy"`
}

// Lives says how long records live, in a sentence.
func (k KeptView) Lives() string {
	return fmt.Sprintf("records live until newer ones need their memory (%d MiB for requests that were dropped, failed, tried again or slow, as much for the others): %s; of healthy requests beyond %d a second one in %d is kept",
		ringBytes>>20, k.since(), keepRate, keepOneIn)
}

func (k KeptView) since() string {
	at := func(what string, t *time.Time) string {
		if t == nil {
			return "none " + what
		}
		return "the oldest " + what + " is of " + t.Format("2006-01-02 15:04:05Z07:00")
	}
	if k.Records == 0 {
		return "none is there yet"
	}
	return at("in trouble", k.OldestTroubled) + ", " + at("that was healthy", k.OldestHealthy)
}

// records returns what is remembered, the newest end first, and how much that is.
func (k *decisions) records() ([]*kept, KeptView) {
	good, goneGood := k.healthy.all(nil)
	bad, goneBad := k.troubled.all(nil)
	v := KeptView{Records: len(good) + len(bad), Gone: goneGood + goneBad}
	oldest := func(list []*kept) *time.Time {
		if len(list) == 0 {
			return nil
		}
		t := list[0].out.Start.UTC()
		return &t
	}
	v.OldestHealthy, v.OldestTroubled = oldest(good), oldest(bad)
	all := append(good, bad...)
	for _, r := range all {
		v.Bytes += r.bytes
	}
	slices.SortStableFunc(all, func(a, b *kept) int { return b.ended().Compare(a.ended()) })
	v.Policy = v.Lives()
	return all, v
}

func (r *kept) ended() time.Time { return r.out.Start.Add(r.out.Duration) }

// question is what a query asks for.
type question struct {
	id, pool, model, tenant, endpoint, reason string
	outcomes                                  []End
	slow, failed, full                        *bool
	minTTFT                                   time.Duration
	limit                                     int
	since                                     time.Time
}

const (
	usualLimit = 100
	mostLimit  = 1000
)

// parameters are what a query may hold.
var parameters = []string{"endpoint", "failed", "full", "id", "limit", "min_ttft_ms", "model", "outcome", "pool", "reason", "since", "slow", "tenant"}

// ends are what outcome= may be.
var ends = []End{Complete, Refused, Broken, ClientLeft, Evicted}

// ask reads a query. Errors say what would be right.
func ask(query string, now time.Time) (question, error) {
	q := question{limit: usualLimit}
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, fmt.Errorf("the query cannot be read: %w", err)
	}
	for name, list := range values {
		if !slices.Contains(parameters, name) {
			return q, fmt.Errorf("unknown parameter %s: want %s", strconv.Quote(cut(name)), strings.Join(parameters, ", "))
		}
		if len(list) > 1 {
			return q, fmt.Errorf("%s: want it once", name)
		}
	}
	q.id, q.pool, q.model, q.tenant = values.Get("id"), values.Get("pool"), values.Get("model"), values.Get("tenant")
	q.endpoint, q.reason = values.Get("endpoint"), values.Get("reason")
	for _, flag := range []struct {
		name string
		to   **bool
	}{{"slow", &q.slow}, {"failed", &q.failed}, {"full", &q.full}} {
		if s := values.Get(flag.name); s != "" {
			b, err := strconv.ParseBool(s)
			if err != nil {
				return q, fmt.Errorf("%s: want true or false, got %q", flag.name, cut(s))
			}
			*flag.to = &b
		}
	}
	if s := values.Get("outcome"); s != "" {
		for e := range strings.SplitSeq(s, ",") {
			if !slices.Contains(ends, End(e)) {
				return q, fmt.Errorf("outcome: want some of complete, refused, error, client-disconnect and evicted, by comma; got %q", cut(e))
			}
			q.outcomes = append(q.outcomes, End(e))
		}
	}
	if s := values.Get("limit"); s != "" {
		if q.limit, err = strconv.Atoi(s); err != nil || q.limit < 1 || q.limit > mostLimit {
			return q, fmt.Errorf("limit: want 1 to %d, got %q", mostLimit, cut(s))
		}
	}
	if s := values.Get("min_ttft_ms"); s != "" {
		ms, err := strconv.ParseFloat(s, 64)
		if err != nil || !(ms >= 0 && ms <= 1e9) {
			return q, fmt.Errorf("min_ttft_ms: want milliseconds, 0 or more, got %q", cut(s))
		}
		q.minTTFT = time.Duration(ms * float64(time.Millisecond))
	}
	if s := values.Get("since"); s != "" {
		if q.since, err = sinceOf(s, now); err != nil {
			return q, err
		}
	}
	return q, nil
}

func sinceOf(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("since: want how long ago, such as 5m, or a time such as %s, got %q", "2006-01-02T15:04:05Z", cut(s))
}

// cut bounds what an error repeats.
func cut(s string) string { return s[:min(len(s), 64)] }

// wants reports whether the record is asked for.
func (q *question) wants(r *kept) bool {
	o := &r.out
	is := func(want, got string) bool { return want == "" || want == got }
	return is(q.id, o.ID) && is(q.tenant, o.Tenant) && is(q.reason, o.Reason) &&
		(q.model == "" || q.model == o.Model || q.model == o.Target) &&
		(q.pool == "" || named(o.Pool, q.pool)) &&
		(q.endpoint == "" || r.touched(q.endpoint)) &&
		(len(q.outcomes) == 0 || slices.Contains(q.outcomes, o.End)) &&
		(q.slow == nil || *q.slow == r.slow()) &&
		(q.failed == nil || *q.failed == failed(o)) &&
		o.TTFT >= q.minTTFT && (q.since.IsZero() || !r.ended().Before(q.since))
}

// named reports whether a namespace/name is meant by want, which may leave the namespace out.
func named(id, want string) bool {
	_, name, _ := strings.Cut(id, "/")
	return want == id || want == name
}

// touched reports whether the request went to an endpoint, given by name or address.
func (r *kept) touched(want string) bool {
	if r.out.Endpoint != "" && (named(r.out.Endpoint, want) || r.out.Address == want) {
		return true
	}
	return slices.ContainsFunc(r.out.Attempts, func(a Attempt) bool { return named(a.Endpoint, want) || a.Address == want })
}

// failed reports whether the client got no good answer, or an endpoint failed on the way to it, through no mistake
// of the client's.
func failed(o *Outcome) bool { return o.End != ClientLeft && inTrouble(o) }

func (o *Observer) serveDecisions(w http.ResponseWriter, r *http.Request) {
	q, err := ask(r.URL.RawQuery, time.Now())
	if err != nil {
		sayJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	all, kept := o.decisions.records()
	chosen := all[:0:0]
	for _, r := range all {
		if q.wants(r) {
			chosen = append(chosen, r)
		}
	}
	w.Header().Set("content-type", "application/json")
	if err := writeDecisions(w, kept, chosen, &q); err != nil {
		o.log.Debug("decisions page", "error", err)
	}
}

// writeDecisions writes a [DecisionsView], a record at a time.
func writeDecisions(w io.Writer, k KeptView, chosen []*kept, q *question) error {
	head, err := json.Marshal(k)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "{\"kept\":%s,\n\"matched\":%d,\n\"decisions\":[", head, len(chosen))
	for i, r := range chosen[:min(len(chosen), q.limit)] {
		var v any = r.summary()
		if q.full != nil && *q.full {
			v = r.record()
		}
		b, bad := json.Marshal(v)
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		sep := ",\n"
		if i == 0 {
			sep = "\n"
		}
		_, err = io.WriteString(w, sep+string(b))
	}
	if err == nil {
		_, err = io.WriteString(w, "\n]}\n")
	}
	return err
}

func (o *Observer) serveDecision(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	all, kept := o.decisions.records()
	for _, r := range all {
		if r.out.ID == id {
			sayJSON(w, http.StatusOK, r.record())
			return
		}
	}
	sayJSON(w, http.StatusNotFound, map[string]any{"error": fmt.Sprintf("no record of a request %q: %s", id[:min(len(id), MaxLabel)], kept.Lives()), "kept": kept})
}

func sayJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("content-type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // nobody is left to be told
}
