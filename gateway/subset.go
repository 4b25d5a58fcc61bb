// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-project/penstock/fleet"
)

// subset is a subset hint, read: addresses, sorted. Port 0 stands for all ports of an address, and one
// without a zone for its every zone.
type subset []netip.AddrPort

var subsets = sync.Pool{New: func() any { return new(subset) }}

// limit clears keep for the candidates that a subset hint does not name. What is malformed in it names none.
func (g *Gateway) limit(candidates []*fleet.Endpoint, hint []string, keep []bool) {
	s := subsets.Get().(*subset)
	malformed := s.read(hint)
	if malformed != "" {
		if _, said := g.ignored.LoadOrStore("subset hint", true); !said {
			g.Log.Warn("malformed entries of subset hints are ignored: want ip or ip:port", slog.String("entry", malformed))
		}
	}
	for i, e := range candidates {
		keep[i] = keep[i] && s.allows(e.AddrPort)
	}
	if cap(*s) <= 1<<12 { // larger ones are rare, and not to be kept for ever
		subsets.Put(s)
	}
}

// read takes the entries of a hint, each an ip or ip:port, or several with commas between. IPv6 may
// be in any spelling, with or without brackets. It returns one of the malformed entries, or none.
func (s *subset) read(hint []string) (malformed string) {
	*s = (*s)[:0]
	for _, list := range hint {
		for entry := range strings.SplitSeq(list, ",") {
			if entry = strings.TrimSpace(entry); entry == "" {
				continue
			}
			if a, ok := addressOf(entry); ok {
				*s = append(*s, a)
			} else {
				malformed = entry[:min(len(entry), 100)]
			}
		}
	}
	slices.SortFunc(*s, netip.AddrPort.Compare)
	return malformed
}

// addressOf reads ip or ip:port; the port of a bare ip is 0.
func addressOf(s string) (netip.AddrPort, bool) {
	if strings.Contains(s, "]:") || strings.Count(s, ":") == 1 {
		a, err := netip.ParseAddrPort(s)
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), err == nil && a.Port() != 0
	}
	bare, open := strings.CutPrefix(s, "[")
	bare, shut := strings.CutSuffix(bare, "]")
	a, err := netip.ParseAddr(bare)
	return netip.AddrPortFrom(a.Unmap(), 0), err == nil && open == shut && (!open || a.Is6())
}

// allows reports whether an endpoint's address is in the subset; the zero address never is.
func (s subset) allows(a netip.AddrPort) bool {
	if len(s) == 0 || !a.IsValid() {
		return false
	}
	ip := a.Addr().Unmap()
	if s.has(ip, 0) || s.has(ip, a.Port()) {
		return true
	}
	return ip.Zone() != "" && (s.has(ip.WithZone(""), 0) || s.has(ip.WithZone(""), a.Port()))
}

func (s subset) has(ip netip.Addr, port uint16) bool {
	_, ok := slices.BinarySearchFunc(s, netip.AddrPortFrom(ip, port), netip.AddrPort.Compare)
	return ok
}
