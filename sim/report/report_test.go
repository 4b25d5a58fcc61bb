// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios reads runs, an event a line, and shows what is made of them. See testdata.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		r := &Report{Title: "A rehearsal", Command: "penstock sim run"}
		var before Suite
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "report":
				r = &Report{Title: "A rehearsal", Command: "penstock sim run"}
				for _, a := range d.CmdArgs {
					switch a.Key {
					case "baseline":
						r.Baseline = a.Vals[0]
					case "command":
						r.Command = a.Vals[0]
					}
				}
				r.Notes = strings.Split(d.Input, "\n")
				if d.Input == "" {
					r.Notes = nil
				}
			case "run":
				r.Add(scenario(t, d).Run())
			case "ttft":
				// One run for each line: policy workload rate seed, and the TTFT of its requests in ms.
				for _, text := range strings.Split(d.Input, "\n") {
					f := strings.Fields(text)
					rec := NewRecorder(Setup{Policy: f[0], Workload: f[1], Rate: num(t, f[2]), Seed: uint64(num(t, f[3]))})
					for i, v := range f[4:] {
						rec.Sent(i, 0, "", "", 10)
						if v == "-" {
							rec.Failed(i, time.Second, "rejected")
							continue
						}
						at := time.Duration(num(t, v) * 1e6)
						rec.First(i, at)
						rec.Done(i, at, 1, 0, -1, 0)
					}
					r.Add(rec.Run())
				}
			case "table":
				return written(t, r.Table)
			case "json":
				return written(t, r.JSON)
			case "html":
				// Only what a line of it must hold, so that the look can change.
				var want string
				d.ScanArgs(t, "grep", &want)
				page := written(t, r.HTML)
				var out []string
				for _, m := range regexp.MustCompile(want).FindAllString(page, -1) {
					if m = html.UnescapeString(m); !slices.Contains(out, m) {
						out = append(out, m)
					}
				}
				return strings.Join(out, "\n") + "\n"
			case "suite":
				return written(t, r.Suite().Markdown)
			case "put":
				return r.Suite().Put(d.Input + "\n")
			case "before":
				var err error
				if before, err = ParseSuite(strings.NewReader(d.Input)); err != nil {
					return err.Error() + "\n"
				}
				return fmt.Sprintf("%d rows\n", len(before))
			case "compare":
				var out strings.Builder
				for _, c := range Compare(before, r.Suite()) {
					fmt.Fprintln(&out, c)
				}
				return out.String()
			default:
				d.Fatalf(t, "unknown command")
			}
			return ""
		})
	})
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func num(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// scenario feeds a recorder: each line is a time in ms, what happens, and to whom.
func scenario(t *testing.T, d *datadriven.TestData) *Recorder {
	t.Helper()
	var s Setup
	for _, a := range d.CmdArgs {
		v := a.Vals[0]
		switch a.Key {
		case "policy":
			s.Policy = v
		case "workload":
			s.Workload = v
		case "rate":
			s.Rate = num(t, v)
		case "seed":
			s.Seed = uint64(num(t, v))
		case "ttft":
			s.SLO.TTFT = time.Duration(num(t, v) * 1e6)
		case "tpot":
			s.SLO.TPOT = time.Duration(num(t, v) * 1e6)
		case "warmup":
			s.Warmup = time.Duration(num(t, v) * 1e6)
		case "exact":
			s.Exact = int(num(t, v))
		case "endpoints":
			s.Endpoints = a.Vals
		case "kinds":
			s.Kinds = a.Vals
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	rec := NewRecorder(s)
	for _, text := range strings.Split(d.Input, "\n") {
		f := strings.Fields(text)
		if len(f) < 3 {
			continue
		}
		at, who := time.Duration(num(t, f[0])*1e6), int(num(t, f[2]))
		arg := func(name, def string) string {
			for _, w := range f[3:] {
				if v, ok := strings.CutPrefix(w, name+"="); ok {
					return v
				}
			}
			return def
		}
		n := func(name, def string) int { return int(num(t, arg(name, def))) }
		switch f[1] {
		case "sent":
			rec.Sent(who, at, arg("tenant", ""), arg("class", ""), n("prompt", "0"))
		case "prompt":
			rec.Prompt(who, n("tokens", "0"))
		case "first":
			rec.First(who, at)
		case "token":
			rec.Token(who, at, n("n", "1"))
		case "done":
			rec.Done(who, at, n("output", "0"), n("cached", "0"), n("endpoint", "-1"), time.Duration(num(t, arg("queued", "0"))*1e6))
		case "failed":
			rec.Failed(who, at, arg("kind", "error"))
		case "sample":
			rec.Sample(at, who, n("waiting", "0"), n("running", "0"), num(t, arg("kv", "0")))
		case "queue":
			rec.Queue(at, who, n("n", "0"))
		case "late":
			rec.Late(at)
		case "client":
			rec.Client(at, who)
		default:
			d.Fatalf(t, "unknown event %q", f[1])
		}
	}
	return rec
}

// TestHostileNames has names that would be markup, a terminal's command, or the end of a cell: they come
// from files and from the network.
func TestHostileNames(t *testing.T) {
	const evil = "</title></style><script>alert(1)</script>\x1b[31m\u202e|\n<b>"
	r := &Report{Title: evil, Command: evil, Notes: []string{evil}}
	for _, seed := range []uint64{1, 2} {
		for _, policy := range []string{evil, evil + "2"} {
			for _, rate := range []float64{1, 2} {
				rec := NewRecorder(Setup{Policy: policy, Workload: evil, Rate: rate, Seed: seed, SLO: SLO{TTFT: 1}, Endpoints: []string{evil, "x"}, Kinds: []string{evil, "y"}})
				for i := range 4 {
					rec.Sent(i, 0, evil[:i*10], evil[:i*10], 100)
					rec.Sample(0, 0, 5, 5, 1)
					rec.Queue(0, 0, 5)
					if i == 0 {
						rec.Failed(i, time.Second, evil)
						continue
					}
					rec.First(i, time.Second)
					rec.Done(i, 2*time.Second, 10, 5, 0, time.Second)
				}
				rec.Client(time.Second, 1)
				r.Add(rec.Run())
			}
		}
	}
	page := written(t, r.HTML)
	if tag := regexp.MustCompile(`<(script|b)\b|\x1b|</title></style>`).FindString(page); tag != "" {
		t.Errorf("a name became markup: %s", page[max(0, strings.Index(page, tag)-100):][:200])
	}
	if !strings.Contains(page, "&lt;script&gt;alert(1)") {
		t.Error("the name is not on the page")
	}
	table := written(t, r.Table)
	if strings.ContainsAny(table, "\x1b\u202e") {
		t.Errorf("a terminal would obey %q", table)
	}
	for line := range strings.Lines(table) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > Width && !strings.HasPrefix(line, "again") && !strings.HasPrefix(line, "note") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	rows, err := ParseSuite(strings.NewReader(written(t, r.Suite().Markdown)))
	if err != nil || len(rows) != 4 {
		t.Errorf("got %d rows of the suite, want 4: %v", len(rows), err)
	}
	if changes := Compare(rows, r.Suite()); len(changes) > 0 {
		t.Errorf("a suite differs from itself: %v", changes)
	}
}

// TestSameBytes makes a report twice.
func TestSameBytes(t *testing.T) {
	make := func() string {
		r := demo([]string{"a", "b", "c"}, []string{"w", "v"}, []float64{1, 2}, []uint64{1, 2}, 4)
		return written(t, r.JSON) + written(t, r.HTML) + written(t, r.Table)
	}
	first, second := make(), make()
	if first != second {
		t.Error("the same runs gave other bytes")
	}
}

// TestPageIsBounded has 20 runs on 1,000 endpoints, and then a hundred policies at a hundred rates.
func TestPageIsBounded(t *testing.T) {
	policies := strings.Fields("round-robin random least-request sticky precise priced-miss sglang dynamo lmetric chwbl")
	r := demo(policies, []string{"w"}, []float64{1, 3}, []uint64{1}, 1000)
	if n := len(written(t, r.HTML)); n > 3<<19 {
		t.Errorf("20 runs make a page of %d bytes, want below 1.5 MB", n)
	}
	many := &Report{}
	one := demoRun("p", 1, "w", 0, 1, 1, 4)
	for p := range 30 {
		for rate := range 30 {
			x := one
			x.Policy, x.Rate = fmt.Sprint("policy-", p), float64(rate)
			many.Runs = append(many.Runs, x)
		}
	}
	if n := len(written(t, many.HTML)); n > 3<<20 {
		t.Errorf("900 runs make a page of %d bytes, want below 3 MB", n)
	}
}

// TestPageIsWhole has the parts that the page promises, and no need of a network or a script.
func TestPageIsWhole(t *testing.T) {
	page := written(t, demo([]string{"a", "b", "c"}, []string{"w", "v"}, []float64{1, 2, 3}, []uint64{1, 2}, 4).HTML)
	for _, want := range []string{
		"Mean time to first token", "Goodput under the SLO", "Cache hit rate", "TTFT quantiles", "Time per output token", "Load of endpoints", "Service by tenant",
		"Queue of", "Regret", "Errors by kind", "penstock sim run", "prefers-color-scheme",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if bad := regexp.MustCompile(`(?:src|href)="?(?:https?:)?//|<script|@import|ZgotmplZ|NaN|Inf\b`).FindString(page); bad != "" {
		t.Errorf("the page has %q", bad)
	}
	if pictures, named := strings.Count(page, `role="img"`), strings.Count(page, `role="img"><title>`); pictures == 0 || pictures != named {
		t.Errorf("%d pictures, %d with a title", pictures, named)
	}
}

// FuzzRead wants any report that can be read to be shown.
func FuzzRead(f *testing.F) {
	r := &Report{Title: "t"}
	r.Add(small().Run())
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.String())
	f.Add(`{"format":"penstock-report/1","runs":[{"rate":-1,"endpoints":[{"load":{"step_s":-1,"values":[1e308,-1]}}],"ttft_ms":{"count":1,"histogram":[[1e308,-1],[0,0]]}},{"rate":0}]}`)
	f.Add(`{"format":"penstock-report/1","runs":[{"policy":"a","bands":[{"waiting":{"step_s":1e300,"values":[1,2]}}]},{"policy":"b","rate":1e300}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, write := range []func(io.Writer) error{r.JSON, r.HTML, r.Table, r.Suite().Markdown} {
			if err := write(io.Discard); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzParseSuite wants a line number or rows.
func FuzzParseSuite(f *testing.F) {
	f.Add("| workload | rate | policy | TTFT mean, ms |\n|---|--:|---|--:|\n| w | 1 | p | 98 (95–100) |\n")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSuite(strings.NewReader(text)); err == nil {
			Compare(s, s)
		}
	})
}
