// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/plugin"
	"github.com/penstock-project/penstock/sched"
)

// TestScenarios runs the files of testdata. Each command that makes a policy takes by=TYPE and its parameters as JSON.
//
//	band [also=yes]              makes a fairness policy of one band; with also another band of the same plugin
//	enter tenant= n= uncached= prompt= output= band=
//	                             n requests come, with what is estimated of each
//	go n= refuse=a+b band=       n go, one after another, while the tenants to refuse have no room: tells whose went
//	end tenant= uncached= output= prompt=
//	                             the tenant's oldest that runs ends, and was really that
//	wait seconds=                time passes
//	scores                       what the policy notes of those that wait
//	programs                     what it tells of programs
//	known                        how many tenants are remembered
//
// `order` takes a line for each request after the parameters: its name, then entered= received= (seconds), ttl= ttft= (seconds),
// uncached=, passed=. It tells their order, and at= whom a policy that chooses takes then. `ceilings s= priorities= looks=`
// asks a usage limit. `fleet` sets endpoints, one a line: name, waiting= running= kv= age= (of these, in seconds), requests=
// tokens= (in flight, of which unseen= were sent after the last look), kept= (on their way). `room tokens= prompt=` and `filter`
// ask a detector.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scene{now: time.Unix(1000, 0), t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := s.run(d)
			if err != nil {
				return err.Error() + "\n"
			}
			return out
		})
	})
}

type scene struct {
	t     *testing.T
	now   time.Time
	maker FairnessMaker
	bands []*bench
	fleet []*fleet.Endpoint
}

// made makes a plugin of a set with the parameters in the first line of the input.
func made[T any](set plugin.Set[T], d *datadriven.TestData) (v T, rest []string, err error) {
	parameters := "{}"
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		if strings.HasPrefix(line, "{") {
			parameters = line
		} else if line != "" {
			rest = append(rest, line)
		}
	}
	v, err = set.New(text(d, "by", ""), func(into any) error {
		dec := json.NewDecoder(strings.NewReader(parameters))
		dec.DisallowUnknownFields()
		return dec.Decode(into)
	})
	return v, rest, err
}

func has(d *datadriven.TestData, key string) bool { return d.HasArg(key) }

func text(d *datadriven.TestData, key, or string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return strings.Join(a.Vals, ",")
		}
	}
	return or
}

func number(d *datadriven.TestData, key string, or float64) float64 {
	v := text(d, key, "")
	if v == "" {
		return or
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		panic(d.Pos + ": " + err.Error())
	}
	return f
}

func fields(line string) (string, map[string]float64) {
	parts := strings.Fields(line)
	m := map[string]float64{}
	for _, p := range parts[1:] {
		k, v, _ := strings.Cut(p, "=")
		m[k], _ = strconv.ParseFloat(v, 64)
	}
	return parts[0], m
}

func after(t time.Time, s float64) time.Time { return t.Add(time.Duration(s * float64(time.Second))) }

func (s *scene) run(d *datadriven.TestData) (string, error) {
	var b strings.Builder
	in := func() *bench { return s.bands[int(number(d, "band", 0))] }
	switch d.Cmd {
	case "band":
		if has(d, "also") {
			s.bands = append(s.bands, newBench(s.maker.New(), s.now))
			return "", nil
		}
		m, _, err := made(Fairness, d)
		if err != nil {
			return "", err
		}
		s.maker, s.bands = m, []*bench{newBench(m.New(), s.now)}
	case "enter":
		for range int(number(d, "n", 1)) {
			in().now = s.now
			uncached := int64(number(d, "uncached", 0))
			in().enter(text(d, "tenant", ""), flow.Ask{Uncached: uncached, Tokens: int64(number(d, "prompt", float64(uncached))), Output: int64(number(d, "output", 0))})
		}
	case "go":
		refuse := strings.Split(text(d, "refuse", ""), "+")
		in().now = s.now
		var went []string
		for range int(number(d, "n", 1)) {
			f := in().next(func(f *flow.Flow) bool { return !slices.Contains(refuse, f.Tenant) })
			if f == nil {
				went = append(went, "nobody")
				break
			}
			went = append(went, f.Tenant)
			in().went(f)
		}
		return strings.Join(went, " ") + "\n", nil
	case "end":
		in().now = s.now
		in().end(text(d, "tenant", ""), int64(number(d, "uncached", -1)), int64(number(d, "output", -1)), int64(number(d, "prompt", -1)))
	case "wait":
		s.now = after(s.now, number(d, "seconds", 0))
	case "scores":
		for _, name := range slices.Sorted(maps.Keys(in().flows)) {
			fmt.Fprintf(&b, "%s %.6g\n", name, in().flows[name].Score)
		}
	case "programs":
		m := in().Fairness.(flow.Measured)
		even, ok := m.Evenness(s.now)
		fmt.Fprintf(&b, "evenness %.4f %v\n", even, ok)
		var lines []string
		m.Programs(s.now, func(program string, wait time.Duration, attained float64) {
			lines = append(lines, fmt.Sprintf("%s wait=%v attained=%.6g\n", program, wait, attained))
		})
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	case "known":
		fmt.Fprintln(&b, known(in().Fairness))
	case "order":
		o, lines, err := made(Orderings, d)
		if err != nil {
			return "", err
		}
		return s.order(o, lines, number(d, "at", 0)), nil
	case "ceilings":
		l, _, err := made(Limits, d)
		if err != nil {
			return "", err
		}
		var priorities []int
		for _, p := range strings.Split(text(d, "priorities", ""), ",") {
			n, _ := strconv.Atoi(p)
			priorities = append(priorities, n)
		}
		for range int(number(d, "looks", 1)) {
			for i, c := range l.Ceilings(number(d, "s", 0), priorities, nil) {
				fmt.Fprintf(&b, "%s%.4g", cond(i > 0, " ", ""), c)
			}
			b.WriteString("\n")
		}
	case "fleet":
		s.fleet = nil
		for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			s.fleet = append(s.fleet, endpoint(line, s.now))
		}
	case "room":
		v, _, err := made(Detectors, d)
		if err != nil {
			return "", err
		}
		tokens := int64(number(d, "tokens", 0))
		if w, ok := v.(flow.Weigher); ok {
			tokens = w.Weight(tokens, int64(number(d, "prompt", float64(tokens))))
		}
		for _, e := range s.fleet {
			view := viewOf(e, s.now)
			fill, _ := v.Fill(view)
			fmt.Fprintf(&b, "%s %s, filled %.3g\n", e.Name, cond(v.Room(view, tokens), "room", "full"), fill)
		}
	case "filter":
		v, _, err := made(Detectors, d)
		if err != nil {
			return "", err
		}
		c := &sched.Cycle{Now: s.now, Stale: 2 * time.Second}
		c.Begin(s.fleet)
		keep := c.Mask()
		v.(sched.Filter).Filter(c, keep)
		for i, e := range s.fleet {
			if keep[i] {
				fmt.Fprintf(&b, "%s ", e.Name)
			}
		}
		fmt.Fprintf(&b, "(drops where %s)\n", v.(sched.Reasoner).Reason())
	default:
		return "", fmt.Errorf("unknown command %q", d.Cmd)
	}
	return b.String(), nil
}

func cond[T any](ok bool, yes, no T) T {
	if ok {
		return yes
	}
	return no
}

func known(f flow.Fairness) int {
	switch f := f.(type) {
	case *vtc:
		return len(f.by)
	case *dlpm:
		return len(f.by)
	case *programAware:
		return len(f.by)
	}
	return 0
}

func (s *scene) order(o flow.Ordering, lines []string, at float64) string {
	type ranked struct {
		name string
		rank time.Time
		flow.Waiting
	}
	var list []ranked
	for _, line := range lines {
		name, m := fields(line)
		entered := after(s.now, m["entered"])
		a := &flow.Ask{Received: after(s.now, m["received"]), TTFT: time.Duration(m["ttft"] * float64(time.Second)), Uncached: int64(m["uncached"])}
		list = append(list, ranked{name, o.Rank(a, entered, time.Duration(m["ttl"]*float64(time.Second))), flow.Waiting{Ask: a, Entered: entered, Passed: int(m["passed"])}})
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return a.rank.Compare(b.rank) })
	var b bytes.Buffer
	for i, r := range list {
		fmt.Fprintf(&b, "%s%s", cond(i > 0, " ", ""), r.name)
	}
	if c, ok := o.(flow.Chooser); ok {
		var window []flow.Waiting
		for _, r := range list[:min(len(list), c.Window())] {
			window = append(window, r.Waiting)
		}
		fmt.Fprintf(&b, ": %s goes", list[c.Choose(after(s.now, at), window)].name)
	}
	return b.String() + "\n"
}

func endpoint(line string, now time.Time) *fleet.Endpoint {
	name, m := fields(line)
	e := &fleet.Endpoint{ID: fleet.ID{Name: name}, Load: &fleet.Load{}}
	at := after(now, -m["age"])
	signal := func(key string) (s fleet.Signal) {
		if v, ok := m[key]; ok {
			s = fleet.Signal{Value: v, At: at}
		}
		return s
	}
	e.Waiting, e.Running, e.KVUsage = signal("waiting"), signal("running"), signal("kv")
	n := int64(m["requests"])
	for i := range n {
		e.Load.Take(now, cond(i == 0, int64(m["tokens"]), 0), 0)
	}
	e.Seen = n - int64(m["unseen"])
	e.Load.Reserve(int64(m["kept"]), 0)
	return e
}

func viewOf(e *fleet.Endpoint, now time.Time) flow.View {
	requests, tokens := e.Load.Reserved()
	return flow.View{Endpoint: e, Requests: e.Load.Requests() + requests, Tokens: e.Load.Tokens() + tokens, Now: now, Stale: 2 * time.Second}
}

// bench is a band as the gate keeps it, without the gate: it holds requests and calls the policy.
type bench struct {
	flow.Fairness
	now     time.Time
	flows   map[string]*flow.Flow
	queues  map[string][]*waiting
	running map[string][]flow.Ask
	order   int
}

type waiting struct {
	flow.Ask
	entered time.Time
	rank    time.Time
}

func newBench(f flow.Fairness, now time.Time) *bench {
	return &bench{Fairness: f, now: now, flows: map[string]*flow.Flow{}, queues: map[string][]*waiting{}, running: map[string][]flow.Ask{}}
}

func (b *bench) enter(tenant string, a flow.Ask) {
	a.Tenant = tenant
	b.order++
	w := &waiting{a, b.now, b.now.Add(time.Duration(b.order))} // equals go as they came
	b.queues[tenant] = append(b.queues[tenant], w)
	f := b.flows[tenant]
	if f == nil {
		f = &flow.Flow{Key: flow.Key{Tenant: tenant}, Len: 1}
		b.flows[tenant] = f
		b.head(f)
		b.Add(f, b.now)
		return
	}
	f.Len++
}

func (b *bench) head(f *flow.Flow) {
	w := b.queues[f.Tenant][0]
	f.Head, f.Rank = flow.Waiting{Ask: &w.Ask, Entered: w.entered}, w.rank
}

func (b *bench) next(ok func(*flow.Flow) bool) *flow.Flow { return b.Next(b.now, ok) }

// went lets the first of a flow go.
func (b *bench) went(f *flow.Flow) {
	tenant := f.Tenant
	b.Went(f, b.now)
	a := b.queues[tenant][0].Ask
	b.queues[tenant] = b.queues[tenant][1:]
	if f.Len--; f.Len == 0 {
		b.Remove(f, b.now)
		delete(b.flows, tenant)
	} else {
		b.head(f)
		b.Headed(f, b.now)
	}
	b.Charge(tenant, b.now, a.Uncached, a.Output)
	b.running[tenant] = append(b.running[tenant], a)
}

func (b *bench) end(tenant string, uncached, output, prompt int64) {
	a := b.running[tenant][0]
	b.running[tenant] = b.running[tenant][1:]
	was := func(v, estimate int64) int64 { return cmp.Or(cond(v < 0, estimate, v), 0) }
	b.Charge(tenant, b.now, was(uncached, a.Uncached)-a.Uncached, was(output, a.Output)-a.Output)
	if f, ok := b.Fairness.(flow.Finisher); ok {
		f.Finished(tenant, b.now, was(prompt, a.Tokens), was(output, a.Output))
	}
}
