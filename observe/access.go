// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"io"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const (
	accessDelay = 200 * time.Millisecond // how long a line waits for company
	accessFull  = 64 << 10               // bytes that are written at once
	accessMax   = 4 << 20                // bytes that wait at most; more are dropped and counted
)

// access writes one JSON line for each request, in the form of slog's JSON handler, but
// without its cost. Requests never wait for the writer.
type access struct {
	w       io.Writer
	scratch sync.Pool
	dropped atomic.Uint64
	some    chan struct{} // a line waits
	full    chan struct{} // many do

	mu  sync.Mutex
	buf []byte

	writing sync.Mutex
	spare   []byte
}

func newAccess(w io.Writer) *access {
	return &access{
		w: w, some: make(chan struct{}, 1), full: make(chan struct{}, 1),
		scratch: sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }},
	}
}

func (a *access) line(o *Outcome) {
	p := a.scratch.Get().(*[]byte)
	*p = appendLine((*p)[:0], o)
	a.mu.Lock()
	before := len(a.buf)
	if before+len(*p) > accessMax {
		a.dropped.Add(1)
	} else {
		a.buf = append(a.buf, *p...)
	}
	after := len(a.buf)
	a.mu.Unlock()
	a.scratch.Put(p)
	if before == 0 {
		signal(a.some)
	}
	if before < accessFull && after >= accessFull {
		signal(a.full)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (a *access) run(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-ctx.Done():
			if err := a.flush(); err != nil {
				failed(err)
			}
			return
		case <-a.some:
		}
		t := time.NewTimer(accessDelay)
		select {
		case <-ctx.Done():
		case <-a.full:
		case <-t.C:
		}
		t.Stop()
		if err := a.flush(); err != nil {
			failed(err)
		}
	}
}

func (a *access) flush() error {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.mu.Lock()
	full := a.buf
	a.buf = a.spare[:0]
	a.mu.Unlock()
	a.spare = full
	if len(full) == 0 {
		return nil
	}
	_, err := a.w.Write(full)
	if cap(full) > 4*accessFull {
		a.spare = nil
	}
	return err
}

// appendLine renders the outcome. Counts that nobody told are left out.
func appendLine(b []byte, o *Outcome) []byte {
	b = append(b, `{"time":"`...)
	b = o.Start.Add(o.Duration).Truncate(time.Microsecond).AppendFormat(b, time.RFC3339Nano)
	if o.End == Broken {
		b = append(b, `","level":"WARN","msg":"request"`...)
	} else {
		b = append(b, `","level":"INFO","msg":"request"`...)
	}
	b = text(b, "id", o.ID, MaxLabel)
	b = text(b, "door", o.Door, MaxLabel)
	b = text(b, "api", o.API, MaxLabel)
	b = text(b, "path", o.Path, 2*MaxLabel)
	b = text(b, "pool", o.Pool, 4*MaxLabel)
	b = text(b, "endpoint", o.Endpoint, 4*MaxLabel)
	b = text(b, "address", o.Address, 2*MaxLabel)
	b = text(b, "model", o.Model, MaxLabel)
	b = text(b, "target", o.Target, MaxLabel)
	b = text(b, "tenant", o.Tenant, MaxLabel)
	b = integer(b, "priority", int64(o.Priority))
	b = integer(b, "status", int64(o.Status))
	b = text(b, "reason", o.Reason, MaxLabel)
	b = text(b, "message", o.Message, 4*MaxLabel)
	b = text(b, "end", string(o.End), MaxLabel)
	b = appendDecision(b, o)
	b = duration(b, "queue_ms", o.Queue, time.Millisecond)
	b = text(b, "flow", o.Wait.Outcome, MaxLabel)
	b = duration(b, "schedule_us", o.Schedule, time.Microsecond)
	if o.TTFT > 0 {
		b = duration(b, "ttft_ms", o.TTFT, time.Millisecond)
	}
	b = duration(b, "duration_ms", o.Duration, time.Millisecond)
	b = integer(b, "retries", int64(o.Retries))
	b = append(b, `,"stream":`...)
	b = strconv.AppendBool(b, o.Stream)
	b = integer(b, "request_bytes", o.RequestBytes)
	b = integer(b, "response_bytes", o.ResponseBytes)
	b = told(b, "prompt_tokens", o.PromptTokens)
	b = told(b, "output_tokens", o.OutputTokens)
	b = told(b, "cached_tokens", o.Cached)
	if o.Endpoint != "" {
		b = integer(b, "predicted_cached", int64(o.PredictedCached))
	}
	return append(b, "}\n"...)
}

// appendDecision renders how the winner was chosen: its total, and each scorer's score before its weight.
func appendDecision(b []byte, o *Outcome) []byte {
	if o.Candidates == 0 && o.Endpoint == "" {
		return b
	}
	b = integer(b, "candidates", int64(o.Candidates))
	b = append(b, `,"score":`...)
	b = number(b, o.Score)
	if len(o.Parts) == 0 {
		return b
	}
	b = append(b, `,"scores":{`...)
	for i := range o.Parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = quote(b, o.Parts[i].Scorer, MaxLabel)
		b = append(b, ':')
		b = number(b, o.Parts[i].Score)
	}
	return append(b, '}')
}

func name(b []byte, key string) []byte {
	b = append(b, `,"`...)
	b = append(b, key...)
	return append(b, `":`...)
}

func text(b []byte, key, v string, limit int) []byte {
	if v == "" {
		return b
	}
	return quote(name(b, key), v, limit)
}

func integer(b []byte, key string, v int64) []byte { return strconv.AppendInt(name(b, key), v, 10) }

func told(b []byte, key string, v int) []byte {
	if v < 0 {
		return b
	}
	return integer(b, key, int64(v))
}

// duration renders d in the unit, with three decimals.
func duration(b []byte, key string, d, unit time.Duration) []byte {
	b = name(b, key)
	if d < 0 {
		d = 0
	}
	b = strconv.AppendInt(b, int64(d/unit), 10)
	m := int64(d % unit * 1000 / unit)
	if m == 0 {
		return b
	}
	return append(b, '.', byte('0'+m/100), byte('0'+m/10%10), byte('0'+m%10))
}

// number renders v with at most four decimals; what JSON cannot say is null.
func number(b []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	if math.Abs(v) >= 1e12 {
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	}
	n := int64(math.Round(v * 1e4))
	if n < 0 {
		b, n = append(b, '-'), -n
	}
	b = strconv.AppendInt(b, n/1e4, 10)
	if n %= 1e4; n == 0 {
		return b
	}
	b = append(b, '.', byte('0'+n/1000), byte('0'+n/100%10), byte('0'+n/10%10), byte('0'+n%10))
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b
}

// quote renders s as a JSON string, cut at limit bytes.
func quote(b []byte, s string, limit int) []byte {
	cut := len(s) > limit
	if cut {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if c >= utf8.RuneSelf && !(r == utf8.RuneError && n == 1) && r != '\u2028' && r != '\u2029' && r > 0x9f {
			i += n
			continue
		}
		b = append(b, s[from:i]...)
		b = escape(b, r)
		i += n
		from = i
	}
	b = append(b, s[from:]...)
	if cut {
		b = append(b, "…"...)
	}
	return append(b, '"')
}

func escape(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(b, '\\', byte(r))
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
