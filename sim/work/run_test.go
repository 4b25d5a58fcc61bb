// SPDX-License-Identifier: Apache-2.0

package work

import (
	"container/heap"
	"fmt"
	"testing"
	"time"
)

// call is what a test keeps of a request.
type call struct {
	Request
	prompt []Segment
}

// byTime is a queue of requests that are under way.
type byTime []*Request

func (q byTime) Len() int { return len(q) }
func (q byTime) Less(i, j int) bool {
	return q[i].At < q[j].At || q[i].At == q[j].At && q[i].Index < q[j].Index
}
func (q byTime) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *byTime) Push(r any)   { *q = append(*q, r.(*Request)) }
func (q *byTime) Pop() any {
	r := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return r
}

// play runs a workload to its end; each request takes what took says. It checks what every
// workload owes.
func play(t testing.TB, w Workload, took func(*Request) time.Duration, ok func(*Request) bool) []call {
	t.Helper()
	var calls []call
	var queue byTime
	seen, numbers := map[uint64]bool{}, map[int]bool{}
	keep := func(r *Request, after time.Duration) {
		if r.At < after {
			t.Fatalf("request %d begins at %v, before %v", r.Index, r.At, after)
		}
		if r.Output < 1 || r.PromptTokens() < 1 || seen[r.Answer] || numbers[r.Index] || r.Class == "" {
			t.Fatalf("request %d of %d: %d tokens in, %d out, class %q, answer seen: %v", r.Index, len(calls), r.PromptTokens(), r.Output, r.Class, seen[r.Answer])
		}
		seen[r.Answer], numbers[r.Index] = true, true
		calls = append(calls, call{*r, append([]Segment(nil), r.Prompt...)})
		heap.Push(&queue, r)
	}
	ends := byEnd{}
	var last time.Duration
	r, more := w.Next()
	for more || len(queue) > 0 || len(ends) > 0 {
		if len(calls) > 500_000 {
			t.Fatal("does not end")
		}
		// What happens first: an end, or a beginning.
		if len(queue) > 0 {
			begun := heap.Pop(&queue).(*Request)
			heap.Push(&ends, end{begun.At + took(begun), begun})
			continue
		}
		if len(ends) > 0 && (!more || ends[0].at <= r.At) {
			e := heap.Pop(&ends).(end)
			for _, f := range w.Ended(e.r, e.at, ok == nil || ok(e.r)) {
				keep(f, e.at)
			}
			continue
		}
		keep(r, last)
		last = r.At
		r, more = w.Next()
	}
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}
	return calls
}

type end struct {
	at time.Duration
	r  *Request
}

type byEnd []end

func (q byEnd) Len() int { return len(q) }
func (q byEnd) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].r.Index < q[j].r.Index
}
func (q byEnd) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *byEnd) Push(e any)   { *q = append(*q, e.(end)) }
func (q *byEnd) Pop() any {
	e := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return e
}

// usual is how long an engine takes that has nothing else to do.
func usual(r *Request) time.Duration {
	return 100*time.Millisecond + time.Duration(r.Output)*usualStep
}

func start(t testing.TB, spec string, seed uint64, rate float64) Workload {
	t.Helper()
	open, err := Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	w, err := open(seed, rate)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// sum is a line of what came: how many, of how many sessions, their tokens, and which share of the
// prompt tokens one endless cache would have had.
func sum(calls []call) string {
	in, out, hit := 0, 0, 0
	var last time.Duration
	sessions := map[int]bool{}
	cache := map[uint64]int32{} // the longest of each chain of segments
	for _, c := range calls {
		last = max(last, c.At)
		out += c.Output
		if c.Session >= 0 {
			sessions[c.Session] = true
		}
		chain, known := uint64(0), true
		for i, s := range append(c.prompt, Segment{c.Answer, int32(c.Output)}) {
			if i < len(c.prompt) {
				in += int(s.Tokens)
				if known {
					hit += int(min(s.Tokens, cache[mix(chain, s.ID)]))
				}
			}
			known = known && cache[mix(chain, s.ID)] >= s.Tokens
			cache[mix(chain, s.ID)] = max(cache[mix(chain, s.ID)], s.Tokens)
			chain = mix(mix(chain, s.ID), uint64(s.Tokens))
		}
	}
	return fmt.Sprintf("%d calls of %d sessions in %v: %d tokens in, %d out, %.3f known", len(calls), len(sessions), last.Round(time.Second), in, out, float64(hit)/float64(max(in, 1)))
}
