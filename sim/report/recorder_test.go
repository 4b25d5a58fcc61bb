// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
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

// TestQuantiles holds the definition: the least value that a share of the values do not exceed.
func TestQuantiles(t *testing.T) {
	for _, limit := range []int{100, 10} { // all kept exactly, and in buckets
		var s samples
		for i := range 100 {
			s.add(time.Duration(100-i)*time.Millisecond, 1, limit) // 1 … 100 ms
		}
		d := s.dist(time.Millisecond, true)
		for _, c := range []struct {
			name      string
			got, want float64
		}{{"mean", d.Mean, 50.5}, {"p50", d.P50, 50}, {"p90", d.P90, 90}, {"p95", d.P95, 95}, {"p99", d.P99, 99}, {"max", d.Max, 100}} {
			if off := math.Abs(c.got-c.want) / c.want; off > 0.008 || limit == 100 && off != 0 {
				t.Errorf("%d kept: %s: got %v, want %v", limit, c.name, c.got, c.want)
			}
		}
		n := 0.0
		for _, h := range d.Histogram {
			n += h[1]
		}
		if d.Count != 100 || n != 100 {
			t.Errorf("%d kept: %d values, %v in the histogram; want 100", limit, d.Count, n)
		}
	}
}

// TestBuckets has each value in a bucket that is at most 1/128 of it wide.
func TestBuckets(t *testing.T) {
	for _, v := range []int64{0, 1, 127, 128, 255, 256, 257, 511, 512, 1e6, 1e9 + 1, 1e12, 1<<62 + 12345, math.MaxInt64} {
		i := bucket(v)
		low, high := floor(i), floor(i+1)
		if v < low || v >= high && high != math.MaxInt64 || v > 256 && float64(high-low) > float64(low)/128 {
			t.Errorf("%d is in bucket %d, from %d to %d", v, i, low, high)
		}
	}
}

// TestSeries has 1, 2, … for 10 steps where 4 may be held: 10 s become 3 steps of 4 s.
func TestSeries(t *testing.T) {
	s := series{step: time.Second, most: 4}
	for i := range 10 {
		s.add(time.Duration(i)*time.Second, float64(i+1))
	}
	if got, want := s.done(), (Series{4, []float64{2.5, 6.5, 9.5}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestJain has hand-worked shares, as (got, wanted) by tenant in one window.
func TestJain(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, left []float64
		want      float64
	}{
		{"all wants are met", []float64{900, 100, 10}, []float64{0, 0, 0}, 1},
		{"two that want more have the same", []float64{50, 50}, []float64{100, 900}, 1},
		{"all for one of two", []float64{100, 0}, []float64{100, 100}, 0.5},
		// 100 in all: fair is 10 for the small one and 90 for the big one. x = 0.5 and 95/90:
		// (0.5+1.0556)² / (2·(0.25+1.1142)) = 2.4198/2.7284.
		{"the small one has half", []float64{5, 95}, []float64{5, 900}, 0.8869},
	} {
		f := fair{step: time.Second, most: 4, windows: 1}
		for i := range c.got {
			f.got, f.left = append(f.got, []float64{c.got[i]}), append(f.left, []float64{c.left[i]})
		}
		if got, ok := f.jain(); !ok || math.Abs(got-c.want) > 0.0001 {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestJainOfRequests has a tenant that is served at once beside one that waits for 20 s: in the first two
// windows of 10 s one has all and the other nothing, though both want as much.
func TestJainOfRequests(t *testing.T) {
	const s = time.Second
	r := NewRecorder(Setup{})
	r.Sent(0, 0, "x", "", 1000)
	r.Sent(1, 0, "y", "", 1000)
	r.First(0, s)
	r.Done(0, 20*s, 500, 0, -1, 0)
	r.First(1, 20*s)
	r.Done(1, 20*s+s, 500, 0, -1, 0)
	// Windows [0,10): x got 1000+1000·9/19, y nothing, wants 2000 → index 1/2. [10,20): the same with
	// x's last 526: 1/2. [20,30): only y wants anything.
	if got := r.Run().Jain; got != 0.5 {
		t.Errorf("got %v, want 0.5", got)
	}
}

// TestMemoryIsBounded has a million requests, one after the other, with many names.
func TestMemoryIsBounded(t *testing.T) {
	r := NewRecorder(Setup{Exact: 1000, Endpoints: []string{"a", "b"}, SLO: SLO{TTFT: time.Second}})
	names := make([]string, 200)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	n := 0
	one := func() {
		at := time.Duration(n) * 100 * time.Millisecond
		r.Sent(n, at, names[n%200], names[n%100], 1000)
		r.First(n, at+time.Duration(n%977)*time.Millisecond)
		r.Token(n, at+time.Second, 3)
		r.Sample(at, n%2, 3, 4, 0.5)
		r.Queue(at, n%40, 3)
		if n%10 == 0 {
			r.Failed(n, at+time.Second, names[n%200])
		} else {
			r.Done(n, at+time.Second, 10, 500, n%2, time.Duration(n%100)*time.Millisecond)
		}
		n++
	}
	for n < 200_000 {
		one()
	}
	if got := testing.AllocsPerRun(10_000, one); got != 0 {
		t.Errorf("%v allocations a request, want 0", got)
	}
	if len(r.flights) != 1 || len(r.tenants) != MaxTenants || len(r.classes) != MaxClasses || len(r.run.Errors) > MaxErrors || len(r.bands) != MaxBands {
		t.Errorf("%d requests, %d tenants, %d classes, %d kinds of errors, %d bands", len(r.flights), len(r.tenants), len(r.classes), len(r.run.Errors), len(r.bands))
	}
	if len(r.ttft.counts) > 57*128 || cap(r.ttft.exact) > 0 || len(r.fair.got[0]) > fairWindows || len(r.endpoints[0].load.sum) > r.steps {
		t.Error("samples are not bounded")
	}
	run := r.Run()
	sum := 0
	for _, x := range run.Tenants {
		sum += x.Requests
	}
	if sum != run.Requests || run.Requests != n {
		t.Errorf("tenants have %d of %d requests", sum, n)
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
