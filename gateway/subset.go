// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/netip"
	"strings"
)

// inSubset reports whether the endpoint's address, ip:port, is named by a subset hint. An entry is an ip,
// which allows all its ports, or ip:port; IPv6 in any spelling, with or without brackets.
func inSubset(address string, subset []string) bool {
	ap, err := netip.ParseAddrPort(address)
	for _, entry := range subset {
		for s := range strings.SplitSeq(entry, ",") {
			s = strings.TrimSpace(s)
			if s == "" {
				continue
			}
			if strings.EqualFold(s, address) {
				return true
			}
			if err != nil { // a host name
				if host, _, ok := strings.Cut(address, ":"); ok && strings.EqualFold(s, host) {
					return true
				}
				continue
			}
			if want, err := netip.ParseAddrPort(s); err == nil {
				if want.Port() == ap.Port() && want.Addr().Unmap() == ap.Addr().Unmap() {
					return true
				}
			} else if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil && ip.Unmap() == ap.Addr().Unmap() {
				return true
			}
		}
	}
	return false
}
