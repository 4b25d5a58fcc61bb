// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/request"
)

func TestQuantile(t *testing.T) {
	var s spread
	if got := s.quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v, want 0", got)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var all []time.Duration
	for range 10000 {
		d := time.Duration(rng.ExpFloat64() * float64(200*time.Millisecond))
		all = append(all, d)
		s.add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		want := all[max(0, int(q*10000)-1)]
		got := s.quantile(q)
		if off := float64(got)/float64(want) - 1; off < -0.03 || off > 0.03 {
			t.Errorf("p%v: got %v, want %v", q*100, got, want)
		}
	}
	for _, d := range []time.Duration{-1, 0, time.Nanosecond, 10 * time.Hour} {
		s.add(d) // no panic at either end
	}
}

func TestRecentForgets(t *testing.T) {
	at := time.Unix(1000, 0)
	m := NewMeter(at)
	for i := range 30 { // one answer a second, at half past
		m.Begin()
		now := at.Add(time.Duration(i)*time.Second + 500*time.Millisecond)
		m.End(&Answer{Endpoint: "a", Arrivals: []Arrival{{At: now}}, End: now}, now.Add(-time.Second))
	}
	// At 29.75 s the window reaches back to 20 s: ten answers in 9.75 s.
	got := m.Recent(at.Add(29*time.Second + 750*time.Millisecond))
	if got.answered != 10 || got.lasted != 9750*time.Millisecond || got.inFlight != 0 {
		t.Errorf("got %d in %v, %d open; want 10 in 9.75s, 0 open", got.answered, got.lasted, got.inFlight)
	}
	if got := m.Recent(at.Add(time.Minute)); got.answered != 0 {
		t.Errorf("%d answers half a minute later", got.answered)
	}
	m.End(&Answer{End: at.Add(time.Minute)}, at) // after a gap longer than the window
	if got := m.Recent(at.Add(time.Minute)); got.answered != 1 {
		t.Errorf("got %d answers, want 1", got.answered)
	}
	if m.all.answered != 31 {
		t.Errorf("%d in all, want 31", m.all.answered)
	}
}

// Names come from the other side; they must not fill the memory.
func TestNamesAreBounded(t *testing.T) {
	var all Tally
	for i := range 10000 {
		all.add(&Answer{Endpoint: fmt.Sprint("e", i)}, time.Time{})
		all.add(&Answer{Fault: fmt.Sprint("f", i)}, time.Time{})
	}
	if len(all.shares) > maxShares+1 || len(all.faults) > maxFaults+1 {
		t.Errorf("%d endpoints, %d faults", len(all.shares), len(all.faults))
	}
	n := uint64(0)
	for _, s := range all.shares {
		n += s.answered
	}
	if n != 10000 {
		t.Errorf("%d answers in the shares, want 10000", n)
	}
}

func TestLine(t *testing.T) {
	tests := []struct {
		name      string
		endpoints []string
		want      string
	}{
		{"one host", []string{"127.0.0.1:1", "127.0.0.1:2"}, "2.0/s  ttft - p99 -  0 open  cached 50%  :1 50% (50%)  :2 50% (50%)"},
		{"two hosts", []string{"10.0.0.1:1", "10.0.0.2:1"}, "2.0/s  ttft - p99 -  0 open  cached 50%  10.0.0.1:1 50% (50%)  10.0.0.2:1 50% (50%)"},
		{"IPv6", []string{"[::1]:1", "[::1]:2"}, "2.0/s  ttft - p99 -  0 open  cached 50%  :1 50% (50%)  :2 50% (50%)"},
		{"no port", []string{"a", "b"}, "2.0/s  ttft - p99 -  0 open  cached 50%  a 50% (50%)  b 50% (50%)"},
		{"nobody said", []string{"", ""}, "2.0/s  ttft - p99 -  0 open  cached 50%"},
	}
	for _, tt := range tests {
		all := Tally{lasted: time.Second}
		for _, e := range tt.endpoints {
			all.add(&Answer{Endpoint: e, Usage: request.Usage{Prompt: 10, Cached: 5}}, time.Time{})
		}
		if got := all.Line(); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestDraw(t *testing.T) {
	var out bytes.Buffer
	(&Screen{Out: &out, Terminal: true}).Draw("x")
	(&Screen{Out: &out}).Draw("y")
	if got, want := out.String(), "\r\x1b[?7lx\x1b[K\x1b[?7hy\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBrief(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "-", 1500 * time.Microsecond: "1.5ms", 45 * time.Millisecond: "45ms", 1250 * time.Millisecond: "1.2s", time.Minute: "60.0s",
	} {
		if got := brief(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

// The legend, a line every five seconds, and the end.
func TestScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, stop := context.WithTimeout(t.Context(), 11100*time.Millisecond)
		defer stop()
		m := NewMeter(time.Now())
		go func() {
			for i := range 44 { // four a second
				time.Sleep(250 * time.Millisecond)
				m.Begin()
				now := time.Now()
				a := &Answer{Endpoint: "127.0.0.1:9001", End: now, Arrivals: []Arrival{{At: now}}, Usage: request.Usage{Prompt: 100, Output: 2, Cached: 80}}
				ttft := 100 * time.Millisecond
				switch i % 4 {
				case 0:
					a.Endpoint, a.Usage.Cached, ttft = "127.0.0.1:9002", 20, 400*time.Millisecond
				case 1:
					a = &Answer{Fault: "503", End: now}
				}
				m.End(a, now.Add(-ttft))
			}
			m.Begin()
			m.Cancel()
			m.Skip(time.Now())
		}()
		(&Screen{Out: &out}).Run(ctx, m)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 5 || lines[0] != legend || lines[4] != "11 × 503" {
			t.Fatalf("got %d lines:\n%s", len(lines), out.String())
		}
		if want := "33 answers in 11s: 3.0/s  ttft 98ms p99 405ms  0 open  11 failed"; !strings.HasPrefix(lines[3], want) {
			t.Errorf("got %q, want %q", lines[3], want)
		}
		if want := "cached 60%  :9001 67% (80%)  :9002 33% (20%), 6 tokens/s"; !strings.HasSuffix(lines[3], want) {
			t.Errorf("got %q, want %q", lines[3], want)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	var body bytes.Buffer
	for range 100 {
		body.WriteString("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n")
	}
	body.WriteString("data: [DONE]\n\n")
	b.ReportAllocs()
	for b.Loop() {
		a := Borrow()
		a.reset()
		if a.read(bytes.NewReader(body.Bytes()), request.Chat, true, false); a.Fault != "" || a.Events != 100 {
			b.Fatal(a.Fault, a.Events)
		}
		a.Return()
	}
}
