// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/subtle"
	"log/slog"
	"net/netip"
	"strings"
)

// Trust says whose control headers are heeded. The zero Trust trusts nobody.
type Trust struct {
	// All trusts every caller: the door's peer is a proxy that does its own checks.
	All bool
	// CIDRs are the networks whose callers are trusted.
	CIDRs []netip.Prefix
	// Header and Secret name a header whose exact value makes a caller trusted; empty for none.
	// The header never travels on.
	Header, Secret string
}

// Trusts reports whether the caller is trusted.
func (t *Trust) Trusts(peer netip.Addr, h Headers) bool {
	if t.All {
		return true
	}
	peer = peer.Unmap().WithZone("")
	for _, p := range t.CIDRs {
		if p.Contains(peer) {
			return true
		}
	}
	return t.Header != "" && t.Secret != "" &&
		subtle.ConstantTimeCompare([]byte(h.Get(t.Header)), []byte(t.Secret)) == 1
}

// Names of control headers, canonical first; the canonical one wins when both are there.
var (
	tenantHeader    = [2]string{"x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"}
	ttftHeader      = [2]string{"x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"}
	ttlHeader       = [2]string{"x-penstock-ttl-ms", "x-penstock-ttl-ms"}
	objectiveHeader = [2]string{"x-llm-d-inference-objective", "x-gateway-inference-objective"}
	rewriteHeader   = [2]string{"x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"}
)

// requeueHeader keeps a request that is taken back from waiting once more, with the value never.
const requeueHeader = "x-penstock-requeue"

// Destination is the header that carries the choice to the data plane.
const Destination = "x-gateway-destination-endpoint"

// outputs are headers that only we may set: no caller's value is ever passed on.
var outputs = map[string]bool{
	"x-prefiller-host-port":       true,
	"x-llm-d-prefill-endpoint":    true,
	"x-encoder-hosts-ports":       true,
	"x-kv-cache-source-host-port": true,
	"x-data-parallel-host-port":   true,
	DroppedReason:                 true,
}

// outputHeader reports whether only we may set the header.
func outputHeader(name string) bool {
	return strings.HasPrefix(name, Destination) || outputs[name]
}

// controlHeader reports whether the header steers us and is heeded from trusted callers only.
func controlHeader(name string) bool {
	return strings.HasPrefix(name, "x-llm-d-") || strings.HasPrefix(name, "x-gateway-") ||
		strings.HasPrefix(name, "x-slo-") || strings.HasPrefix(name, "x-penstock-") || name == "epp-profile"
}

// named are the control headers that mean something today.
var named = map[string]bool{
	tenantHeader[0]: true, tenantHeader[1]: true, objectiveHeader[0]: true, objectiveHeader[1]: true,
	rewriteHeader[0]: true, rewriteHeader[1]: true,
}

// ours reports whether the header is one of our own, which steer us and nobody behind us.
func ours(name string) bool { return strings.HasPrefix(name, "x-penstock-") }

// controlKind is the family of a control header's name.
func controlKind(name string) string {
	for _, kind := range []string{"x-llm-d-", "x-gateway-", "x-slo-", "x-penstock-"} {
		if strings.HasPrefix(name, kind) {
			return kind
		}
	}
	return name
}

// either reads a control header by its canonical name, or else by its old one.
func either(h Headers, names [2]string) string {
	if v := h.Get(names[0]); v != "" {
		return v
	}
	return h.Get(names[1])
}

// Drops reports whether a header or trailer of that lower-case name must not travel on: only we may
// set it, it holds a secret, or it steers us and its caller is not trusted.
func (x *Exchange) Drops(name string) bool {
	return outputHeader(name) || name == x.proof || !x.trusted && controlHeader(name)
}

// sayIgnored says once for each kind of header that it was ignored, and what would change that. Callers
// choose the names, so that what is remembered is the kind.
func (g *Gateway) sayIgnored(door *Door, name string) {
	kind := controlKind(name)
	if name = name[:min(len(name), 100)]; named[name] || outputs[name] {
		kind = name
	}
	if _, said := g.ignored.LoadOrStore(door.Name+" "+kind, true); said {
		return
	}
	if outputHeader(name) {
		g.Log.Warn("a caller's header that only the gateway may set was dropped", slog.String("header", name), slog.String("door", door.Name))
		return
	}
	g.Log.Warn("control header from an untrusted caller ignored", slog.String("header", name), slog.String("door", door.Name),
		slog.String("to change", "name the caller's network in spec.trust.cidrs, or a shared secret in spec.trust.header, of a Penstock document"))
}
