// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/observe"
)

// fieldFlags adds those of llm-d's flags that change nothing here, and those that it removed, which say where to look.
// What it returns tells of those that were given in vain.
func fieldFlags(fs *pflag.FlagSet) func(*slog.Logger) {
	reload := fs.Bool("enable-cert-reload", false, "accepted: certificates are followed in any case")
	fs.Duration("refresh-prometheus-metrics-interval", 5*time.Second, "accepted: metrics of pools are made when they are asked for")
	for _, name := range []string{"total-queued-requests-metric", "total-running-requests-metric", "kv-cache-usage-percentage-metric", "lora-info-metric", "cache-info-metric"} {
		fs.Var(removed(name), name, "removed")
		_ = fs.MarkHidden(name)
	}
	return func(log *slog.Logger) {
		if fs.Changed("enable-cert-reload") && !*reload {
			log.Warn("--enable-cert-reload=false has no effect: certificates are followed in any case")
		}
		if fs.Changed("refresh-prometheus-metrics-interval") {
			log.Warn("--refresh-prometheus-metrics-interval has no effect: metrics of pools are made when they are asked for")
		}
	}
}

// tlsFlags adds what certificates go with.
func (s *settings) tlsFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.minTLS, "tls-min-version", "", "lowest version of TLS at the ext_proc door and the metrics port: VersionTLS12 (the default) or VersionTLS13")
	fs.StringSliceVar(&s.ciphers, "tls-cipher-suites", nil, "cipher suites of TLS 1.2 at the ext_proc door and the metrics port, by Go's names (default Go's)")
}

// sizeFlags adds the bounds of messages at the ext_proc door.
func (s *settings) sizeFlags(fs *pflag.FlagSet) {
	fs.Var((*size)(&s.maxReceive), "grpc-max-recv-msg-size", "longest message that may come in at the ext_proc door, such as 16Mi; a longer one fails its request, and Envoy sends all of a body that it has at hand in one "+
		"(default 64Mi more than spec.limits.maxBodyBytes, so that a body that is too long is refused well)")
	fs.Var((*size)(&s.maxSend), "grpc-max-send-msg-size", "longest message that may go out at the ext_proc door, such as 1Mi; a longer one fails its request. Bodies go in pieces of 62000 bytes (default no bound)")
}

// size is a flag for a number of bytes.
type size api.Quantity

// String is empty for a size that was not given.
func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	return api.Quantity(*s).String()
}

// Type says how the value is written.
func (*size) Type() string { return "quantity" }

// Set reads a quantity.
func (s *size) Set(text string) error {
	var q api.Quantity
	if err := q.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	if q < 1 || q > math.MaxInt32 {
		return fmt.Errorf("want 1 to 2Gi less 1, got %s", text)
	}
	*s = size(q)
	return nil
}

// versionsTLS are the versions that may be spoken.
var versionsTLS = map[string]uint16{"": tls.VersionTLS12, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13}

// restrict has a certificate's listener speak only what flags allow.
func (s *settings) restrict(c *tls.Config) error {
	version, ok := versionsTLS[s.minTLS]
	if !ok {
		return misused("--tls-min-version %q: want VersionTLS12 or VersionTLS13", s.minTLS)
	}
	c.MinVersion = version
	for _, name := range s.ciphers {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return misused("--tls-cipher-suites: no cipher suite %q is safe: want such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
		c.CipherSuites = append(c.CipherSuites, tls.CipherSuites()[i].ID)
	}
	return nil
}

// removed is a flag that llm-d does not have any more.
type removed string

// String is empty: the flag has no value.
func (removed) String() string { return "" }

// Type is that of what was written there.
func (removed) Type() string { return "string" }

// Set says where to write the value.
func (r removed) Set(string) error {
	return fmt.Errorf("--%s is gone: write the metric's name in the configuration (plugins: - {type: core-metrics-extractor, parameters: {engineConfigs: …}})", string(r))
}

// logging says how log lines look, as llm-d's flags of zap do. Access lines stay as they are: JSON.
type logging struct {
	verbosity                    int
	encoder, level, times, stack string // empty for the defaults
	devel                        bool
}

func (l *logging) add(fs *pflag.FlagSet) {
	fs.StringVar(&l.encoder, "zap-encoder", "", "form of log lines: json, or console for people; access lines are JSON in any case (default json)")
	fs.StringVar(&l.level, "zap-log-level", "", "log level, before -v: debug, info, error, panic (nothing but panics), or a number as -v has it")
	fs.StringVar(&l.times, "zap-time-encoding", "", "form of times in log lines: "+strings.Join(observe.TimeEncodings, ", ")+" (default rfc3339nano)")
	fs.BoolVar(&l.devel, "zap-devel", false, "for people who develop: console, level debug and stack traces of warnings, unless other flags say so")
	fs.StringVar(&l.stack, "zap-stacktrace-level", "", "level from which log lines tell the stack: info, error or panic (default none)")
}

// options reads the flags.
func (l *logging) options() (observe.LogOptions, error) {
	if l.verbosity < 0 {
		return observe.LogOptions{}, misused("-v %d: want 0 or above", l.verbosity)
	}
	o := observe.LogOptions{Level: observe.Level(l.verbosity), Stack: observe.Panic, Times: l.times}
	if l.devel {
		o.Console, o.Level, o.Stack = true, slog.LevelDebug, slog.LevelWarn
	}
	switch l.encoder {
	case "":
	case "json", "console":
		o.Console = l.encoder == "console"
	default:
		return o, misused("--zap-encoder %q: want json or console", l.encoder)
	}
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "error": slog.LevelError, "panic": observe.Panic}
	level := strings.ToLower(l.level)
	switch n, err := strconv.Atoi(level); {
	case level == "":
	case err == nil && n > 0:
		o.Level = observe.Level(n)
	default:
		var ok bool
		if o.Level, ok = levels[level]; !ok {
			return o, misused("--zap-log-level %q: want debug, info, error, panic, or a whole number above 0", l.level)
		}
	}
	if l.stack != "" {
		var ok bool
		if o.Stack, ok = levels[strings.ToLower(l.stack)]; !ok || o.Stack == slog.LevelDebug {
			return o, misused("--zap-stacktrace-level %q: want info, error or panic", l.stack)
		}
	}
	if l.times != "" && !slices.Contains(observe.TimeEncodings, l.times) {
		return o, misused("--zap-time-encoding %q: want one of %s", l.times, strings.Join(observe.TimeEncodings, ", "))
	}
	return o, nil
}
