// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/plugin"
)

// Types of the sources, as metrics and configurations have them.
const (
	MetricsSource      = "metrics-data-source"
	MulticlusterSource = "multicluster-metrics-data-source"
	ModelsSource       = "models-data-source"
	DCGMSource         = "dcgm-data-source"
)

// Source is something that is polled of each endpoint.
type Source interface{ fetch() fetch }

// fetch is how a source is polled.
type fetch struct {
	HTTP
	accept string
	limit  int // bytes of an answer
	// every is the interval when none is written; 0 for that of the process.
	every time.Duration
	// address is whom to ask.
	address func(*fleet.Endpoint) string
	models  bool // it brings a list of models, and not a page
}

// Sources are the sources by type name.
var Sources = plugin.Set[Source]{
	MetricsSource: func() Source {
		return &MetricsDataSource{HTTP: HTTP{Scheme: "http", Path: "/metrics", InsecureSkipVerify: true}}
	},
	MulticlusterSource: func() Source {
		return &MulticlusterMetricsDataSource{HTTP: HTTP{Scheme: "https", Path: "/metrics"}}
	},
	ModelsSource: func() Source {
		return &ModelsDataSource{HTTP: HTTP{Scheme: "http", Path: "/v1/models", InsecureSkipVerify: true}}
	},
	DCGMSource: func() Source {
		return &DCGMDataSource{HTTP: HTTP{Scheme: "http", Path: "/metrics", InsecureSkipVerify: true}, Port: 9400}
	},
}

// HTTP is how a source asks. It asks with HTTP/1.1 alone.
type HTTP struct {
	// Scheme is http or https.
	Scheme string `json:"scheme"`
	// Path is what is asked for, from its slash on; it may have a query.
	Path string `json:"path"`
	// InsecureSkipVerify tells, with https, to take any certificate, also when caCertPath is set.
	InsecureSkipVerify bool `json:"insecureSkipVerify"`
	// CACertPath is a PEM file of authorities to trust in place of the system's. It and the two
	// that follow are read again when they change.
	CACertPath string `json:"caCertPath"`
	// ClientCertPath is a PEM file with the certificate to show, and its chain.
	ClientCertPath string `json:"clientCertPath"`
	// ClientKeyPath is a PEM file with that certificate's key.
	ClientKeyPath string `json:"clientKeyPath"`
	// BearerTokenFile is a file with a token to send as Authorization: Bearer; it is read again when it
	// changes. Over http, or with insecureSkipVerify, whoever answers at the address gets to know it.
	BearerTokenFile string `json:"bearerTokenFile"`
	// Interval is the time between two looks; below 50ms it is 50ms. Keep it below the age at which
	// signals are stale.
	Interval time.Duration `json:"interval"`
}

// Validate reports what cannot be asked for.
func (h *HTTP) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	tls := h.Scheme == "https"
	if !tls && h.Scheme != "http" {
		fail("scheme: want http or https, got %q", h.Scheme)
	}
	switch {
	case !strings.HasPrefix(h.Path, "/"):
		fail("path: want a path that begins with a slash, such as /metrics, got %q", h.Path)
	case strings.ContainsFunc(h.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' }):
		fail("path: has a blank, a # or a character beyond ASCII in it: write it percent-encoded: %q", h.Path)
	}
	if !tls && h.Scheme == "http" {
		for _, f := range [][2]string{{"caCertPath", h.CACertPath}, {"clientCertPath", h.ClientCertPath}, {"clientKeyPath", h.ClientKeyPath}} {
			if f[1] != "" {
				fail("%s: has no effect with http: write scheme: https", f[0])
			}
		}
	}
	switch {
	case h.ClientCertPath != "" && h.ClientKeyPath == "":
		fail("clientKeyPath: is missing: clientCertPath needs its key")
	case h.ClientCertPath == "" && h.ClientKeyPath != "":
		fail("clientCertPath: is missing: clientKeyPath needs its certificate")
	}
	if h.Interval < 0 {
		fail("interval: want 50ms or more, got %v", h.Interval)
	}
	return errors.Join(errs...)
}

func validPort(p int) error {
	if p < 1 || p > 65535 {
		return fmt.Errorf("port: want 1 to 65535, got %d", p)
	}
	return nil
}

// MetricsDataSource asks each endpoint for its Prometheus page.
//
// Without an interval the gateway's holds (--refresh-metrics-interval). Pages are asked for with HTTP/1.1,
// also where the pool's endpoints speak HTTP/2 without TLS: an engine that speaks nothing else has
// no page for us, and shows as http2-only.
type MetricsDataSource struct {
	HTTP
	// Port is where the page is; without it, it is where the endpoint is or says that its metrics are.
	Port *int `json:"port"`
}

// Validate reports what cannot be asked for.
func (s *MetricsDataSource) Validate() error {
	err := s.HTTP.Validate()
	if s.Port != nil {
		err = errors.Join(err, validPort(*s.Port))
	}
	return err
}

func (s *MetricsDataSource) fetch() fetch {
	return fetch{HTTP: s.HTTP, accept: acceptPage, limit: maxPage, address: scrapeAddress(s.Port)}
}

// MulticlusterMetricsDataSource asks each cluster's gateway for its Prometheus page.
//
// It differs from metrics-data-source in what it is asked for by default: https, with the certificate
// verified.
type MulticlusterMetricsDataSource struct {
	HTTP
	// Port is where the page is; without it, it is where the endpoint is or says that its metrics are.
	Port *int `json:"port"`
}

// Validate reports what cannot be asked for.
func (s *MulticlusterMetricsDataSource) Validate() error { return (*MetricsDataSource)(s).Validate() }

func (s *MulticlusterMetricsDataSource) fetch() fetch {
	return (*MetricsDataSource)(s).fetch()
}

// ModelsDataSource asks each endpoint for the models that it serves, every 2 s when no interval is written.
type ModelsDataSource struct {
	HTTP
}

func (s *ModelsDataSource) fetch() fetch {
	return fetch{
		HTTP: s.HTTP, accept: "application/json", limit: maxModels, every: 2 * time.Second, models: true,
		address: func(ep *fleet.Endpoint) string { return ep.Address },
	}
}

// DCGMDataSource asks NVIDIA's DCGM exporter for its Prometheus page, every second when no interval is written.
type DCGMDataSource struct {
	HTTP
	// Port is where the exporter listens.
	Port int `json:"port"`
	// UseNodeAddress tells to ask at the address of the endpoint's machine, where a DaemonSet's
	// exporter listens, and not at the endpoint's own. Where the machine is not known, as with endpoints
	// from files, the endpoint's own address is asked.
	UseNodeAddress bool `json:"useNodeAddress"`
}

// Validate reports what cannot be asked for.
func (s *DCGMDataSource) Validate() error {
	return errors.Join(s.HTTP.Validate(), validPort(s.Port))
}

func (s *DCGMDataSource) fetch() fetch {
	port := strconv.Itoa(s.Port)
	return fetch{
		HTTP: s.HTTP, accept: acceptPage, limit: maxPage, every: time.Second,
		address: func(ep *fleet.Endpoint) string {
			if s.UseNodeAddress && ep.NodeAddress != "" {
				return net.JoinHostPort(strings.Trim(ep.NodeAddress, "[]"), port)
			}
			return net.JoinHostPort(hostOf(ep.Address), port)
		},
	}
}

const (
	maxPage    = 8 << 20
	acceptPage = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
)

// scrapeAddress is where an endpoint's page is.
func scrapeAddress(port *int) func(*fleet.Endpoint) string {
	if port == nil {
		return func(ep *fleet.Endpoint) string { return ep.Scrape }
	}
	p := strconv.Itoa(*port)
	return func(ep *fleet.Endpoint) string { return net.JoinHostPort(hostOf(ep.Scrape), p) }
}

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
