// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"testing"
	"time"
)

// Two requests on two endpoints: TTFT 100 and 300 ms, TPOT 20 ms (200 ms for 10 more tokens) and 50 ms
// (100 ms for 2 more), 400 of 1,500 prompt tokens cached; a third is dropped, a fourth still open.
func small() *Recorder {
	const ms = time.Millisecond
	r := NewRecorder(Setup{Policy: "p", Workload: "w", Seed: 7, Rate: 2, SLO: SLO{TTFT: 200 * ms}, Endpoints: []string{"a", "b"}})
	r.Sent(0, 0, "x", "chat", 1000)
	r.Sent(1, 100*ms, "y", "chat", 500)
	r.First(0, 100*ms)
	r.First(1, 400*ms)
	r.Done(0, 300*ms, 11, 400, 0, 10*ms)
	r.Done(1, 500*ms, 3, 0, 1, 30*ms)
	r.Sent(2, 200*ms, "y", "chat", 100)
	r.Failed(2, 250*ms, "rejected-queue-full")
	r.Sent(3, 300*ms, "y", "chat", 100)
	return r
}

func TestRecorder(t *testing.T) {
	run := small().Run()
	if run.Requests != 4 || run.Completed != 2 || run.Errors["rejected-queue-full"] != 1 || run.Errors["unfinished"] != 1 {
		t.Errorf("got %d requests, %d completed, %v", run.Requests, run.Completed, run.Errors)
	}
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"ttft mean", run.TTFT.Mean, 200}, {"ttft p50", run.TTFT.P50, 100}, {"ttft p90", run.TTFT.P90, 300}, {"ttft max", run.TTFT.Max, 300},
		{"tpot mean", run.TPOT.Mean, 35}, {"e2e mean", run.E2E.Mean, 350}, {"queue mean", run.Queue.Mean, 20},
		{"hit rate", run.HitRate, 0.266667}, {"duration", run.DurationS, 0.5}, {"throughput", run.ThroughputRPS, 4},
		{"prompt tokens/s", run.PromptTokensPerS, 3000}, {"output tokens/s", run.OutputTokensPerS, 28},
		{"goodput", run.Goodput.Share, 0.25}, {"goodput rps", run.Goodput.RPS, 2},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
		}
	}
}

func TestReadWhatWasWritten(t *testing.T) {
	r := &Report{Title: "t", Command: "c"}
	r.Add(small().Run())
	var first, second bytes.Buffer
	if err := r.JSON(&first); err != nil {
		t.Fatal(err)
	}
	again, err := Read(bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.JSON(&second); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Errorf("got %s\nwant %s", &second, &first)
	}
}
