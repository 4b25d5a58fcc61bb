// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-project/penstock/observe"
)

// Rows that are shown unless all are asked for.
const (
	shownCandidates = 16
	shownDropped    = 8
	shownSignals    = 8
)

// story writes a record for a person.
type story struct {
	w   io.Writer
	r   *observe.Record
	all bool
}

// tellRequest writes why a request went where it went: what happened, who could have served it, why the winner won,
// and what was not known.
func tellRequest(w io.Writer, r *observe.Record, all bool) {
	s := &story{w, r, all}
	s.happened()
	s.times()
	s.table()
	s.dropped()
	s.why()
	s.unknown()
	s.tries()
	s.advice()
}

// line writes a line. Clients choose some of what is in it: nothing of that may steer the reader's terminal or look
// like a line of its own.
func (s *story) line(format string, a ...any) {
	fmt.Fprintln(s.w, strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, fmt.Sprintf(format, a...)))
}

// happened says what happened, in a line, and whose request it was.
func (s *story) happened() {
	r := s.r
	where := ""
	if r.Endpoint != "" {
		where = fmt.Sprintf(" by %s (%s)", r.Endpoint, r.Address)
	}
	took := ms(r.DurationMS)
	switch r.Outcome {
	case observe.Refused:
		s.line("TURNED AWAY with %d after %s%s%s", r.Status, took, prefixed(", ", r.Reason), prefixed(": ", r.Message))
	case observe.Broken:
		s.line("BROKE OFF%s after %s, status %d%s", strings.Replace(where, " by", " at", 1), took, r.Status, prefixed(": ", r.Message))
	case observe.ClientLeft:
		what := ", before the first token"
		switch {
		case r.TTFTMS > 0:
			what = ", in the middle of the answer" + strings.Replace(where, " by", " of", 1)
		case where != "":
			what += strings.Replace(where, " by", " of", 1)
		}
		s.line("THE CLIENT LEFT after %s%s", took, what)
	case observe.Evicted:
		s.line("TAKEN BACK after dispatch, after %s%s, for a request of higher priority", took, strings.Replace(where, " by", " at", 1))
	default:
		verb, first := "SERVED", ""
		if r.Status >= 400 {
			verb = "ANSWERED"
		}
		if r.TTFTMS > 0 {
			first = ", first token after " + ms(r.TTFTMS)
		}
		s.line("%s%s with %d in %s%s", verb, where, r.Status, took, first)
	}
	if len(r.Attempts) > 0 && r.Outcome == observe.Complete && r.Retries > 0 {
		s.line("after %s failed", plural(r.Retries, "other endpoint"))
	}
	if r.SlowTTFTMS > 0 {
		s.line("SLOW: first token after %s, where more than %s counts as slow", ms(r.TTFTMS), ms(r.SlowTTFTMS))
	}
	if r.SlowEndMS > 0 {
		s.line("SLOW: %s in all, where more than %s counts as slow", took, ms(r.SlowEndMS))
	}
	s.line("")
	s.line("request    %s, %s by %s%s", r.ID, r.Time.UTC().Format("2006-01-02 15:04:05.000Z"), r.Door, prefixed(", ", r.API))
	model := r.Model
	if r.Target != "" && r.Target != r.Model {
		model += ", sent as " + r.Target
	}
	s.line("for        model %s, pool %s, tenant %s, priority %d", cmp.Or(model, "not known"), cmp.Or(r.Pool, "not known"), cmp.Or(r.Tenant, "not known"), r.Priority)
}

// times says where the time and the tokens went.
func (s *story) times() {
	r := s.r
	s.line("time       body %s, queue %s, decision %s, scoring %s", ms(r.BodyMS), ms(r.QueueMS), ms(r.DecisionUS/1e3), ms(r.ScheduleUS/1e3))
	s.waited()
	t := r.Tokens
	if t.Estimated == 0 && t.Prompt == nil {
		return
	}
	how := "estimated %d"
	switch {
	case t.Untold != "":
		how += fmt.Sprintf(", since it could not be tokenised: %s", t.Untold)
	case t.Tokenizer != "" && t.Tokenizer != "estimate":
		how = "%d by tokenizer " + t.Tokenizer
	}
	s.line("tokens     prompt %s (%s), cached %s (predicted %d), output %s", count(t.Prompt), fmt.Sprintf(how, t.Estimated), count(t.Cached), t.PredictedCached, count(t.Output))
}

// waited says what flow control made of it.
func (s *story) waited() {
	f := s.r.Flow
	if f == nil {
		return
	}
	if f.For == "" {
		s.line("flow       %s at once", flowOutcome(f.Outcome))
		return
	}
	s.line("flow       %s after %s of waiting for %s", flowOutcome(f.Outcome), ms(s.r.QueueMS), waitsFor[f.For])
	s.line("           before it %s of its priority or a higher one, %d of its own tenant; %s at its priority",
		plural(f.Ahead, "request"), f.Own, plural(f.Flows, "tenant"))
}

// flowOutcome is an outcome in words, with its name.
func flowOutcome(name string) string {
	if text := flowOutcomes[name]; text != "" {
		return text + " (" + name + ")"
	}
	return name
}

var flowOutcomes = map[string]string{
	"Dispatched": "let go", "RejectedCapacity": "refused, the queue was full", "RejectedNoEndpoints": "refused, no endpoints and the queue full",
	"RejectedOther": "refused, shutting down", "EvictedTTL": "given up", "EvictedNoEndpoints": "given up",
	"EvictedContextCancelled": "gone, its client left", "EvictedOther": "sent away, shutting down",
}

// waitsFor is what a request waits for, in words.
var waitsFor = map[string]string{
	"endpoints": "endpoints", "room": "room at an endpoint that can serve it",
	"ceiling": "the usage limit, which keeps room for higher priorities", "turn": "its turn",
}

// table shows the candidates in rank order.
func (s *story) table() {
	r := s.r
	rows := slices.DeleteFunc(slices.Clone(r.Candidates), func(c observe.Candidate) bool { return c.Verdict == observe.Dropped })
	if len(rows) == 0 {
		return
	}
	s.line("")
	s.line("profile %s, picker %s, %d of %s could serve it:", cmp.Or(r.Profile, "not chosen"), cmp.Or(r.Picker, "none"), r.Scored, plural(r.Endpoints, "endpoint"))
	var scorers []string
	for _, sc := range rows[0].Scores {
		scorers = append(scorers, fmt.Sprintf("%s ×%s", sc.Scorer, number(sc.Weight)))
	}
	if len(scorers) > 0 {
		s.line("scorers    %s", strings.Join(scorers, ", "))
	}
	head := []string{"rank", "<endpoint", "<address", "total"}
	for _, sc := range rows[0].Scores {
		head = append(head, fmt.Sprintf("%s ×%s", shortened(sc.Scorer), number(sc.Weight)))
	}
	penalty := slices.ContainsFunc(rows, func(c observe.Candidate) bool { return c.Penalty > 0 })
	if penalty {
		head = append(head, "unseen")
	}
	cells := [][]string{append(head, "cached", "queue", "running", "kv", "in flight", "<verdict")}
	shown := rows
	if !s.all && len(rows) > shownCandidates+1 {
		shown = rows[:shownCandidates]
	}
	for i := range shown {
		cells = append(cells, s.row(&shown[i], len(rows[0].Scores), penalty))
	}
	s.columns(cells)
	if slices.ContainsFunc(cells, func(row []string) bool { return strings.Contains(row[len(row)-6], "(told ") }) {
		s.line("told: so much of the prompt the engine itself said it holds; the rest is expected, since requests with it were sent there")
	}
	if n := len(rows) - len(shown); n > 0 {
		s.line("and %d more, all below these; --all lists them", n)
	}
	if n := r.Scored - len(rows); n > 0 {
		s.line("and %d more that no record has room for", n)
	}
}

func (s *story) row(c *observe.Candidate, scorers int, penalty bool) []string {
	row := []string{"", s.name(c.Endpoint), c.Address, ""}
	if c.Rank > 0 {
		row[0] = fmt.Sprint(c.Rank)
	}
	if c.Total != nil {
		row[3] = points(*c.Total)
	}
	for k := range scorers {
		cell := ""
		if k < len(c.Scores) {
			cell = points(c.Scores[k].Share)
		}
		row = append(row, cell)
	}
	if penalty {
		cell := ""
		if c.Penalty > 0 {
			cell = fmt.Sprintf("−%s (%d)", points(c.Penalty), c.Unseen)
		}
		row = append(row, cell)
	}
	cached := "–"
	if s.r.Blocks > 0 {
		cached = fmt.Sprintf("%d%%", 100*min(c.CachedBlocks, s.r.Blocks)/s.r.Blocks)
		if sure := c.ConfirmedBlocks; sure != nil && *sure < c.CachedBlocks { // the rest is expected, not told
			cached += fmt.Sprintf(" (told %d%%)", 100*min(*sure, s.r.Blocks)/s.r.Blocks)
		}
	}
	verdict := c.Verdict
	if c.Verdict == observe.Failed {
		verdict += ": " + c.Why
	}
	if c.Health != nil {
		verdict += fmt.Sprintf(" (%s%s)", c.Health.State, prefixed(": ", c.Health.Cause))
	}
	return append(row, cached, level(c, "waiting", 1, ""), level(c, "running", 1, ""), level(c, "kv_usage", 100, "%"), fmt.Sprint(c.InFlight), verdict)
}

// columns writes rows in columns, right-aligned but for those whose head begins with "<".
func (s *story) columns(rows [][]string) {
	wide := make([]int, len(rows[0]))
	left := make([]bool, len(rows[0]))
	for k, h := range rows[0] {
		rows[0][k], left[k] = strings.CutPrefix(h, "<")
	}
	for _, row := range rows {
		for k, cell := range row {
			wide[k] = max(wide[k], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for k, cell := range row {
			pad := strings.Repeat(" ", wide[k]-utf8.RuneCountInString(cell))
			if k > 0 {
				b.WriteString("  ")
			}
			if left[k] {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		s.line("%s", strings.TrimRight(b.String(), " "))
	}
}

// dropped lists who was not considered, and why.
func (s *story) dropped() {
	if len(s.r.Dropped) == 0 {
		return
	}
	s.line("")
	for _, d := range s.r.Dropped {
		s.line("dropped by %s: %s%s", d.By, plural(d.Count, "endpoint"), prefixed(": ", d.Why))
		shown := 0
		for _, c := range s.r.Candidates {
			if c.Verdict == observe.Dropped && c.By == d.By && (shown < shownDropped || s.all) {
				shown++
				s.line("  %s (%s)%s", s.name(c.Endpoint), c.Address, strings.TrimPrefix(c.Why, d.Why))
			}
		}
		if n := d.Count - shown; n > 0 && shown > 0 {
			s.line("  and %d more", n)
		}
	}
}

// why says what made the difference, and what would have made another one.
func (s *story) why() {
	first, next := s.rivals()
	if first == nil {
		return
	}
	s.line("")
	if next == nil {
		s.line("%s was the only one that could serve it.", s.name(first.Endpoint))
		return
	}
	a, b := s.name(first.Endpoint), s.name(next.Endpoint)
	margin := *first.Total - *next.Total
	switch {
	case margin < -0.0005:
		s.line("%s did not choose the highest total: it draws by chance. %s has %s, %s is the highest with %s.",
			s.r.Picker, a, points(*first.Total), b, points(*next.Total))
		return
	case margin < 0.0005:
		tied := 0
		for _, c := range s.r.Candidates {
			if c.Total != nil && math.Abs(*c.Total-*first.Total) < 0.0005 {
				tied++
			}
		}
		s.line("A tie: %d candidates have %s. Chance chose %s.", tied, points(*first.Total), a)
		return
	}
	s.line("%s won by %s over %s, because:", a, points(margin), b)
	s.reasons(first, next)
	s.line("%s", s.otherwise(next, margin))
}

// rivals are the pick and the highest total beside it; nil where there was no choice.
func (s *story) rivals() (first, next *observe.Candidate) {
	for i := range s.r.Candidates {
		c := &s.r.Candidates[i]
		switch {
		case c.Total == nil:
		case c.Rank == 1:
			first = c
		case next == nil || *c.Total > *next.Total:
			next = c
		}
	}
	return first, next
}

// reasons lists what made the difference, the largest part first.
func (s *story) reasons(a, b *observe.Candidate) {
	type part struct {
		by   float64
		text string
	}
	var parts []part
	for k := range min(len(a.Scores), len(b.Scores)) {
		x, y := a.Scores[k], b.Scores[k]
		parts = append(parts, part{x.Share - y.Share, fmt.Sprintf("%s gave it %s against %s, weight %s", x.Scorer, points(x.Score), points(y.Score), number(x.Weight))})
	}
	parts = append(parts, part{b.Penalty - a.Penalty, fmt.Sprintf("%d requests were on their way to it that no signal showed, against %d", a.Unseen, b.Unseen)})
	slices.SortStableFunc(parts, func(x, y part) int { return cmp.Compare(y.by, x.by) })
	for _, p := range parts {
		if sign := "+"; math.Abs(p.by) >= 0.0005 {
			if p.by < 0 {
				sign = "−"
			}
			s.line("  %s%s  %s", sign, points(math.Abs(p.by)), p.text)
		}
	}
}

// otherwise says the smallest change of one scorer's answer by which the next one had won.
func (s *story) otherwise(b *observe.Candidate, margin float64) string {
	best, text := math.Inf(1), ""
	for _, sc := range b.Scores {
		if sc.Weight == 0 {
			continue
		}
		want := sc.Score + margin/sc.Weight
		if change := math.Abs(want - sc.Score); want >= 0 && want <= 1 && change < best {
			best = change
			word := "at least"
			if sc.Weight < 0 {
				word = "at most"
			}
			text = fmt.Sprintf("%s would have drawn level had %s given it %s %s; it gave %s.", s.name(b.Endpoint), sc.Scorer, word, points(want), points(sc.Score))
		}
	}
	if text == "" && b.Penalty >= margin {
		text = fmt.Sprintf("%s would have drawn level without the requests on their way to it.", s.name(b.Endpoint))
	}
	return cmp.Or(text, fmt.Sprintf("No single scorer could have made %s win.", s.name(b.Endpoint)))
}

// unknown lists signals that nobody could go by.
func (s *story) unknown() {
	var lines []string
	n := 0
	for _, c := range s.r.Candidates {
		if c.Verdict == observe.Dropped {
			continue
		}
		var parts []string
		for _, name := range []string{"waiting", "running", "kv_usage"} {
			switch v := c.Signals[name]; v.State {
			case "stale":
				parts = append(parts, fmt.Sprintf("%s is %s old", titles[name], ms(float64(*v.AgeMS))))
			case "absent":
				parts = append(parts, titles[name]+" was never told")
			}
		}
		for _, at := range c.Attrs {
			if at.State != "fresh" {
				parts = append(parts, fmt.Sprintf("%s is %s", at.Name, at.State))
			}
		}
		if len(parts) == 0 {
			continue
		}
		if n++; n <= shownSignals || s.all {
			lines = append(lines, fmt.Sprintf("  %s: %s", s.name(c.Endpoint), strings.Join(parts, ", ")))
		}
	}
	if n == 0 {
		return
	}
	s.line("")
	s.line("Not known of %s (? in the table: too old to go by; –: absent), so neither idle nor full:", plural(n, "candidate"))
	for _, l := range lines {
		s.line("%s", l)
	}
	if n > len(lines) {
		s.line("  and %d more; --all lists them", n-len(lines))
	}
}

var titles = map[string]string{"waiting": "queue", "running": "running", "kv_usage": "kv"}

// tries lists the endpoints that failed, in order.
func (s *story) tries() {
	if len(s.r.Attempts) == 0 {
		return
	}
	s.line("")
	s.line("Failed, in this order:")
	for i, a := range s.r.Attempts {
		s.line("  %d. %s (%s): %s", i+1, s.name(a.Endpoint), a.Address, a.Cause)
	}
	if s.r.Outcome == observe.Complete && s.r.Endpoint != "" && s.r.Retries > 0 {
		s.line("  then %s answered", s.name(s.r.Endpoint))
	}
}

// advice says in words why a request was not served, and what an operator can do.
func (s *story) advice() {
	if s.r.Outcome != observe.Refused && s.r.Outcome != observe.Evicted {
		return
	}
	s.line("")
	why, do, _ := strings.Cut(s.cause(), "\n")
	s.line("Why: %s", why)
	s.line("%s", do)
}

func (s *story) cause() string {
	r := s.r
	if f := r.Flow; f != nil && f.Outcome == "RejectedCapacity" {
		if f.For != "" {
			return "the queue was full, and one of higher priority took its place there.\nDo:  add endpoints, or raise flowControl's maxRequests and maxBytes; llm_d_epp_flow_control_global_capacity_utilization_requests and _bytes show how full it is."
		}
		return "all endpoints that could serve it were busy, and the queue was full.\nDo:  add endpoints, or raise maxRequests and maxBytes of its priority's band or of all flowControl; llm_d_epp_flow_control_capacity_utilization_requests and the like show which bound it was. The client may try again after Retry-After."
	}
	switch {
	case r.RefusedBy != "":
		return fmt.Sprintf("the admitter %s turned it away: %s.\nDo:  look at its parameters with penstock explain, and at /debug/fleet for what it measures; more endpoints help where it is capacity.", r.RefusedBy, r.Message)
	case r.Reason == "rejected-saturated" && r.Picker != "" && r.Scored == 0:
		return "the profile's filters left no endpoint.\nDo:  see above which filter dropped them, and change its parameters or what it looks at."
	}
	if r.Reason == "rejected-no-endpoints" {
		switch {
		case len(r.Attempts) > 0:
			return fmt.Sprintf("each endpoint that was tried failed before a byte of its answer (%d).\nDo:  look at these engines' logs; /debug/fleet shows their health.", len(r.Attempts))
		case r.Endpoints == 0:
			return "the pool had no endpoints.\nDo:  check the pool's selector against the labels of pods, or the endpoints file; /debug/fleet shows what is known."
		case r.Scored == 0:
			return fmt.Sprintf("the pool had %s, and none was left.\nDo:  see above which stage dropped them: health heals by itself once an engine answers again; model and subset depend on what is asked for.", plural(r.Endpoints, "endpoint"))
		}
	}
	if text := causes[r.Reason]; text != "" {
		return text
	}
	if r.Reason == "" && r.Status < 500 {
		return "it cannot be served as it was asked.\nDo:  nothing here; the message above went to the client."
	}
	return "the gateway had no answer for it.\nDo:  look in its log for this id."
}

// causes are the reasons of x-llm-d-request-dropped-reason in words.
var causes = map[string]string{
	"rejected-saturated":         "all endpoints that could serve it were busy, and its priority lets it be dropped then.\nDo:  add endpoints, or give it a higher priority with an InferenceObjective; the client may try again after Retry-After.",
	"rejected-no-endpoints":      "no endpoint was ready.\nDo:  /debug/fleet shows endpoints, their signals and health.",
	"rejected-ttl-expired":       "it waited in the queue as long as a request may.\nDo:  add endpoints, or let requests wait longer; \"queue\" above is how long it waited.",
	"rejected-context-cancelled": "its client left while it waited.\nDo:  if clients give up often, they wait too long: see \"queue\" above.",
	"rejected-shutting-down":     "this gateway was shutting down.\nDo:  nothing, if it was a rollout; clients that try again reach another replica.",
	"rejected-internal":          "the fault is the gateway's.\nDo:  look in its log for this id, and report it.",
	"evicted":                    "it was taken back for a request of higher priority.\nDo:  add endpoints, or give it a higher priority.",
}

// name is an endpoint's name, without the namespace of the pool.
func (s *story) name(id string) string {
	ns, _, _ := strings.Cut(s.r.Pool, "/")
	return strings.TrimPrefix(id, ns+"/")
}

// shortened is a scorer's name as a column's head.
func shortened(scorer string) string {
	short := strings.TrimSuffix(scorer, "-scorer")
	if r := []rune(short); len(r) > 14 {
		return string(r[:13]) + "…"
	}
	return short
}

// level is a signal's value: followed by ? when it is stale, – when absent.
func level(c *observe.Candidate, name string, scale float64, unit string) string {
	v := c.Signals[name]
	if v.Value == nil {
		return "–"
	}
	text := number(*v.Value*scale) + unit
	if v.State != "fresh" {
		text += "?"
	}
	return text
}

func points(v float64) string { return fmt.Sprintf("%.3f", v) }

// number is v with one decimal at most.
func number(v float64) string {
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func ms(v float64) string {
	switch {
	case v >= 10_000:
		return fmt.Sprintf("%.1f s", v/1e3)
	case v >= 1000:
		return fmt.Sprintf("%.2f s", v/1e3)
	case v >= 10 || v == 0:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 0.1:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f µs", v*1e3)
}

func count(n *int) string {
	if n == nil {
		return "not told"
	}
	return fmt.Sprint(*n)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// prefixed is s behind a prefix, or nothing.
func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
