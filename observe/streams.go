// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Streams counts the streams of the ext_proc door. Nil counts nothing.
type Streams struct {
	open  prometheus.Gauge
	took  prometheus.Histogram
	ended [len(grpcCodes)]prometheus.Counter
}

// grpcCodes are the names of gRPC's codes, by number.
var grpcCodes = [...]string{"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied", "ResourceExhausted",
	"FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated"}

func newStreams(r *prometheus.Registry) *Streams {
	s := &Streams{
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "extproc_streams_inflight", Help: "Streams that are open at the ext_proc door; with --enable-grpc-stream-metrics."}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "extproc_stream_duration_seconds",
			Help: "From a stream's start to its end, at the ext_proc door; with --enable-grpc-stream-metrics.", Buckets: streamBounds}),
	}
	total := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "extproc_streams_total",
		Help: "Streams that ended at the ext_proc door, by gRPC code; with --enable-grpc-stream-metrics."}, []string{"code"})
	for i, name := range grpcCodes {
		s.ended[i] = total.WithLabelValues(name)
	}
	r.MustRegister(s.open, s.took, total)
	return s
}

// Opened counts a stream that begins, and tells when.
func (s *Streams) Opened() (at time.Time) {
	if s == nil {
		return at
	}
	s.open.Inc()
	return time.Now()
}

// Closed counts the end of a stream that began at a time that Opened told.
func (s *Streams) Closed(at time.Time, code uint32) {
	if s == nil {
		return
	}
	s.open.Dec()
	s.took.Observe(time.Since(at).Seconds())
	if int(code) >= len(s.ended) {
		code = 2 // unknown
	}
	s.ended[code].Inc()
}

// Streams returns where the ext_proc door's streams are counted; nil where they are not.
func (o *Observer) Streams() *Streams { return o.streams }
