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
}

// Listeners are the addresses we listen on, host:port; empty leaves it to the command line.
type Listeners struct {
	// HTTP is the built-in proxy, ExtProc the door for Envoy, Metrics also serves /debug/.
	HTTP    string `json:"http"`
	ExtProc string `json:"extproc"`
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
	// BodyTimeout is how long a client may take to send its body.
	BodyTimeout Duration `json:"bodyTimeout"`
}

// Trust names the callers whose control headers count: those with an address in CIDRs, and
// those that send Header.
type Trust struct {
	CIDRs  []CIDR       `json:"cidrs"`
	Header *TrustHeader `json:"header"`
}

// TrustHeader is a header with a secret in it, given here or in a file.
type TrustHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	File  string `json:"file"`
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
	}}
}
