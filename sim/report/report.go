// SPDX-License-Identifier: Apache-2.0

// Package report answers: what came of the rehearsal? A [Recorder] turns the events of one run into a
// [Run] in bounded memory; a [Report] of runs becomes a table for a terminal, JSON, one page of HTML with
// plots, and the table of a suite that later runs are held against.
//
// Nothing here reads a clock, a host's name or the order of a map: the same events give the same bytes.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// Format names the JSON that this package writes, and its version.
const Format = "penstock-report/1"

// Report is what one command measured.
type Report struct {
	Format    string   `json:"format"`
	Title     string   `json:"title"`
	Command   string   `json:"command"`             // the one command that repeats it
	Baseline  string   `json:"baseline,omitempty"`  // the policy that the others are shown as differences to; none if empty
	Workloads []string `json:"workloads,omitempty"` // in order of appearance
	Notes     []string `json:"notes,omitempty"`
	Regret    []Regret `json:"regret,omitempty"` // by policy, least mean first
	Runs      []Run    `json:"runs"`
}

// Run is what one policy did with one workload, seed and rate. Times are in the unit that the key ends with.
type Run struct {
	Policy    string         `json:"policy"`
	Workload  string         `json:"workload"`
	Seed      uint64         `json:"seed"`
	Rate      float64        `json:"rate"`                 // multiplier of a trace, requests per second of a generator
	Warmup    int            `json:"warmup,omitempty"`     // requests of the warm-up, counted nowhere else
	Requests  int            `json:"requests"`             // sent after the warm-up
	Completed int            `json:"completed"`            // fully answered
	Errors    map[string]int `json:"errors"`               // by kind; "unfinished" are those open at the end
	DurationS float64        `json:"duration_s"`           // from the end of the warm-up to the last end of a request
	HitRate   float64        `json:"hit_rate"`             // cached tokens of all prompt tokens of completed requests
	TTFT      Dist           `json:"ttft_ms"`              // from when a request should have been sent to its first token
	TPOT      Dist           `json:"tpot_ms"`              // mean time per token after the first, by request
	ITL       Dist           `json:"itl_ms,omitzero"`      // between two tokens, by token
	E2E       Dist           `json:"e2e_ms"`               // from when a request should have been sent to its end
	Queue     Dist           `json:"queue_ms"`             // in the gateway's queue
	Schedule  Dist           `json:"schedule_us,omitzero"` // a decision in real time; left out where it was not measured

	ThroughputRPS    float64 `json:"throughput_rps"`
	PromptTokensPerS float64 `json:"prompt_tokens_per_s"`
	OutputTokensPerS float64 `json:"output_tokens_per_s"`
	PromptTokens     int64   `json:"prompt_tokens"`
	CachedTokens     int64   `json:"cached_tokens"`
	OutputTokens     int64   `json:"output_tokens"`

	SLO     SLO      `json:"slo,omitzero"`
	Goodput *Goodput `json:"goodput,omitempty"` // nil without an SLO

	Jain      float64    `json:"jain,omitempty"` // see [Recorder.Run]; 0 with fewer than two tenants
	Tenants   []Tenant   `json:"tenants,omitempty"`
	Classes   []Class    `json:"classes,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	Bands     []Band     `json:"bands,omitempty"`
	Client    *Client    `json:"client,omitempty"` // of real time only
	Regret    float64    `json:"regret,omitempty"` // against the best of the same workload, rate and seed
}

// Dist is how a figure is distributed. A quantile q is by nearest rank: the least value that at least
// q·count of the values do not exceed. It is exact for up to [Setup.Exact] values and less than 0.8 % off beyond.
type Dist struct {
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Count uint64  `json:"count"`
	// Histogram is for plots: pairs of an upper bound, in the figure's unit, and how many values are below
	// it and not below the bound before. Empty buckets are left out.
	Histogram [][2]float64 `json:"histogram,omitempty"`
}

// SLO is what a request has to keep to be good. A zero is not asked for.
type SLO struct {
	TTFT time.Duration `json:"-"`
	TPOT time.Duration `json:"-"`
	E2E  time.Duration `json:"-"`
}

type sloJSON struct {
	TTFT float64 `json:"ttft_ms,omitempty"`
	TPOT float64 `json:"tpot_ms,omitempty"`
	E2E  float64 `json:"e2e_ms,omitempty"`
}

// MarshalJSON writes milliseconds.
func (s SLO) MarshalJSON() ([]byte, error) {
	return json.Marshal(sloJSON{ms(s.TTFT), ms(s.TPOT), ms(s.E2E)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *SLO) UnmarshalJSON(text []byte) error {
	var in sloJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	back := func(ms float64) time.Duration { return time.Duration(math.Round(ms * 1e6)) }
	*s = SLO{back(in.TTFT), back(in.TPOT), back(in.E2E)}
	return nil
}

// String is for people: "TTFT ≤ 2s, TPOT ≤ 50ms".
func (s SLO) String() string {
	text := ""
	for _, part := range []struct {
		name string
		d    time.Duration
	}{{"TTFT", s.TTFT}, {"TPOT", s.TPOT}, {"E2E", s.E2E}} {
		if part.d > 0 {
			if text != "" {
				text += ", "
			}
			text += part.name + " ≤ " + part.d.String()
		}
	}
	return text
}

// Goodput counts the requests that kept the SLO, failed ones among those that did not.
type Goodput struct {
	Share float64 `json:"share"` // of the requests sent
	RPS   float64 `json:"rps"`
}

// Tenant is what one tenant got. Beyond [MaxTenants] they share one named "(others)".
type Tenant struct {
	Name          string  `json:"name"`
	Requests      int     `json:"requests"`
	Completed     int     `json:"completed"`
	PromptTokens  int64   `json:"prompt_tokens"`  // asked for, failed ones included
	ServiceTokens int64   `json:"service_tokens"` // uncached prompt tokens and twice the output, of completed requests
	HitRate       float64 `json:"hit_rate"`
	Goodput       float64 `json:"goodput,omitempty"` // share
	TTFT          Dist    `json:"ttft_ms"`
	Queue         Dist    `json:"queue_ms"`
}

// Class is what came of one kind of work.
type Class struct {
	Name      string  `json:"name"`
	Requests  int     `json:"requests"`
	Completed int     `json:"completed"`
	HitRate   float64 `json:"hit_rate"`
	Goodput   float64 `json:"goodput,omitempty"` // share
	TTFT      Dist    `json:"ttft_ms"`
	TPOT      Dist    `json:"tpot_ms"`
}

// Endpoint is what one endpoint did.
type Endpoint struct {
	Name         string  `json:"name"`
	Kind         string  `json:"kind,omitempty"`
	Requests     int     `json:"requests"` // completed there
	PromptTokens int64   `json:"prompt_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	HitRate      float64 `json:"hit_rate"`
	Busy         float64 `json:"busy"`          // share of the samples in which something ran
	Load         Series  `json:"load,omitzero"` // waiting and running requests
	KV           Series  `json:"kv,omitzero"`   // share of the KV cache in use
}

// Band is how many requests of one priority waited in the gateway.
type Band struct {
	Priority int    `json:"priority"`
	Waiting  Series `json:"waiting"`
}

// Series is a value over time: each is the mean of the samples of one step, the first step begins at 0.
type Series struct {
	StepS  float64   `json:"step_s"`
	Values []float64 `json:"values"`
}

// IsZero reports that nothing was sampled, for encoding/json.
func (s Series) IsZero() bool { return len(s.Values) == 0 }

// Client is what it cost to send the load. One that is near its limit measures itself.
type Client struct {
	CPUS  float64 `json:"cpu_s"`
	Cores int     `json:"cores"`
	Busy  float64 `json:"busy"`    // share of its cores
	Late  Dist    `json:"late_ms"` // from when a request should have been sent to when it was
	// Saturated tells that the client had no cores left or sent late, so that what it measured is partly its own.
	Saturated bool `json:"saturated,omitempty"`
}

// Add appends runs and keeps the list of workloads.
func (r *Report) Add(runs ...Run) {
	r.Runs = append(r.Runs, runs...)
	r.finish()
}

// JSON writes the report, each run on its own line.
func (r *Report) JSON(w io.Writer) error {
	r.finish()
	b := bufio.NewWriter(w)
	head := *r
	head.Runs = nil
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	const empty = `"runs":null}`
	_, _ = b.Write(text[:len(text)-len(empty)])
	_, _ = b.WriteString("\n\"runs\":[")
	for i := range r.Runs {
		text, err := json.Marshal(&r.Runs[i])
		if err != nil {
			return err
		}
		if i > 0 {
			_ = b.WriteByte(',')
		}
		_ = b.WriteByte('\n')
		_, _ = b.Write(text)
	}
	_, _ = b.WriteString("\n]}\n")
	return b.Flush()
}

// maxJSON bounds what Read takes: a thousand runs on a thousand endpoints are below it.
const maxJSON = 1 << 30

// Read takes what JSON wrote. Keys that it does not know are left out.
func Read(in io.Reader) (*Report, error) {
	r := &Report{}
	d := json.NewDecoder(io.LimitReader(in, maxJSON))
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("not a report of penstock: %w", err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("format is %q; want %q, as `penstock sim run --json` and `penstock bench --json` write it", r.Format, Format)
	}
	r.finish()
	return r, nil
}

func ms(d time.Duration) float64 { return round(float64(d) / 1e6) }

// round keeps six digits, and no number that JSON cannot say.
func round(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 6, 64), 64)
	return x
}

// per is a/b, 0 where there is no b.
func per(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return round(a / b)
}
