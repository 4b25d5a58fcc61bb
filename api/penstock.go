// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/netip"
	"time"
)

// Penstock is penstock.dev/v1alpha1 Penstock: what is ours alone.
type Penstock struct {
	Meta
	Spec PenstockSpec `json:"spec"`
}

// PenstockSpec is the spec of a [Penstock].
type PenstockSpec struct {
	Listeners Listeners `json:"listeners"`
	Limits    Limits    `json:"limits"`
	Trust     Trust     `json:"trust"`
	Health    Health    `json:"health"`
	// AllowExperimentalPlugins accepts plugins that are alpha or for tests, in all documents.
	AllowExperimentalPlugins bool `json:"allowExperimentalPlugins"`
}

// Health says when an endpoint is passed over for what became of requests to it, and how it comes back. An
// endpoint to which no connection can be made, or that breaks it before a byte of the answer, is passed over at
// once.
type Health struct {
	// ConsecutiveFailures is how many answers in a row with 500, 502, 503 or 504, or broken off, eject an endpoint.
	ConsecutiveFailures int `json:"consecutiveFailures"`
	// FirstEjection is how long the first ejection lasts; each further one in a row lasts twice as long. An endpoint whose
	// metrics could be read and cannot is passed over until they can be again, or for LongestEjection.
	FirstEjection Duration `json:"firstEjection"`
	// LongestEjection bounds an ejection. While the endpoint's metrics page can be read it is 2s at most.
	LongestEjection Duration `json:"longestEjection"`
	// SlowStart is the time over which an endpoint that healed gets its share of requests back.
	SlowStart Duration `json:"slowStart"`
	// MinShare is the share of a pool, above 0 and at most 1, that stays in use whatever fails; one endpoint at least.
	MinShare float64 `json:"minShare"`
}

// Listeners are the addresses we listen on, host:port; empty leaves it to the command line.
type Listeners struct {
	// HTTP is the built-in proxy.
	HTTP string `json:"http"`
	// ExtProc is the door for Envoy.
	ExtProc string `json:"extproc"`
	// Metrics serves /metrics and /debug/.
	Metrics string `json:"metrics"`
}

// Limits bound what one client can take.
type Limits struct {
	// MaxBodyBytes is the largest request body.
	MaxBodyBytes Quantity `json:"maxBodyBytes"`
	// MaxBufferedBytes bounds all bodies that are held at one time.
	MaxBufferedBytes Quantity `json:"maxBufferedBytes"`
	// MaxHeaderBytes bounds the head of a request.
	MaxHeaderBytes Quantity `json:"maxHeaderBytes"`
	// BodyTimeout is how long a client may go without sending a byte of its body.
	BodyTimeout Duration `json:"bodyTimeout"`
}

// Trust names the callers whose control headers count: those with an address in cidrs, and
// those that send header. Without either, the proxy trusts nobody and the ext_proc door its peer.
type Trust struct {
	// CIDRs are ranges of addresses, such as 10.0.0.0/8; a bare address is a range of one.
	CIDRs []CIDR `json:"cidrs"`
	// Header is a header with a shared secret.
	Header *TrustHeader `json:"header"`
}

// TrustHeader is a header with a shared secret in it, given by value or by file.
type TrustHeader struct {
	// Name is the header's name; it never travels on to an endpoint.
	Name string `json:"name"`
	// Value is the secret.
	Value string `json:"value"`
	// File holds the secret, relative to the manifest.
	File string `json:"file"`
}

// String names the header and keeps its secret.
func (h TrustHeader) String() string { return h.Name + ": (secret)" }

// CIDR is a range of addresses; a bare address is a range of one.
type CIDR struct{ netip.Prefix }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *CIDR) UnmarshalText(text []byte) error {
	s := string(text)
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		c.Prefix = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
		return nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("want a range of addresses such as 10.0.0.0/8 or fd00::/8, got %q", s)
	}
	c.Prefix = p.Masked()
	return nil
}

// DefaultPenstock is the spec of a Penstock that says nothing.
func DefaultPenstock() PenstockSpec {
	return PenstockSpec{Limits: Limits{
		MaxBodyBytes:     64 * Mi,
		MaxBufferedBytes: Gi,
		MaxHeaderBytes:   64 * Ki,
		BodyTimeout:      Duration(60 * time.Second),
	}, Health: Health{
		ConsecutiveFailures: 5, FirstEjection: Duration(time.Second), LongestEjection: Duration(30 * time.Second),
		SlowStart: Duration(10 * time.Second), MinShare: 0.2,
	}}
}
