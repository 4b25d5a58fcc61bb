// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"io"
	"log/slog"
	"runtime/debug"
	"time"
)

// Trace is the level below debug: each step of each decision.
const Trace = slog.Level(-8)

// Level maps llm-d's -v to a level: 0 and 1 warn, 2 (the default) info, 3 a little more, 4 debug,
// 5 and above trace.
func Level(verbosity int) slog.Level {
	switch {
	case verbosity >= 5:
		return Trace
	case verbosity == 4:
		return slog.LevelDebug
	case verbosity == 3:
		return slog.LevelInfo - 1
	case verbosity == 2:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// Panic is the level above all of ours: who logs from there on hears nothing.
const Panic = slog.Level(12)

// TimeEncodings are the forms that times of log lines may have.
var TimeEncodings = []string{"epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"}

// LogOptions are which log lines there are, and how they look.
type LogOptions struct {
	// Level is the lowest that is told.
	Level slog.Level
	// Console makes lines of text, for people, instead of JSON.
	Console bool
	// Times is one of TimeEncodings; empty for RFC 3339 with as many digits as there are.
	Times string
	// Stack is the level from which lines tell who logs, as a stack. [Panic] is for none.
	Stack slog.Level
}

// NewLogger returns a logger of lines that w gets one at a time.
func NewLogger(w io.Writer, opt LogOptions) *slog.Logger {
	o := &slog.HandlerOptions{Level: opt.Level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch v := a.Value.Any().(type) {
		case slog.Level:
			if a.Key == slog.LevelKey && v == Trace {
				a.Value = slog.StringValue("TRACE")
			}
		case time.Time:
			if a.Key == slog.TimeKey {
				a.Value = encoded(v, opt.Times)
			}
		}
		return a
	}}
	var h slog.Handler = slog.NewJSONHandler(w, o)
	if opt.Console {
		h = slog.NewTextHandler(w, o)
	}
	if opt.Stack < Panic {
		h = stacks{h, opt.Stack}
	}
	return slog.New(h)
}

// encoded is a time in one of TimeEncodings.
func encoded(t time.Time, encoding string) slog.Value {
	switch encoding {
	case "epoch":
		return slog.Float64Value(float64(t.UnixNano()) / 1e9)
	case "millis":
		return slog.Float64Value(float64(t.UnixNano()) / 1e6)
	case "nano":
		return slog.Int64Value(t.UnixNano())
	case "iso8601":
		return slog.StringValue(t.Format("2006-01-02T15:04:05.000Z0700"))
	case "rfc3339":
		return slog.StringValue(t.Format(time.RFC3339))
	case "rfc3339nano":
		return slog.StringValue(t.Format(time.RFC3339Nano))
	}
	return slog.TimeValue(t)
}

// stacks adds the stack to lines from a level on.
type stacks struct {
	slog.Handler
	from slog.Level
}

// Handle implements [slog.Handler].
func (s stacks) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= s.from {
		r = r.Clone()
		r.AddAttrs(slog.String("stacktrace", string(debug.Stack())))
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (s stacks) WithAttrs(a []slog.Attr) slog.Handler { return stacks{s.Handler.WithAttrs(a), s.from} }

// WithGroup implements [slog.Handler].
func (s stacks) WithGroup(name string) slog.Handler { return stacks{s.Handler.WithGroup(name), s.from} }
