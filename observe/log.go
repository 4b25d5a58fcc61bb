// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"io"
	"log/slog"
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

// NewLogger returns a logger of JSON lines that w gets one at a time.
func NewLogger(w io.Writer, verbosity int) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: Level(verbosity),
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.LevelKey {
				if l, ok := a.Value.Any().(slog.Level); ok && l == Trace {
					a.Value = slog.StringValue("TRACE")
				}
			}
			return a
		},
	}))
}
