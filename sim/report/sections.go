// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// regret is the heat map of how far each policy is from the best.
func (p *painter) regret() section {
	s := section{ID: "regret", Title: "Regret"}
	if len(p.r.Regret) < 2 || len(p.rungs) < 2 || p.r.Baseline != "" {
		return s // with one rung it is a column of the results
	}
	s.Text = "How much longer a policy's requests wait for their first token than the best policy's, (TTFT + 0.1 s) / (best + 0.1 s) with the mean over seeds: 1 is the best. The mean is geometric over workloads and rates."
	t := table{Title: "Regret by policy", Head: []string{"policy", "mean", "worst"}}
	shown := p.rungs[:min(len(p.rungs), mostRungs)]
	for _, g := range shown {
		t.Head = append(t.Head, at(shorten(g.workload, 24), g.rate))
	}
	rows := make([]strip, 0, len(p.r.Regret))
	for i, x := range p.r.Regret {
		l := line{Name: x.Policy, Ink: ink(p.ink(x.Policy)), Best: i == 0 && x.Failed == 0}
		st := strip{name: x.Policy, ink: p.ink(x.Policy), strong: l.Best, text: "–"}
		if x.Mean > 0 {
			st.values, st.low, st.high, st.text = []float64{x.Mean, x.Worst}, x.Mean, x.Worst, number(x.Mean)
			l.Cells = append(l.Cells, shade(x.Mean), shade(x.Worst))
		} else {
			l.Cells = append(l.Cells, cell{Text: "–"}, cell{Text: "–"})
		}
		for _, g := range shown {
			c := cell{Text: "–"}
			for _, k := range x.Cells {
				if k.Workload == g.workload && k.Rate == g.rate && k.Regret > 0 {
					c = shade(k.Regret)
					if k.Failed {
						c.More = "dropped work"
					}
				}
			}
			l.Cells = append(l.Cells, c)
		}
		t.Rows, rows = append(t.Rows, l), append(rows, st)
	}
	s.Blocks = []block{{Tables: []table{t}, Figs: []fig{{Title: "Regret, mean and worst", Text: "dot: mean; end of the bar: worst workload and rate",
		SVG: strips("Regret by policy", "mean and worst, the numbers are in the table above", rows, number, 0, true)}}}}
	return s
}

func shade(v float64) cell {
	c := cell{Text: number(v)}
	for i, from := range []float64{1.05, 1.2, 1.5, 2} {
		if v >= from {
			c.Class = fmt.Sprintf("r%d", i+1)
		}
	}
	return c
}

// ladder is what rates do to a workload.
func (p *painter) ladder() section {
	s := section{ID: "rates", Title: "Over the ladder of rates", Text: "A dot is the mean over seeds, its line their least and most."}
	for _, w := range p.r.Workloads {
		rungs := p.of(w)
		if len(rungs) < 2 {
			continue
		}
		b := block{Title: w}
		for _, x := range []struct {
			figure
			title, note string
			high        float64
			logY        bool
		}{
			{figGood, "Goodput under the SLO", "share of requests that kept it", 1, false},
			{figTTFT, "Mean time to first token", "logarithmic", 0, true},
			{figHit, "Cache hit rate", "cached tokens of prompt tokens", 1, false},
			{figRate, "Throughput", "completed requests per second", 0, false},
			{figErr, "Errors", "share of requests", 0, false},
		} {
			text := x.text
			if x.logY {
				text = span
			}
			c := chart{title: x.title + ", " + w, summary: "by rate and policy", yText: text, xText: exactly, yHigh: x.high, logY: x.logY, labels: true, xName: "rate"}
			for _, g := range rungs {
				c.xTicks = append(c.xTicks, g.rate)
			}
			low, high := rungs[0].rate, rungs[len(rungs)-1].rate
			c.logX = low > 0 && high/low > 4
			numbers := table{Title: x.title, Head: []string{"policy"}}
			for _, g := range rungs {
				numbers.Head = append(numbers.Head, "rate "+exactly(g.rate))
			}
			says := false
			for i, policy := range p.policies[:min(len(p.policies), mostCurves)] {
				k := curve{name: policy, ink: i}
				l := line{Name: policy, Ink: ink(i)}
				for _, g := range rungs {
					row := g.row(policy)
					if row == nil {
						l.Cells = append(l.Cells, cell{Text: "–"})
						continue
					}
					st := row.over(x.of)
					if st.N == 0 {
						l.Cells = append(l.Cells, cell{Text: "–"})
						continue
					}
					k.strong = k.strong || row.best && g == rungs[len(rungs)-1]
					says = says || st.Max > 0
					k.points = append(k.points, point{g.rate, st.Mean, st.Min, st.Max})
					l.Cells = append(l.Cells, cell{Text: text(st.Mean)})
				}
				if len(k.points) > 0 {
					c.curves, numbers.Rows = append(c.curves, k), append(numbers.Rows, l)
				}
			}
			if says {
				b.Figs = append(b.Figs, fig{x.title, x.note, c.draw(), &numbers})
			}
		}
		s.Blocks = append(s.Blocks, b)
	}
	return s
}

// of are the rungs of a workload.
func (p *painter) of(workload string) []*rung {
	var out []*rung
	for _, g := range p.rungs {
		if g.workload == workload {
			out = append(out, g)
		}
	}
	return out
}

// detailed are all rungs when there are few, else the highest rate of each workload.
func (p *painter) detailed() []*rung {
	if len(p.rungs) <= mostDetail {
		return p.rungs
	}
	out := p.top()
	return out[:min(len(out), mostDetail)]
}

// top are the rungs of the highest rate.
func (p *painter) top() []*rung {
	var out []*rung
	for _, w := range p.r.Workloads {
		rungs := p.of(w)
		out = append(out, rungs[len(rungs)-1])
	}
	return out
}

// latency is how times are distributed.
func (p *painter) latency() section {
	s := section{ID: "latency", Title: "Time to first token, time per token", Text: "Over all requests of all seeds. A curve further to the left is quicker; where it flattens is the tail."}
	for _, g := range p.detailed() {
		b := block{Title: g.String()}
		var quantiles []fig
		slo := g.rows[0].runs[0].SLO
		for _, x := range []struct {
			title, short string
			dist         func(*Run) *Dist
			mark         float64
		}{
			{"Time to first token", "TTFT", func(x *Run) *Dist { return &x.TTFT }, ms(slo.TTFT)},
			{"Time per output token", "TPOT", func(x *Run) *Dist { return &x.TPOT }, ms(slo.TPOT)},
			{"Time between two tokens", "ITL", func(x *Run) *Dist { return &x.ITL }, 0},
		} {
			c := chart{title: x.title + ", " + g.String(), summary: "share of requests below a time, by policy", logX: true, yHigh: 1,
				xText: span, yText: percent, mark: x.mark, markText: "SLO"}
			numbers := table{Title: x.title, Head: []string{"policy", "mean", "p50", "p90", "p95", "p99", "max"}}
			var rows []strip
			for i := range g.rows[:min(len(g.rows), mostCurves)] {
				w := &g.rows[i]
				k := curve{name: w.policy, ink: p.ink(w.policy), strong: w.best, points: cdf(w, x.dist)}
				if len(k.points) == 0 {
					continue
				}
				c.curves = append(c.curves, k)
				l := line{Name: w.policy, Ink: ink(k.ink), Best: w.best}
				q := func(of func(*Dist) float64) float64 {
					v := w.over(distOf(x.dist, of)).Mean
					l.Cells = append(l.Cells, cell{Text: span(v)})
					return v
				}
				q(func(d *Dist) float64 { return d.Mean })
				p50 := q(func(d *Dist) float64 { return d.P50 })
				p90 := q(func(d *Dist) float64 { return d.P90 })
				q(func(d *Dist) float64 { return d.P95 })
				p99 := q(func(d *Dist) float64 { return d.P99 })
				q(func(d *Dist) float64 { return d.Max })
				numbers.Rows = append(numbers.Rows, l)
				rows = append(rows, strip{name: w.policy, ink: k.ink, strong: w.best, values: []float64{p50, p90, p99}, low: p50, high: p99, text: span(p50)})
			}
			if len(c.curves) == 0 {
				continue
			}
			if x.short != "ITL" {
				quantiles = append(quantiles, fig{x.short + " quantiles", "dot: median, also in figures; ticks: p90 and p99",
					strips(x.title+" quantiles, "+g.String(), "median, p90 and p99 by policy", rows, span, 0, true), nil})
			}
			what := "share of requests that took no longer"
			if x.short == "ITL" {
				what = "share of tokens that took no longer"
			}
			b.Figs = append(b.Figs, fig{x.title, what, c.draw(), &numbers})
			if len(b.Key) == 0 {
				for _, k := range c.curves {
					b.Key = append(b.Key, swatch{k.name, ink(k.ink)})
				}
			}
		}
		if len(b.Figs) > 0 {
			b.Figs = append(b.Figs, quantiles...)
			s.Blocks = append(s.Blocks, b)
		}
	}
	return s
}

// cdf joins the histograms of a row's runs: they have the same bounds.
func cdf(w *row, dist func(*Run) *Dist) []point {
	sum := map[float64]float64{}
	total := 0.0
	for _, x := range w.runs {
		for _, h := range dist(x).Histogram {
			sum[h[0]] += h[1]
			total += h[1]
		}
	}
	var out []point
	seen := 0.0
	for _, le := range slices.Sorted(maps.Keys(sum)) {
		if len(out) == 0 {
			out = append(out, point{x: le / 1.12}) // where the first bucket begins, or a little before
		}
		seen += sum[le]
		out = append(out, point{x: le, y: seen / total})
	}
	return out
}

// sideBySide are the shares, for workloads with one rate: the others have a ladder.
func (p *painter) sideBySide() section {
	s := section{ID: "shares", Title: "Hits, goodput, throughput", Text: "A dot is the mean over seeds, its bar their least and most."}
	for _, w := range p.r.Workloads {
		rungs := p.of(w)
		if len(rungs) != 1 {
			continue
		}
		g := rungs[0]
		b := block{Title: g.String()}
		for _, x := range []struct {
			figure
			title string
			high  float64
		}{{figHit, "Cache hit rate", 0}, {figGood, "Goodput under the SLO", 1}, {figRate, "Completed requests per second", 0}, {figErr, "Errors", 0}} {
			var rows []strip
			says := false
			for i := range g.rows {
				r := &g.rows[i]
				st := r.over(x.of)
				says = says || st.N > 0 && st.Max > 0
				k := strip{name: r.policy, ink: p.ink(r.policy), strong: r.best, low: st.Min, high: st.Max, text: "–"}
				if st.N > 0 {
					k.values, k.text = []float64{st.Mean}, x.text(st.Mean)
				}
				rows = append(rows, k)
			}
			if says {
				b.Figs = append(b.Figs, fig{x.title, "", strips(x.title+", "+g.String(), "by policy; the numbers are in the table of results", rows, x.text, x.high, false), nil})
			}
		}
		if len(b.Figs) > 0 {
			s.Blocks = append(s.Blocks, b)
		}
	}
	return s
}

// queue is what waited in the gateway, by priority.
func (p *painter) queue() section {
	s := section{ID: "queue", Title: "The gateway's queue", Text: "Requests that wait in the gateway, by priority, at the highest rate, first seed."}
	plots := 0
	for _, g := range p.top() {
		high := 0.0
		for i := range g.rows {
			for _, b := range g.rows[i].runs[0].Bands {
				high = max(high, most(b.Waiting.Values))
			}
		}
		if high == 0 {
			continue
		}
		step := nice(high / 4)
		high = ceilTo(high, step)
		b := block{Title: g.String()}
		for i := range g.rows {
			x := g.rows[i].runs[0]
			if len(x.Bands) == 0 || plots == mostTimed {
				continue
			}
			plots++
			c := chart{title: "Queue of " + x.Policy + ", " + g.String(), summary: "waiting requests over time, by priority", xText: clock, yText: number, yHigh: high}
			numbers := table{Title: "Queue of " + x.Policy, Head: []string{"priority", "mean", "most"}}
			var names []string
			end := 0.0
			for k, band := range x.Bands[:min(len(x.Bands), inks)] {
				name := fmt.Sprintf("priority %d", band.Priority)
				of := curve{name: name, ink: k}
				for t, v := range band.Waiting.Values {
					of.points = append(of.points, point{x: float64(t) * band.Waiting.StepS, y: v})
				}
				end = max(end, float64(len(band.Waiting.Values))*band.Waiting.StepS)
				c.curves = append(c.curves, of)
				names = append(names, name)
				numbers.Rows = append(numbers.Rows, line{Name: name, Ink: ink(k), Cells: []cell{{Text: number(mean(band.Waiting.Values))}, {Text: number(most(band.Waiting.Values))}}})
			}
			c.xTicks = clockTicks(end)
			b.Figs = append(b.Figs, fig{x.Policy, "", c.draw(), &numbers})
			if len(names) > len(b.Key) {
				b.Key = nil
				for k, name := range names {
					b.Key = append(b.Key, swatch{name, ink(k)})
				}
			}
		}
		if len(b.Figs) > 0 {
			s.Blocks = append(s.Blocks, b)
		}
	}
	return s
}

func ceilTo(v, step float64) float64 {
	n := float64(int(v / step))
	if n*step < v {
		n++
	}
	return n * step
}

func most(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Max(v)
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return per(sum, float64(len(v)))
}

// tenants is who got what.
func (p *painter) tenants() section {
	s := section{ID: "tenants", Title: "Tenants", Text: "At the highest rate, mean over seeds. Service is uncached prompt tokens and twice the output tokens. Jain's index is of what each tenant got against its max-min fair share, in windows of 10 s: 1 is fair."}
	for _, g := range p.top() {
		names := tenantNames(g)
		if len(names) < 2 {
			continue
		}
		b := block{Title: g.String()}
		b.Text = fmt.Sprintf("%s, those that asked for most first.", count(len(names), "tenant"))
		names = names[:min(len(names), mostPeople)]
		ttft := table{Title: "TTFT by tenant", Head: []string{"TTFT mean, p99"}}
		var policies []string
		var bars [][]part
		var jain []string
		for i := range g.rows {
			w := &g.rows[i]
			ttft.Head = append(ttft.Head, w.policy)
			policies = append(policies, w.policy)
			if st := w.over(figJain.of); st.N > 0 {
				jain = append(jain, figJain.text(st.Mean))
			} else {
				jain = append(jain, "–")
			}
			all := w.over(func(x *Run) (float64, bool) {
				n := int64(0)
				for i := range x.Tenants {
					n += x.Tenants[i].ServiceTokens
				}
				return float64(n), true
			}).Mean
			var bar []part
			for k, name := range names[:min(len(names), inks)] {
				of := w.over(tenantOf(name, func(t *Tenant) (float64, bool) { return float64(t.ServiceTokens), true }))
				bar = append(bar, part{name, k, per(of.Mean*float64(of.N), all*float64(len(w.runs)))})
			}
			bars = append(bars, bar)
		}
		for k, name := range names {
			l := line{Name: name}
			if k < inks {
				l.Ink = ink(k)
			}
			for i := range g.rows {
				m := g.rows[i].over(tenantOf(name, func(t *Tenant) (float64, bool) { return t.TTFT.Mean, t.TTFT.Count > 0 }))
				q := g.rows[i].over(tenantOf(name, func(t *Tenant) (float64, bool) { return t.TTFT.P99, t.TTFT.Count > 0 }))
				if m.N == 0 {
					l.Cells = append(l.Cells, cell{Text: "–"})
					continue
				}
				l.Cells = append(l.Cells, cell{Text: span(m.Mean), More: span(q.Mean)})
			}
			ttft.Rows = append(ttft.Rows, l)
		}
		b.Tables = []table{ttft}
		b.Figs = []fig{{"Service by tenant", "share of all service, and Jain's index",
			stack("Service by tenant, "+g.String(), "share of service of each tenant, by policy", policies, bars, jain), serviceNumbers(g, names)}}
		s.Blocks = append(s.Blocks, b)
	}
	return s
}

func serviceNumbers(g *rung, names []string) *table {
	t := &table{Title: "Service tokens by tenant", Head: []string{"service tokens"}}
	for i := range g.rows {
		t.Head = append(t.Head, g.rows[i].policy)
	}
	for _, name := range names {
		l := line{Name: name}
		for i := range g.rows {
			l.Cells = append(l.Cells, cell{Text: number(g.rows[i].over(tenantOf(name, func(t *Tenant) (float64, bool) { return float64(t.ServiceTokens), true })).Mean)})
		}
		t.Rows = append(t.Rows, l)
	}
	return t
}

func tenantOf(name string, of func(*Tenant) (float64, bool)) func(*Run) (float64, bool) {
	return func(x *Run) (float64, bool) {
		for i := range x.Tenants {
			if x.Tenants[i].Name == name {
				return of(&x.Tenants[i])
			}
		}
		return 0, false
	}
}

// tenantNames are the tenants of a rung, those that asked for most first.
func tenantNames(g *rung) []string {
	asked := map[string]int64{}
	for i := range g.rows {
		for _, x := range g.rows[i].runs {
			for k := range x.Tenants {
				asked[x.Tenants[k].Name] += x.Tenants[k].PromptTokens
			}
		}
	}
	return slices.SortedFunc(maps.Keys(asked), func(a, b string) int {
		return cmp.Or(cmp.Compare(asked[b], asked[a]), cmp.Compare(a, b))
	})
}

// classes are kinds of work.
func (p *painter) classes() section {
	s := section{ID: "classes", Title: "Kinds of work", Text: "Mean over seeds, at the highest rate."}
	for _, g := range p.top() {
		var names []string
		for i := range g.rows {
			for _, x := range g.rows[i].runs {
				for k := range x.Classes {
					if n := x.Classes[k].Name; !slices.Contains(names, n) {
						names = append(names, n)
					}
				}
			}
		}
		if len(names) < 2 {
			continue
		}
		slices.Sort(names)
		t := table{Title: "Kinds of work, " + g.String(), Head: []string{"TTFT mean, hit rate"}}
		for i := range g.rows {
			t.Head = append(t.Head, g.rows[i].policy)
		}
		for _, name := range names {
			l := line{Name: name}
			for i := range g.rows {
				of := func(value func(*Class) (float64, bool)) Stat {
					return g.rows[i].over(func(x *Run) (float64, bool) {
						for k := range x.Classes {
							if x.Classes[k].Name == name {
								return value(&x.Classes[k])
							}
						}
						return 0, false
					})
				}
				ttft := of(func(c *Class) (float64, bool) { return c.TTFT.Mean, c.TTFT.Count > 0 })
				if ttft.N == 0 {
					l.Cells = append(l.Cells, cell{Text: "–"})
					continue
				}
				hit := of(func(c *Class) (float64, bool) { return c.HitRate, true })
				l.Cells = append(l.Cells, cell{Text: span(ttft.Mean), More: percent(hit.Mean)})
			}
			t.Rows = append(t.Rows, l)
		}
		s.Blocks = append(s.Blocks, block{Title: g.String(), Tables: []table{t}})
	}
	return s
}

// endpoints is the load of each over time.
func (p *painter) endpoints() section {
	s := section{ID: "endpoints", Title: "Endpoints", Text: "Requests that wait or run on each endpoint over time, at the highest rate, first seed. The stronger the colour, the more, by the square root and on one scale for all policies of a workload."}
	plots := 0
	for _, g := range p.top() {
		high := 0.0
		for i := range g.rows {
			for k := range g.rows[i].runs[0].Endpoints {
				high = max(high, most(g.rows[i].runs[0].Endpoints[k].Load.Values))
			}
		}
		b := block{Title: g.String()}
		t := table{Title: "Endpoints, " + g.String(), Head: []string{"policy", "load, mean", "load, most loaded", "least loaded", "requests", "busy", "hit rate"}}
		for i := range g.rows {
			x := g.rows[i].runs[0]
			if len(x.Endpoints) == 0 {
				continue
			}
			t.Rows = append(t.Rows, line{Name: x.Policy, Ink: ink(p.ink(x.Policy)), Best: g.rows[i].best, Cells: endpointCells(x.Endpoints)})
			if high == 0 || plots == mostTimed {
				continue
			}
			plots++
			rows, note, seconds := heatRows(x.Endpoints)
			b.Figs = append(b.Figs, fig{x.Policy, note, heat("Load of endpoints, "+x.Policy+", "+g.String(), "requests waiting and running over time", rows, high, seconds), nil})
		}
		if len(t.Rows) > 0 {
			b.Tables = append(b.Tables, t)
		}
		if len(b.Figs) > 0 {
			b.Text = "Strongest colour: " + number(high) + " requests."
		}
		if k := kinds(g); len(k.Rows) > 1 {
			b.Tables = append(b.Tables, k)
		}
		if len(b.Tables) > 0 {
			s.Blocks = append(s.Blocks, b)
		}
	}
	return s
}

func endpointCells(all []Endpoint) []cell {
	var load, requests, busy, hit Stat
	for i := range all {
		load.add(mean(all[i].Load.Values))
		requests.add(float64(all[i].Requests))
		busy.add(all[i].Busy)
		hit.add(all[i].HitRate)
	}
	return []cell{
		{Text: number(brief(load.Mean))}, {Text: number(brief(load.Max))}, {Text: number(brief(load.Min))},
		{Text: between(number(requests.Min), number(requests.Max))}, {Text: between(percent(busy.Min), percent(busy.Max))}, {Text: between(percent(hit.Min), percent(hit.Max))},
	}
}

// heatRows are the endpoints, or where there are many, groups of those with about the same mean load.
func heatRows(all []Endpoint) (rows []heatRow, note string, seconds float64) {
	for i := range all {
		seconds = max(seconds, all[i].Load.StepS*float64(len(all[i].Load.Values)))
	}
	if len(all) <= mostRows {
		for i := range all {
			rows = append(rows, heatRow{all[i].Name, all[i].Load.Values})
		}
		return rows, "", seconds
	}
	type loaded struct {
		load float64
		i    int
	}
	order := make([]loaded, len(all))
	for i := range all {
		order[i] = loaded{mean(all[i].Load.Values), i}
	}
	slices.SortFunc(order, func(a, b loaded) int { return cmp.Or(cmp.Compare(b.load, a.load), cmp.Compare(a.i, b.i)) })
	for k := range mostRows {
		from, to := k*len(order)/mostRows, (k+1)*len(order)/mostRows
		var sum, n []float64
		for _, o := range order[from:to] {
			for t, v := range all[o.i].Load.Values {
				sum, n = reach(sum, t), reach(n, t)
				sum[t] += v
				n[t]++
			}
		}
		for t := range sum {
			sum[t] /= n[t]
		}
		rows = append(rows, heatRow{fmt.Sprintf("%d–%d", from+1, to), sum})
	}
	return rows, fmt.Sprintf("%d endpoints, the most loaded first, a row is the mean of %d or so", len(all), len(all)/mostRows), seconds
}

// kinds are the endpoints by kind, where there are several.
func kinds(g *rung) table {
	t := table{Title: "Kinds of endpoints, " + g.String(), Head: []string{"kind: requests each, busy"}}
	var names []string
	for i := range g.rows {
		t.Head = append(t.Head, g.rows[i].policy)
		for _, e := range g.rows[i].runs[0].Endpoints {
			if e.Kind != "" && !slices.Contains(names, e.Kind) && len(names) < mostPeople {
				names = append(names, e.Kind)
			}
		}
	}
	for _, name := range names {
		l := line{Name: name}
		for i := range g.rows {
			var requests, busy Stat
			for _, e := range g.rows[i].runs[0].Endpoints {
				if e.Kind == name {
					requests.add(float64(e.Requests))
					busy.add(e.Busy)
				}
			}
			l.Cells = append(l.Cells, cell{Text: number(brief(requests.Mean)), More: percent(busy.Mean)})
		}
		t.Rows = append(t.Rows, l)
	}
	return t
}

// errors are those of each rung by kind.
func (p *painter) errors() section {
	s := section{ID: "errors", Title: "Errors", Text: "Requests that were not fully answered, over all seeds."}
	t := table{Title: "Errors by kind", Head: []string{"policy", "workload", "kind", "requests", "share"}}
	for _, g := range p.rungs {
		for i := range g.rows {
			w := &g.rows[i]
			sum := map[string]int{}
			requests := 0
			for _, x := range w.runs {
				requests += x.Requests
				for kind, n := range x.Errors {
					sum[kind] += n
				}
			}
			for _, kind := range slices.Sorted(maps.Keys(sum)) {
				if len(t.Rows) == 10*mostRungs {
					s.Text += " There are more kinds than are shown: see the JSON."
					return sectionOf(s, t)
				}
				t.Rows = append(t.Rows, line{Name: w.policy, Ink: ink(p.ink(w.policy)), Cells: []cell{
					{Text: g.String(), Class: "left"}, {Text: kind, Class: "left"}, {Text: commas(float64(sum[kind]))}, {Text: percent(per(float64(sum[kind]), float64(requests)))}}})
			}
		}
	}
	return sectionOf(s, t)
}

func sectionOf(s section, t table) section {
	if len(t.Rows) > 0 {
		s.Blocks = []block{{Tables: []table{t}}}
	}
	return s
}

// client is what it cost to send the load.
func (p *painter) client() section {
	s := section{ID: "client", Title: "The client", Text: "What it cost to send the load. Times count from when a request should have been sent, so a late client shows in them."}
	t := table{Title: "The client", Head: []string{"policy", "CPU", "busy", "late p50", "late p99", ""}}
	for i := range p.r.Runs {
		x := &p.r.Runs[i]
		if c := x.Client; c != nil && len(t.Rows) < 10*mostRungs {
			word := ""
			if c.Saturated {
				word = "saturated: these times are partly the client's own"
			}
			t.Rows = append(t.Rows, line{Name: x.Policy, Ink: ink(p.ink(x.Policy)), Cells: []cell{
				{Text: digits(c.CPUS, 1) + " s"}, {Text: percent(c.Busy) + " of " + count(c.Cores, "core")}, {Text: span(c.Late.P50)}, {Text: span(c.Late.P99)}, {Text: word, Class: "left"}}})
		}
	}
	return sectionOf(s, t)
}

// notes are what whoever measured has to say.
func (p *painter) notes() section {
	s := section{ID: "notes", Title: "Notes"}
	for _, n := range p.r.Notes {
		s.Blocks = append(s.Blocks, block{Note: n})
	}
	return s
}

// reading explains the words.
func (p *painter) reading() []string {
	out := []string{
		"Times to the first token (TTFT) count from when a request should have been sent. Time per output token (TPOT) is a request's mean after its first token. A quantile is the least value that this share of requests did not exceed; failed requests have no times, which is why a policy that drops work is marked.",
		"With several seeds a figure is the mean over them, and the small figures beside it their least and most: a difference that is smaller than these is none.",
	}
	if len(p.policies) > mostCurves {
		out = append(out, fmt.Sprintf("Plots show the first %d of %d policies.", mostCurves, len(p.policies)))
	}
	if p.r.Command != "" && strings.Contains(p.r.Command, "sim run") {
		out = append(out, "The command at the top gives the same bytes again.")
	}
	return out
}
