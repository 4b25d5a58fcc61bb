// SPDX-License-Identifier: Apache-2.0

package work

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFaults(t *testing.T) {
	got, err := ParseFaults("slow?endpoint=-1&factor=3&at=90s&for=0, loss?endpoint=2&at=1m, event-loss?factor=0.25&at=2s")
	want := []Fault{
		{At: 2 * time.Second, For: 30 * time.Second, Endpoint: -1, Kind: "event-loss", Factor: 0.25},
		{At: time.Minute, For: 30 * time.Second, Endpoint: 2, Kind: "loss"},
		{At: 90 * time.Second, Endpoint: -1, Kind: "slow", Factor: 3},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, k := range FaultKinds() {
		if _, err := ParseFaults(k.Name); err != nil {
			t.Errorf("%s with what it has by itself: %v", k.Name, err)
		}
	}
}

func TestFaultsWrong(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"lost", `no fault "lost"; did you mean loss?`},
		{"slow?faktor=2", `slow: no parameter "faktor"; did you mean factor?`},
		{"slow?factor=0.5", `slow: factor: is "0.5"; want a number from 1 to 1000`},
		{"slow?factor", `slow: "factor" is not a parameter; write key=value and & between two`},
		{"loss?endpoint=-1", "with all of them gone"},
		{"loss?at=soon", `loss: at: is "soon"; want a duration such as 90s or 10m, from 0s to 168h0m0s`},
		{"loss?at=1s&at=2s", "loss: at is given twice"},
		{"loss,", `no fault ""; there are loss, slow`},
		{strings.Repeat("loss,", 4000), "longer than 16 KiB"},
	} {
		if got, err := ParseFaults(c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v; want an error with %q", clip(c.spec), got, err, c.want)
		}
	}
}
