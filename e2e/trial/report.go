// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Run is a load that has come to its end.
type Run struct {
	Name    string
	Sources []Source
	All     []*Sent
	Warm    time.Duration // what ended before does not count in shares: nobody had to wait yet
	Length  time.Duration // of the load; what ended later does not count in shares either
}

// Of are the requests of a tenant; of all tenants for "".
func (r *Run) Of(tenant string) []*Sent {
	var out []*Sent
	for _, s := range r.All {
		if tenant == "" || s.Source.Tenant == tenant {
			out = append(out, s)
		}
	}
	return out
}

// Share is how many of a tenant's requests were served while the load was on.
func (r *Run) Share(tenant string) int {
	n := 0
	for _, s := range r.Of(tenant) {
		if s.Served(r.Warm, r.Length) {
			n++
		}
	}
	return n
}

// Work is how many tokens, of prompts and answers, were served of a tenant while the load was on.
func (r *Run) Work(tenant string) int {
	n := 0
	for _, s := range r.Of(tenant) {
		if s.Served(r.Warm, r.Length) {
			n += s.Logged.PromptTokens + s.Logged.OutputTokens
		}
	}
	return n
}

// Jain is Jain's index of shares: 1 when they are equal, 1/n when one has all.
func Jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range shares {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// quantile is the value that a share q of the values does not exceed; NaN of none. It sorts them.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
}

// each collects a value of those that were served.
func each(sent []*Sent, value func(*Sent) float64) []float64 {
	var out []float64
	for _, s := range sent {
		if s.Whole {
			out = append(out, value(s))
		}
	}
	return out
}

func queued(s *Sent) float64 { return s.Logged.QueueMS / 1000 }
func first(s *Sent) float64  { return (s.First - s.At).Seconds() }

// Table is who got what: a row for each tenant.
func (r *Run) Table() string {
	var b strings.Builder
	b.WriteString("| class | tenant | offered | served | of these under load | refused or taken back | queue p50 | p99 | TTFT p50 | p99 |\n|---|---|--:|--:|--:|---|--:|--:|--:|--:|\n")
	for i := range r.Sources {
		s := &r.Sources[i]
		sent := r.Of(s.Tenant)
		served, why := 0, map[string]int{}
		for _, x := range sent {
			if x.Whole {
				served++
			} else {
				why[x.Why()]++
			}
		}
		var refused []string
		for reason, n := range why {
			refused = append(refused, fmt.Sprintf("%d %s", n, reason))
		}
		slices.Sort(refused)
		if refused == nil {
			refused = []string{"0"}
		}
		q, f := each(sent, queued), each(sent, first)
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s | %s | %s | %s | %s |\n", s.Class, s.Tenant, len(sent), served, r.Share(s.Tenant),
			strings.Join(refused, ", "), seconds(quantile(q, .5)), seconds(quantile(q, .99)), seconds(quantile(f, .5)), seconds(quantile(f, .99)))
	}
	return b.String()
}

// Why is how a request ended that was not served, as its caller saw it.
func (s *Sent) Why() string {
	switch {
	case s.Status == 0:
		return "no answer"
	case s.Status != 200:
		return fmt.Sprintf("%d `%s`", s.Status, s.Reason)
	case s.Logged.End == "evicted":
		return "`evicted` after its first token"
	}
	return "broken off"
}

func seconds(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v < 0.1:
		return fmt.Sprintf("%.0f ms", v*1000)
	}
	return fmt.Sprintf("%.2f s", v)
}

// Throughput plots what each tenant was served a second; asked adds what one tenant asked for.
func (r *Run) Throughput(title, asked string) *Plot {
	p := &Plot{Title: title, Unit: "requests/s", Step: r.step()}
	for i := range r.Sources {
		tenant := r.Sources[i].Tenant
		p.Curves = append(p.Curves, Curve{Name: tenant, Color: i,
			Values: r.rate(tenant, func(s *Sent) (time.Duration, bool) { return s.End, s.Whole })})
		if tenant == asked {
			p.Curves = append(p.Curves, Curve{Name: tenant + " asks", Color: i, Dashed: true,
				Values: r.rate(tenant, func(s *Sent) (time.Duration, bool) { return s.At, true })})
		}
	}
	return p
}

// rate is how many events a second there were in each step of the load.
func (r *Run) rate(tenant string, when func(*Sent) (time.Duration, bool)) []float64 {
	out := make([]float64, r.steps())
	for _, s := range r.Of(tenant) {
		if at, ok := when(s); ok && at < r.Length {
			out[int(at.Seconds()/r.step())] += 1 / r.step()
		}
	}
	return out
}

// Waits plots the median wait in the queue of each class, of those that were served, by when they came.
func (r *Run) Waits(title string) *Plot {
	p := &Plot{Title: title, Unit: "s, median", Step: r.step()}
	for i := range r.Sources {
		class := r.Sources[i].Class
		if i > 0 && class == r.Sources[i-1].Class {
			continue
		}
		steps := make([][]float64, r.steps())
		for _, s := range r.All {
			if s.Source.Class == class && s.Whole && s.At < r.Length {
				k := int(s.At.Seconds() / r.step())
				steps[k] = append(steps[k], queued(s))
			}
		}
		c := Curve{Name: class, Color: i}
		for _, values := range steps {
			c.Values = append(c.Values, quantile(values, .5))
		}
		p.Curves = append(p.Curves, c)
	}
	return p
}

// step is the time between two points of a plot, in seconds: a thirtieth of the load, but whole.
func (r *Run) step() float64 { return math.Max(1, math.Round(r.Length.Seconds()/30)) }

func (r *Run) steps() int { return int(math.Ceil(r.Length.Seconds() / r.step())) }
