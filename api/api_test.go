// SPDX-License-Identifier: Apache-2.0

package api

import (
	"math"
	"testing"
	"time"
)

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		text string
		want Quantity
		ok   bool
	}{
		{"0", 0, true}, {"500", 500, true}, {"1k", 1000, true}, {"10Gi", 10 << 30, true}, {"1e9", 1e9, true},
		{"1E3", 1000, true}, {"1E", 1e18, true}, {"1.5Gi", 3 << 29, true}, {"0.5", 1, true}, {"-3", -3, true}, {"2P", 2e15, true},
		{"1Pi", 1 << 50, true}, {"9223372036854775807", math.MaxInt64, true}, {"7Ei", 7 << 60, true},
		{"9223372036854775808", 0, false}, {"8Ei", 0, false}, {"1e99", 0, false}, {"1e999999999", 0, false},
		{"", 0, false}, {"Gi", 0, false}, {"ten", 0, false}, {"1 k", 0, false}, {"0x10", 0, false}, {"1_000", 0, false},
		{"inf", 0, false}, {"NaN", 0, false}, {"100m", 0, false}, {"1K", 0, false}, {"infk", 0, false}, {"0x1pGi", 0, false},
		{"1pP", 0, false}, {"0x1P", 0, false}, {"nanP", 0, false},
	} {
		var q Quantity
		err := q.UnmarshalText([]byte(c.text))
		if (err == nil) != c.ok || q != c.want {
			t.Errorf("%q: got %d, %v, want %d, %t", c.text, q, err, c.want, c.ok)
		}
	}
	for q, want := range map[Quantity]string{0: "0", 64 << 20: "64Mi", 1000: "1000", 1536: "1536", -1 << 10: "-1Ki"} {
		if got := q.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	var d Duration
	if err := d.UnmarshalText([]byte("1m30s")); err != nil || d != Duration(90*time.Second) || d.String() != "1m30s" {
		t.Errorf("got %s, %v, want 1m30s", d, err)
	}
	if err := d.UnmarshalText([]byte("60")); err == nil {
		t.Error("60 without a unit passed")
	}
}

func TestCIDR(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"10.1.2.3/8", "10.0.0.0/8"}, {"10.1.2.3", "10.1.2.3/32"}, {"fd00::1", "fd00::1/128"}, {"::ffff:10.0.0.1", "10.0.0.1/32"},
		{"fe80::1%eth0", ""}, {"10.0.0.0/33", ""}, {"all", ""}, {"", ""},
	} {
		var got CIDR
		err := got.UnmarshalText([]byte(c.text))
		if (err == nil) != (c.want != "") || err == nil && got.String() != c.want {
			t.Errorf("%q: got %s, %v, want %q", c.text, got, err, c.want)
		}
	}
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"app": "a", "tier": "gold"}
	for _, c := range []struct {
		name string
		s    LabelSelector
		want bool
	}{
		{"empty", LabelSelector{}, true},
		{"match", LabelSelector{MatchLabels: map[string]string{"app": "a"}}, true},
		{"differ", LabelSelector{MatchLabels: map[string]string{"app": "b"}}, false},
		{"in", LabelSelector{MatchExpressions: []Requirement{{"tier", "In", []string{"gold"}}}}, true},
		{"in, absent", LabelSelector{MatchExpressions: []Requirement{{"x", "In", []string{""}}}}, false},
		{"not in", LabelSelector{MatchExpressions: []Requirement{{"tier", "NotIn", []string{"gold"}}}}, false},
		{"not in, absent", LabelSelector{MatchExpressions: []Requirement{{"x", "NotIn", []string{""}}}}, true},
		{"exists", LabelSelector{MatchExpressions: []Requirement{{"tier", "Exists", nil}}}, true},
		{"does not exist", LabelSelector{MatchExpressions: []Requirement{{"tier", "DoesNotExist", nil}}}, false},
		{"unknown operator", LabelSelector{MatchExpressions: []Requirement{{"tier", "Near", nil}}}, false},
	} {
		if got := c.s.Matches(labels); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}
