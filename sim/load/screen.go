// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// Screen writes summaries.
type Screen struct {
	Out io.Writer
	// Terminal tells that a line can be drawn over.
	Terminal bool
}

// IsTerminal tells whether lines can be redrawn.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// How often a summary is written: one that is redrawn, and one that stays.
const (
	redrawEvery = time.Second
	lineEvery   = 5 * time.Second
)

// legend explains the line, once.
const legend = "answers/s, time to first token p50 and p99, open requests, share of prompt tokens from cache; then per endpoint: share of answers (its share from cache)"

// Run writes what the meter has of the last seconds until the context ends, and then a summary of it all.
func (s *Screen) Run(ctx context.Context, m *Meter) {
	_, _ = fmt.Fprintln(s.Out, legend)
	defer func() { s.last(m.total()) }()
	every := lineEvery
	if s.Terminal {
		every = redrawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			t := m.Recent(now)
			s.Draw(t.Line())
		}
	}
}

// Draw writes a line over the last one. It is not wrapped, because what was wrapped cannot be drawn
// over.
func (s *Screen) Draw(line string) {
	if s.Terminal {
		_, _ = fmt.Fprintf(s.Out, "\r\x1b[?7l%s\x1b[K\x1b[?7h", line)
		return
	}
	_, _ = fmt.Fprintln(s.Out, line)
}

// Line is a summary in one line: rate, TTFT at p50 and p99, then per endpoint its share of the
// requests and, in brackets, the share of their prompt tokens that it had in its cache.
func (t *Tally) Line() string {
	var b strings.Builder
	rate := 0.0
	if t.lasted > 0 {
		rate = float64(t.answered) / t.lasted.Seconds()
	}
	fmt.Fprintf(&b, "%.1f/s  ttft %s p99 %s  %d open", rate, brief(t.ttft.quantile(0.5)), brief(t.ttft.quantile(0.99)), t.inFlight)
	if t.failed > 0 {
		fmt.Fprintf(&b, "  %d failed", t.failed)
	}
	if t.skipped > 0 {
		fmt.Fprintf(&b, "  %d skipped", t.skipped)
	}
	fmt.Fprintf(&b, "  cached %.0f%%", 100*t.cached())
	names := t.names()
	for i, e := range t.shares {
		if names[i] != "" {
			fmt.Fprintf(&b, "  %s %.0f%% (%.0f%%)", names[i], 100*ratio(e.answered, t.answered), 100*ratio(e.cached, e.prompt))
		}
	}
	return b.String()
}

// names are the endpoints' names, by port alone when they are all on one host.
func (t *Tally) names() []string {
	names := make([]string, len(t.shares))
	one := ""
	for i, e := range t.shares {
		names[i] = e.endpoint
		host, _, err := net.SplitHostPort(e.endpoint)
		if err != nil || (i > 0 && host != one) {
			one = ""
			continue
		}
		if i == 0 {
			one = host
		}
	}
	if one == "" {
		return names
	}
	for i := range names {
		_, port, err := net.SplitHostPort(names[i])
		if err != nil {
			return names
		}
		names[i] = ":" + port
	}
	return names
}

// last writes the summary of a whole run.
func (s *Screen) last(t Tally) {
	if s.Terminal {
		_, _ = fmt.Fprintln(s.Out)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d answers in %s: %s, %.0f tokens/s\n", t.answered, t.lasted.Round(time.Second), t.Line(), float64(t.completion)/max(1e-9, t.lasted.Seconds()))
	for _, f := range t.faults {
		fmt.Fprintf(&b, "%d × %s\n", f.n, f.what)
	}
	_, _ = io.WriteString(s.Out, b.String())
}

// brief is a duration with two or three digits.
func brief(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
