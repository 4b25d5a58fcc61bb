// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAccessLine(t *testing.T) {
	for _, c := range []struct {
		name string
		out  *Outcome
		want string
	}{
		{"everything", sampled(), `{"time":"2026-01-02T03:04:06.1Z","level":"INFO","msg":"request","id":"req-1","door":"proxy","api":"chat","path":"/v1/chat/completions",` +
			`"pool":"default/p","endpoint":"default/e1","address":"10.0.0.1:8000","model":"m","target":"m-base","tenant":"acme","priority":5,"status":200,"end":"complete",` +
			`"candidates":4,"score":3.9853,"scores":{"queue-scorer":0.5,"kv-cache-utilization-scorer":0.75,"prefix-cache-scorer":1},` +
			`"queue_ms":1.500,"flow":"Dispatched","schedule_us":12,"ttft_ms":50,"duration_ms":1100,"retries":0,"stream":true,"request_bytes":1000,"response_bytes":20000,` +
			`"prompt_tokens":300,"output_tokens":101,"cached_tokens":128,"predicted_cached":256}`},
		{"refused", &Outcome{ID: "i", Door: "extproc", End: Refused, Status: 429, Reason: "rejected-saturated", Message: "full", Labels: Labels{Model: "a\"b\n\u2028\xff", Priority: -1},
			Start: time.Unix(0, 0).UTC(), PromptTokens: Unknown, OutputTokens: Unknown, Cached: Unknown},
			`{"time":"1970-01-01T00:00:00Z","level":"INFO","msg":"request","id":"i","door":"extproc","model":"a\"b\n\u2028\ufffd","priority":-1,"status":429,` +
				`"reason":"rejected-saturated","message":"full","end":"refused","queue_ms":0,"schedule_us":0,"duration_ms":0,"retries":0,"stream":false,"request_bytes":0,"response_bytes":0}`},
	} {
		got := string(appendLine(nil, c.out))
		if got != c.want+"\n" {
			t.Errorf("%s:\n got %swant %s", c.name, got, c.want)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("%s: not JSON: %s", c.name, got)
		}
	}
}

func TestAccessLineIsBounded(t *testing.T) {
	long := strings.Repeat("é\"", 5000)
	out := &Outcome{Labels: Labels{long, long, long, 1}, ID: long, Path: long, Pool: long, Endpoint: long, Address: long, Reason: long, Message: long, API: long, Door: long}
	for range 8 {
		out.Parts = append(out.Parts, Part{Scorer: long, Score: math.NaN()})
	}
	b := appendLine(nil, out)
	if len(b) > 10_000 || !json.Valid(b) {
		t.Errorf("got %d bytes, valid %v", len(b), json.Valid(b))
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("plain", 128)
	f.Add("a\"b\\c\n\x00\x7f\u0085\u2028\xff é 模型 \U0001F600", 20)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit &= 1023
		var got string
		b := quote(nil, s, limit)
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if len(s) <= limit && got != strings.ToValidUTF8(s, "\ufffd") && !strings.Contains(got, "\ufffd") {
			t.Errorf("got %q of %q", got, s)
		}
		if bytes.ContainsAny(b, "\n\r\u2028") {
			t.Errorf("a line break in %q", b)
		}
	})
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1", 0.5: "0.5", 3.98531: "3.9853", 6.93525: "6.9353", -0.25: "-0.25", 1e15: "1e+15", 0.00004: "0", 99999.99999: "100000", math.Inf(1): "null"} {
		if got := string(number(nil, v)); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", time.Millisecond: "1", 1234567: "1.234", 50 * time.Microsecond: "0.050", time.Minute: "60000", -5: "0"} {
		if got := string(duration(nil, "x", d, time.Millisecond)); got != `,"x":`+want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

// sink is a writer that counts, and can be slow or broken.
type sink struct {
	mu     sync.Mutex
	writes int
	bytes.Buffer
	err  error
	gate chan struct{} // when set, each write waits for it
}

func (s *sink) Write(p []byte) (int, error) {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.err != nil {
		return 0, s.err
	}
	return s.Buffer.Write(p)
}

func (s *sink) state() (writes, lines int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes, bytes.Count(s.Bytes(), []byte("\n"))
}

func TestAccessLinesAreWrittenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		o := New(Options{Access: s})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		expect := func(what string, writes, lines int) {
			t.Helper()
			synctest.Wait()
			if w, l := s.state(); w != writes || l != lines {
				t.Errorf("%s: got %d lines in %d writes, want %d in %d", what, l, w, lines, writes)
			}
		}
		<-time.After(time.Hour)
		expect("nothing to write", 0, 0)
		o.Done(sampled())
		o.Done(sampled())
		<-time.After(accessDelay - 1)
		expect("before the time", 0, 0)
		<-time.After(1)
		expect("after 200 ms", 1, 2)
		for range 200 { // more than fits
			o.Done(sampled())
		}
		synctest.Wait()
		if w, l := s.state(); w < 2 || l < 100 {
			t.Errorf("got %d lines in %d writes, want many written at once", l, w)
		}
		<-time.After(accessDelay)
		synctest.Wait()
		writes, lines := s.state()
		if lines != 202 {
			t.Errorf("got %d lines, want 202", lines)
		}
		o.Done(sampled())
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		expect("the rest at the end", writes+1, 203)
	})
}

// A writer that stands still costs lines, never a request.
func TestAccessLinesNeverBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{gate: make(chan struct{})}
		o := New(Options{Access: s})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		n := 0
		for ; o.access.dropped.Load() == 0; n++ {
			o.Done(sampled())
			if n%64 == 0 {
				synctest.Wait()
			}
		}
		if n < accessMax/1000 {
			t.Errorf("dropped after %d lines", n)
		}
		close(s.gate)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, lines := s.state(); lines != n-1 {
			t.Errorf("got %d lines, want all but the one that was dropped of %d", lines, n)
		}
		if got := lines(page(t, o)["penstock_access_lines_dropped_total"]); got != " 1" {
			t.Errorf("got %s dropped", got)
		}
	})
}

func TestBrokenAccessWriterIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := New(Options{Access: &sink{err: errors.New("disk full")}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx) }()
		for range 5 {
			o.Done(sampled())
			<-time.After(time.Second)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "disk full"); n != 1 {
			t.Errorf("said %d times: %s", n, log.String())
		}
	})
}
