// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/kvcache"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
	"github.com/penstock-project/penstock/sim/kind"
	"github.com/penstock-project/penstock/sim/load"
	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/run"
	"github.com/penstock-project/penstock/sim/work"
)

// What is compared, on what and with what, where nobody says.
var (
	usualComparison = []string{"round-robin", "least-request", "llm-d-default", "penstock-default"}
	usualEndpoints  = "8"
)

// simFlags are the flags of sim run.
type simFlags struct {
	trace, suite, endpoints, fleet, rates, slo, faults, json, html string
	against, record                                                string
	workloads, compare, configs                                    []string
	seed                                                           uint64
	seeds, repeat, replicas, jobs                                  int
	scale                                                          float64
	duration, warmup, scrape, events                               time.Duration
}

func simRun(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := simFlags{}
	fs := flags("sim run", "[flags]", "Rehearses work on a fleet in virtual time, with the gateway's own code, and compares policies.", stdout)
	fs.StringVar(&f.trace, "trace", "", "a recorded trace: Mooncake JSONL, Azure CSV, or the gateway's access log")
	fs.StringArrayVar(&f.workloads, "workload", nil, "a kind of work with parameters, or a named one; may be repeated")
	fs.StringVar(&f.suite, "suite", "", "a list of workloads: "+strings.Join(work.SuiteNames(), ", "))
	fs.StringVar(&f.endpoints, "endpoints", usualEndpoints, "endpoints of kind "+kind.Default)
	fs.StringVar(&f.fleet, "fleet", "", "kinds of endpoints, such as 4xH100-70B-TP4,4xL4-8B (see penstock sim kinds), or a YAML file")
	fs.StringSliceVar(&f.compare, "compare", nil, "policies: names or files with an EndpointPickerConfig (default "+strings.Join(usualComparison, ",")+")")
	fs.StringArrayVar(&f.configs, "config", nil, "a file with an EndpointPickerConfig to compare; may be repeated")
	fs.Uint64Var(&f.seed, "seed", 1, "chooses whatever is left to chance")
	fs.IntVar(&f.seeds, "seeds", 1, "run so many seeds, from --seed on")
	fs.StringVar(&f.rates, "rate", "", "how many times as fast as a trace, or requests a second of a kind of work; several by comma")
	fs.Float64Var(&f.scale, "scale", 0, "the same as --rate with one number, for a trace")
	fs.IntVar(&f.repeat, "repeat", 1, "play the trace so many times, with other prompts each time")
	fs.IntVar(&f.replicas, "gateways", 1, "replicas of the gateway, which share the work and know nothing of each other")
	fs.DurationVar(&f.duration, "duration", 0, "send no more requests after this time")
	fs.DurationVar(&f.warmup, "warmup", 0, "time at the beginning whose requests are not counted")
	fs.StringVar(&f.slo, "slo", "", "count those that keep it, such as ttft=2s,tpot=50ms")
	fs.StringVar(&f.faults, "faults", "", "what goes wrong, such as 'loss?endpoint=2&at=1m&for=30s, slow?factor=3'")
	fs.DurationVar(&f.scrape, "scrape-interval", run.DefaultScrape, "how often engines' metrics are read")
	fs.DurationVar(&f.events, "event-delay", run.DefaultEvents, "how long KV events are under way")
	fs.StringVar(&f.json, "json", "", "file to write the report to as JSON; - for stdout")
	fs.StringVar(&f.html, "html", "", "file to write the report to as a page with plots")
	fs.StringVar(&f.against, "against", "", "file with the table that --record wrote; exit with 1 if a figure is worse now by more than its noise")
	fs.StringVar(&f.record, "record", "", "file to write a table of figures to, in place of the one that stands in its text")
	fs.IntVar(&f.jobs, "jobs", 0, "how many runs go at a time (default one for each core)")
	if err := parse(fs, args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return misused("unexpected argument %q", fs.Arg(0))
	}
	if f.suite != "" {
		if err := f.play(work.Suites[f.suite], fs.Changed); err != nil {
			return err
		}
	}
	s, err := f.settle(fs.Changed("endpoints"))
	if err != nil {
		return err
	}
	if err := writable(f.json, f.html); err != nil {
		return err
	}
	var before report.Suite
	if f.against != "" {
		if before, err = readSuite(f.against); err != nil {
			return err
		}
	}
	runs, err := s.run(ctx, f.jobs, stderr)
	if err != nil {
		return err
	}
	r := &report.Report{Title: s.title(), Command: f.repeatable(fs)}
	r.Add(runs...)
	out := benchFlags{json: f.json, html: f.html}
	if err := errors.Join(out.write(r, stdout), s.silence(runs)); err != nil {
		return err
	}
	if f.record != "" {
		if err := recordSuite(f.record, r.Suite()); err != nil {
			return err
		}
	}
	if f.against == "" {
		return nil
	}
	return held(report.Compare(before, r.Suite()), f.against, stderr)
}

// silence is an error where no policy had anything answered: then it is the fleet, or the work, that is wrong.
func (s *rehearsal) silence(runs []report.Run) error {
	sent, tooLong, room := 0, 0, 0
	for i := range runs {
		if runs[i].Completed > 0 {
			return nil
		}
		sent += runs[i].Requests
		tooLong += runs[i].Errors[run.TooLong]
	}
	for _, e := range s.fleet {
		room = max(room, e.Config.NumBlocks*e.Config.BlockSize)
	}
	switch {
	case sent == 0:
		return errors.New("no request was sent in that time")
	case tooLong == sent:
		return fmt.Errorf("nothing was answered: every prompt, with its answer, is longer than the largest cache of the fleet, which holds %d tokens", room)
	}
	return errors.New("nothing was answered at all")
}

// play takes what a suite says where the command line says nothing.
func (f *simFlags) play(s work.Suite, said func(flag string) bool) error {
	switch {
	case s.Workloads == nil:
		return misused("--suite %q: want %s", f.suite, strings.Join(work.SuiteNames(), " or "))
	case s.Compare == nil:
		return nil
	}
	if !said("compare") && !said("config") {
		f.compare = s.Compare
	}
	if !said("seeds") {
		f.seeds = s.Seeds
	}
	if !said("duration") {
		f.duration = s.Duration
	}
	return nil
}

func readSuite(path string) (report.Suite, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	s, err := report.ParseSuite(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func recordSuite(path string, s report.Suite) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(s.Put(string(text))), 0o644)
}

// held tells what changed against a file, and is an error if anything became worse.
func held(changes []report.Change, path string, stderr io.Writer) error {
	worse := 0
	for _, c := range changes {
		fmt.Fprintln(stderr, c)
		if c.Worse {
			worse++
		}
	}
	switch {
	case worse > 0:
		return fmt.Errorf("worse than %s in %d of its figures; make it better, or say why in the commit that records them anew (--record %s)", path, worse, path)
	case len(changes) > 0:
		fmt.Fprintf(stderr, "better than %s: record it (--record %s), so that it stays\n", path, path)
	}
	return nil
}

// repeatable is the command that gives the same report, wherever it is written to: the flags that were said, and the seed.
func (f *simFlags) repeatable(fs *pflag.FlagSet) string {
	args := []string{"sim", "run"}
	fs.Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "json", "html", "jobs", "seed", "against", "record":
			return
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok && flag.Name != "compare" {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+flag.Name, v)
			}
			return
		}
		args = append(args, "--"+flag.Name, strings.Trim(flag.Value.String(), "[]"))
	})
	args = append(args, "--seed", strconv.FormatUint(f.seed, 10))
	return "penstock " + repeatable(args)
}

// contender is a policy under the name that it was given.
type contender struct {
	name   string
	picker *config.Picker
}

// stage is a workload with the rates that it is played at.
type stage struct {
	spec  string
	open  work.Open
	rates []float64
}

// rehearsal is all that one command runs.
type rehearsal struct {
	f          *simFlags
	fleet      []kind.Endpoint
	contenders []contender
	stages     []stage
	faults     []work.Fault
	slo        report.SLO
}

// settle reads what the flags say. What is wrong with the content of files and specs is no misuse of the command line.
func (f *simFlags) settle(counted bool) (s *rehearsal, err error) {
	s = &rehearsal{f: f}
	switch {
	case counted && f.fleet != "":
		return nil, misused("--endpoints and --fleet exclude each other")
	case f.seeds < 1 || f.seeds > 1000:
		return nil, misused("--seeds %d: want 1 to 1000", f.seeds)
	case f.replicas < 1 || f.replicas > 64:
		return nil, misused("--gateways %d: want 1 to 64", f.replicas)
	case f.repeat < 1 || f.repeat > 1000:
		return nil, misused("--repeat %d: want 1 to 1000", f.repeat)
	case f.scale != 0 && f.rates != "":
		return nil, misused("--scale and --rate exclude each other")
	case f.duration < 0 || f.warmup < 0 || f.events < 0 || f.scrape <= 0:
		return nil, misused("--duration, --warmup and --event-delay must not be below 0, --scrape-interval must be above")
	case f.jobs < 0:
		return nil, misused("--jobs %d: want 1 or more", f.jobs)
	}
	if f.fleet != "" {
		if s.fleet, err = kind.Fleet(f.fleet); err != nil {
			return nil, fmt.Errorf("--fleet %w", err)
		}
	} else if s.fleet, err = kind.Count(f.endpoints); err != nil {
		return nil, fmt.Errorf("--endpoints %w", err)
	}
	if s.slo, err = parseSLO(f.slo); err != nil {
		return nil, err
	}
	if s.faults, err = work.ParseFaults(f.faults); err != nil {
		return nil, fmt.Errorf("--faults: %w", err)
	}
	for i, x := range s.faults {
		most := len(s.fleet)
		if x.Kind == "gateway-loss" {
			most = f.replicas
		}
		if x.Endpoint >= most {
			return nil, fmt.Errorf("--faults: %s, the %d. of them: endpoint=%d: want below %d", x.Kind, i+1, x.Endpoint, most)
		}
	}
	names := slices.Concat(f.compare, f.configs)
	if len(names) == 0 {
		names = usualComparison
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, misused("--compare: %s stands there twice", name)
		}
		p, err := pickerOf(name)
		if err != nil {
			return nil, err
		}
		s.contenders = append(s.contenders, contender{name, p})
	}
	return s, s.stage()
}

// stage reads the workloads.
func (s *rehearsal) stage() error {
	f := s.f
	specs := slices.Clone(f.workloads)
	if f.trace != "" {
		spec := "trace:" + f.trace
		if f.repeat > 1 {
			spec += fmt.Sprintf("?repeat=%d", f.repeat)
		}
		specs = append(specs, spec)
	}
	if f.suite != "" {
		specs = append(specs, work.Suites[f.suite].Workloads...)
	}
	if len(specs) == 0 {
		return misused("say what to play: --trace FILE, --workload SPEC or --suite NAME")
	}
	rates, err := parseRates(f.rates)
	if err != nil {
		return err
	}
	if f.scale != 0 {
		rates = []float64{f.scale}
	}
	for _, spec := range specs {
		open, err := work.Parse(spec)
		if err != nil {
			return err
		}
		st := stage{spec, open, rates}
		if rates == nil { // its own
			own := 1.0
			if !work.Multiplied(spec) {
				if own, err = work.OwnRate(spec); err != nil {
					return err
				}
			}
			st.rates = []float64{own}
		}
		s.stages = append(s.stages, st)
	}
	return nil
}

// parseRates reads numbers above 0, by comma.
func parseRates(text string) ([]float64, error) {
	if text == "" {
		return nil, nil
	}
	var list []float64
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(v > 0 && v <= 1e6) {
			return nil, misused("--rate %q: want numbers above 0, such as 2 or 0.5,1,2", text)
		}
		list = append(list, v)
	}
	return list, nil
}

// pickerOf finds a policy by its name or in a file.
func pickerOf(name string) (*config.Picker, error) {
	pool := &config.Pool{Namespace: "sim", Name: "pool", PickerRef: "sim"}
	if ext := filepath.Ext(name); ext == ".yaml" || ext == ".yml" || ext == ".json" || strings.ContainsRune(name, os.PathSeparator) {
		cfg, err := eppConfig(name, "", pool, true)
		if err != nil {
			return nil, err
		}
		return cfg.Pools[0].Picker, nil
	}
	p, err := policy.ByName(name)
	if err != nil {
		return nil, fmt.Errorf("--compare: %w; a file is a name that ends with .yaml", err)
	}
	cfg, err := eppConfig("", p.Config(), pool, true)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return cfg.Pools[0].Picker, nil
}

// laneOf builds what a configuration decides with, as the gateway does.
func laneOf(p *config.Picker) func(flow.Options) (*run.Lane, error) {
	return func(at flow.Options) (*run.Lane, error) {
		b := &planner{built: map[string]any{}}
		plan := &sched.Plan{}
		if err := b.plan(p, plan); err != nil {
			return nil, err
		}
		gate, err := b.gate(p, at)
		if err != nil {
			return nil, err
		}
		l := &run.Lane{Gate: gate, Plan: plan.Ready(), Queues: p.Gates.FlowControl}
		for _, n := range plan.Producers {
			switch v := n.Plugin.(type) {
			case *policy.BurstPrefixCacheProducer:
				l.Waits = true
			case interface{ Mirror() *kvcache.Mirror }:
				l.Mirrors = append(l.Mirrors, v.Mirror())
			case interface{ Tokens() *policy.TokenProducer }:
				t := v.Tokens()
				l.Tokens = l.Tokens || t.Local != nil || t.VLLM != nil || t.Simulated
			}
		}
		return l, nil
	}
}

// title says what is rehearsed.
func (s *rehearsal) title() string {
	var works []string
	for _, st := range s.stages {
		works = append(works, filepath.Base(strings.TrimPrefix(st.spec, "trace:")))
	}
	fleet := cmp.Or(s.f.fleet, s.f.endpoints+" × "+kind.Default)
	return fmt.Sprintf("Rehearsal of %s on %s", strings.Join(works, ", "), fleet)
}

// job is one run.
type job struct {
	contender
	stage
	seed uint64
	rate float64
}

// jobs are all runs, in the order of the report.
func (s *rehearsal) jobs() (list []job) {
	for _, st := range s.stages {
		for _, rate := range st.rates {
			for i := range s.f.seeds {
				for _, c := range s.contenders {
					list = append(list, job{c, st, s.f.seed + uint64(i), rate})
				}
			}
		}
	}
	return list
}

// run does all jobs, some at a time.
func (s *rehearsal) run(ctx context.Context, atOnce int, stderr io.Writer) ([]report.Run, error) {
	jobs := s.jobs()
	runs := make([]report.Run, len(jobs))
	bar := newBar(stderr, len(jobs))
	defer bar.clear()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(atOnce, runtime.GOMAXPROCS(0)))
	for i, j := range jobs {
		g.Go(func() error {
			w, err := j.open(j.seed, j.rate)
			if err != nil {
				return err
			}
			step := bar.begin(w.Total())
			runs[i], err = run.Do(ctx, run.Setup{
				Policy: j.name, Rate: j.rate, Lane: laneOf(j.picker), Fleet: s.fleet, Work: w, Faults: s.faults, Seed: j.seed,
				Replicas: s.f.replicas, Scrape: s.f.scrape, Events: s.f.events, Duration: s.f.duration, Warmup: s.f.warmup, SLO: s.slo,
				Progress: step,
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			bar.end()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return runs, nil
}

// bar is a line on a terminal that says how far it is.
type bar struct {
	w     io.Writer // nil for nobody
	jobs  int
	ended atomic.Int64 // in thousandths of a job
	mu    sync.Mutex
	shown time.Time
	began time.Time
}

func newBar(w io.Writer, jobs int) *bar {
	b := &bar{jobs: jobs, began: time.Now()}
	if load.IsTerminal(w) {
		b.w = w
	}
	return b
}

// begin tells of a job with so many requests, and returns who is told of its progress.
func (b *bar) begin(total int) func(ended int) {
	said := int64(0)
	return func(ended int) {
		if total > 0 {
			part := min(1000, int64(ended)*1000/int64(total))
			b.ended.Add(part - said)
			said = part
		}
		b.draw()
	}
}

func (b *bar) end() { b.draw() }

func (b *bar) draw() {
	if b.w == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if now.Sub(b.shown) < 100*time.Millisecond {
		return
	}
	b.shown = now
	const width = 40
	share := min(1, float64(b.ended.Load())/float64(1000*b.jobs))
	full := int(share * width)
	fmt.Fprintf(b.w, "\r[%s%s] %3.0f %% of %d runs, %s ", strings.Repeat("#", full), strings.Repeat("·", width-full), share*100, b.jobs, now.Sub(b.began).Round(time.Second))
}

func (b *bar) clear() {
	if b.w != nil {
		fmt.Fprintf(b.w, "\r%80s\r", "")
	}
}

func simKinds(_ context.Context, args []string, stdout, _ io.Writer) error {
	fs := flags("sim kinds", "", "Lists the kinds of engines that a fleet can be made of, and where their constants are from.", stdout)
	if err := parse(fs, args); err != nil {
		return err
	}
	return kind.List(stdout)
}

func simWorkloads(_ context.Context, args []string, stdout, _ io.Writer) error {
	fs := flags("sim workloads", "[NAME]", "Lists the kinds of work, named workloads and suites; with a name, what it is made of or its parameters.", stdout)
	if err := parse(fs, args); err != nil {
		return err
	}
	if fs.NArg() > 1 {
		return misused("unexpected argument %q", fs.Arg(1))
	}
	return work.List(stdout, fs.Arg(0))
}
