// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/penstock-project/penstock/sim/load"
)

// Progress tells how far a run is, while it runs.
type Progress struct {
	// Meter has what was measured in the last seconds, and in all.
	Meter *load.Meter
	o     *Options
	lanes []*lane
}

// Bar draws a bar and the last seconds' figures over one another on a terminal, for [Options.Watch].
func Bar(terminal io.Writer) func(context.Context, *Progress) {
	return func(ctx context.Context, p *Progress) {
		screen := load.Screen{Out: terminal, Terminal: true}
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				_, _ = io.WriteString(terminal, "\r\x1b[K")
				return
			case now := <-tick.C:
				t := p.Meter.Recent(now)
				screen.Draw(p.bar() + t.Line())
			}
		}
	}
}

const barWidth = 24

// bar is a bar and what it stands for.
func (p *Progress) bar() string {
	share, phase := 0.0, ""
	for _, l := range p.lanes {
		part, what := l.progress()
		share += part / float64(len(p.lanes))
		phase = what
	}
	full := int(math.Round(share * barWidth))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + fmt.Sprintf("] %3.0f%%  %s", 100*share, phase)
}

// progress is how much of what is measured has been sent, and what is being done beside that.
func (l *lane) progress() (share float64, phase string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	switch {
	case l.over:
		return 1, "waiting for answers  "
	case now < l.o.Warmup:
		return 0, "warm-up  "
	}
	if l.o.Duration > 0 {
		share = float64(now-l.o.Warmup) / float64(l.o.Duration)
	}
	if l.o.Requests > 0 {
		share = max(share, float64(l.sent)/float64(l.o.Requests))
	}
	return min(1, share), ""
}
