// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/netip"
	"testing"
)

func TestInSubset(t *testing.T) {
	for _, c := range []struct {
		address string
		subset  []string
		want    bool
	}{
		{"10.0.0.1:8000", nil, false},
		{"10.0.0.1:8000", []string{"10.0.0.1:8000"}, true},
		{"10.0.0.1:8000", []string{"10.0.0.1"}, true},
		{"10.0.0.1:8000", []string{"10.0.0.1:8001"}, false},
		{"10.0.0.1:8000", []string{"10.0.0.11"}, false},
		{"10.0.0.1:8000", []string{" 10.0.0.2 , 10.0.0.1:8000"}, true},
		{"[fd00::10]:8000", []string{"fd00::10"}, true},
		{"[fd00::10]:8000", []string{"[fd00::10]:8000"}, true},
		{"[fd00::10]:8000", []string{"[fd00::10]"}, true},
		{"[fd00::10]:8000", []string{"FD00:0:0:0:0:0:0:10"}, true},
		{"[fd00::10]:8000", []string{"", "10.0.0.1:8000", "fd00::10"}, true},
		{"[fd00::10]:8000", []string{"[fd00::10]:8001", "nonsense", "::"}, false},
		{"engine-0:8000", []string{"engine-0"}, true},
		{"engine-0:8000", []string{"engine-1:8000"}, false},
	} {
		if got := inSubset(c.address, c.subset); got != c.want {
			t.Errorf("%s in %q: got %v, want %v", c.address, c.subset, got, c.want)
		}
	}
}

// headers are header values by lower-case name.
type headers map[string]string

func (h headers) Get(name string) string { return h[name] }
func (h headers) Names(yield func(string) bool) {
	for name := range h {
		if !yield(name) {
			return
		}
	}
}

func TestTrust(t *testing.T) {
	loopback := Trust{CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}
	secret := Trust{Header: "x-proof", Secret: "s3cret"}
	for _, c := range []struct {
		name  string
		trust Trust
		peer  string
		h     headers
		want  bool
	}{
		{"nobody", Trust{}, "127.0.0.1", headers{"": ""}, false},
		{"everybody", Trust{All: true}, "10.9.9.9", nil, true},
		{"in the network", loopback, "127.0.0.1", nil, true},
		{"v4 in v6", loopback, "::ffff:127.0.0.1", nil, true},
		{"outside it", loopback, "10.0.0.1", nil, false},
		{"the secret", secret, "10.0.0.1", headers{"x-proof": "s3cret"}, true},
		{"a wrong secret", secret, "10.0.0.1", headers{"x-proof": "s3cre"}, false},
		{"no secret set", Trust{Header: "x-proof"}, "10.0.0.1", headers{"x-proof": ""}, false},
	} {
		if got := c.trust.Trusts(netip.MustParseAddr(c.peer), c.h); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
