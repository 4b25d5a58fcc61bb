// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/fleet"
)

func TestSubset(t *testing.T) {
	for _, c := range []struct {
		address string
		hint    []string
		want    bool
	}{
		{"10.0.0.1:8000", nil, false},
		{"10.0.0.1:8000", []string{"10.0.0.1:8000"}, true},
		{"10.0.0.1:8000", []string{"10.0.0.1"}, true},
		{"10.0.0.1:8000", []string{"10.0.0.1:8001"}, false},
		{"10.0.0.1:8000", []string{"10.0.0.11"}, false},
		{"10.0.0.1:8000", []string{" 10.0.0.2 , 10.0.0.1:8000"}, true},
		{"10.0.0.1:8000", []string{"10.0.0.1:8001", "10.0.0.1:7999", "10.0.0.1"}, true},
		{"10.0.0.1:8000", []string{"::ffff:10.0.0.1"}, true},
		{"[::ffff:10.0.0.1]:8000", []string{"10.0.0.1:8000"}, true},
		{"[fd00::10]:8000", []string{"fd00::10"}, true},
		{"[fd00::10]:8000", []string{"[fd00::10]:8000"}, true},
		{"[fd00::10]:8000", []string{"[fd00::10]"}, true},
		{"[fd00::10]:8000", []string{"FD00:0:0:0:0:0:0:10"}, true},
		{"[fd00::10]:8000", []string{"[FD00:0::0010]:8000"}, true},
		{"[fd00::10]:8000", []string{"", "10.0.0.1:8000", "  ", "fd00::10"}, true},
		{"[fd00::10]:8000", []string{"10.0.0.1:8000,,[fd00:0::10]:8000 ,"}, true},
		{"[fd00::10]:8000", []string{"[fd00::10]:8001", "nonsense", "::"}, false},
		{"[fe80::1%eth0]:8000", []string{"fe80::1"}, true},
		{"[fe80::1%eth0]:8000", []string{"[fe80::1%eth0]:8000"}, true},
		{"[fe80::1%eth0]:8000", []string{"fe80::1%eth1"}, false},
		{"[fe80::1]:8000", []string{"fe80::1%eth0"}, false},
	} {
		var s subset
		s.read(c.hint)
		if got := s.allows(netip.MustParseAddrPort(c.address)); got != c.want {
			t.Errorf("%s in %q: got %v, want %v", c.address, c.hint, got, c.want)
		}
	}
}

// What is malformed allows nothing, and takes nothing away from what is right.
func TestMalformedSubset(t *testing.T) {
	for _, entry := range []string{"engine-0", "engine-0:8000", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:http", ":8000",
		"[10.0.0.1]", "[10.0.0.1]:8000", "[fd00::1", "fd00::1]", "[[fd00::1]]", "fd00::1::", "10.0.0.01", "10.0.0.1 8000", "http://10.0.0.1"} {
		var s subset
		if got := s.read([]string{"10.0.0.9", entry}); got != entry {
			t.Errorf("%q: got %q as malformed", entry, got)
		}
		if len(s) != 1 || !s.allows(netip.MustParseAddrPort("10.0.0.9:1")) {
			t.Errorf("%q: got %v", entry, s)
		}
	}
	var s subset
	s.read([]string{"::", "0.0.0.0"})
	if s.allows(netip.AddrPort{}) {
		t.Error("an endpoint without an address was allowed")
	}
}

func TestSubsetDoesNotAllocate(t *testing.T) {
	g := &Gateway{}
	hint := []string{"10.0.0.1:8000", "[fd00::10]:8000,10.0.0.3"}
	candidates := []*fleet.Endpoint{{AddrPort: netip.MustParseAddrPort("10.0.0.3:8000")}, {AddrPort: netip.MustParseAddrPort("10.0.0.4:8000")}}
	keep := make([]bool, 2)
	if n := testing.AllocsPerRun(100, func() {
		keep[0], keep[1] = true, true
		if g.limit(candidates, hint, keep); !keep[0] || keep[1] {
			t.Errorf("got %v, want the first alone", keep)
		}
	}); n != 0 && !raceEnabled { // under which pools drop what they are given
		t.Errorf("got %v allocations", n)
	}
}

// Whatever the spelling, an address that was taken is allowed, and one that was not taken is malformed.
func FuzzSubset(f *testing.F) {
	for _, s := range []string{"10.0.0.1:8000", "[fd00::10]:8000, FD00::1", "[fe80::1%eth0]", ",, x", "::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s subset
		malformed := s.read([]string{text})
		if len(s) == 0 && malformed == "" && strings.TrimSpace(strings.ReplaceAll(text, ",", "")) != "" {
			t.Errorf("%q was neither taken nor malformed", text)
		}
		for _, a := range s {
			port := a.Port()
			if port == 0 {
				port = 8000
			}
			if !s.allows(netip.AddrPortFrom(a.Addr(), port)) {
				t.Errorf("%q: %v is not allowed", text, a)
			}
			if again, ok := addressOf(a.Addr().String()); !ok || again.Addr() != a.Addr() {
				t.Errorf("%v reads as %v", a.Addr(), again)
			}
		}
	})
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
