// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math/rand/v2"
	"testing"
	"time"
)

// judged is a pool of n endpoints under a policy, with a clock of its own.
type judged struct {
	t   *testing.T
	p   HealthPolicy
	now time.Time
	e   []*Endpoint
	rng *rand.Rand
}

const staleAge = 2 * time.Second

func judge(t *testing.T, n int) *judged {
	j := &judged{t: t, p: DefaultHealth(), now: time.Unix(1000, 0), rng: rand.New(rand.NewPCG(1, 2))}
	for range n {
		j.e = append(j.e, &Endpoint{Load: &Load{}})
	}
	return j
}

func (j *judged) after(d time.Duration) { j.now = j.now.Add(d) }

// fit lists who stays, as a row of 1 and 0.
func (j *judged) fit() string {
	keep := make([]bool, len(j.e))
	for i := range keep {
		keep[i] = true
	}
	dropped := j.p.Fit(j.e, keep, j.now, staleAge, j.rng)
	row := ""
	for _, ok := range keep {
		if ok {
			row += "1"
		} else {
			row += "0"
			dropped--
		}
	}
	if dropped != 0 {
		j.t.Errorf("%s: off by %d in what is said to be dropped", row, dropped)
	}
	return row
}

func (j *judged) want(row string, states ...HealthState) {
	j.t.Helper()
	if got := j.fit(); got != row {
		j.t.Errorf("got %s, want %s", got, row)
	}
	for i, s := range states {
		if got := j.e[i].Health(j.now, &j.p, staleAge); got.State != s {
			j.t.Errorf("endpoint %d is %s, want %s", i, got.State, s)
		}
	}
}

func TestConnectionFailureEjectsAndAProbeHeals(t *testing.T) {
	j := judge(t, 4)
	a := j.e[0].Load
	if !a.Fail(j.now, &j.p, true, "refused") || a.Fail(j.now, &j.p, true, "refused") {
		t.Error("want one ejection, told once")
	}
	j.want("0111", Ejected, Healthy)
	j.after(time.Second - 1)
	j.want("0111", Ejected)
	j.after(1)
	j.want("1111", Probed) // half open
	a.Probe(j.now)
	j.want("0111", Ejected) // one request finds out, no others
	a.Fail(j.now, &j.p, true, "refused")
	j.after(2*time.Second - 1)
	j.want("0111", Ejected) // twice as long
	j.after(1)
	j.want("1111", Probed)
	a.Probe(j.now)
	if !a.Heal(j.now) || a.Heal(j.now) {
		t.Error("want it to be told once that it healed")
	}
	j.want(j.fit(), Slowed)
	got := 0
	j.after(5 * time.Second) // half of the slow start
	for range 1000 {
		if j.fit() == "1111" {
			got++
		}
	}
	if got < 400 || got > 600 {
		t.Errorf("half way through the slow start it is a candidate in %d of 1000, want about half", got)
	}
	j.after(5 * time.Second)
	j.want("1111", Healthy)
	a.Well(j.now, &j.p) // well again: the next ejection is a first one
	a.Fail(j.now, &j.p, true, "refused")
	j.after(time.Second)
	j.want("1111", Probed)
}

func TestAnswersEjectOnlyInARow(t *testing.T) {
	j := judge(t, 4)
	a := j.e[0].Load
	for range 10 {
		for range 4 {
			if a.Fail(j.now, &j.p, false, "503") {
				t.Fatal("ejected by four")
			}
		}
		a.Well(j.now, &j.p)
	}
	j.want("1111", Healthy)
	for range 5 {
		a.Fail(j.now, &j.p, false, "503")
	}
	j.want("0111", Ejected)
	if v := j.e[0].Health(j.now, &j.p, staleAge); v.Fails != 5 || v.Cause != "503" {
		t.Errorf("got %+v", v)
	}
	a.Heal(j.now) // an answer to what was sent before proves little
	j.want("0111", Ejected)
}

// An endpoint whose page could be read and cannot is left alone for long; one whose page can is soon tried.
// However long they are and however many in a row, ejections end at Longest.
func TestEjectionsDoNotOverflow(t *testing.T) {
	j := judge(t, 2)
	j.p.First, j.p.Longest = 1000*time.Hour, 2000*time.Hour
	a := j.e[0].Load
	for round := range 70 {
		if !a.Fail(j.now, &j.p, true, "refused") {
			t.Fatalf("round %d: want an ejection", round)
		}
		j.want("01", Ejected)
		j.after(j.p.Longest)
		j.want("11", Probed)
		a.Probe(j.now)
	}
}

func TestEjectionIsShortWhileThePageIsRead(t *testing.T) {
	for _, c := range []struct {
		name    string
		reading func(now time.Time) Signal
		tried   bool
	}{
		{"read", func(now time.Time) Signal { return Signal{0, now} }, true},
		{"never read", func(time.Time) Signal { return Signal{} }, true},
		{"no longer read", func(now time.Time) Signal { return Signal{0, now.Add(-time.Minute)} }, false},
	} {
		j := judge(t, 2)
		for range 8 { // doubles up to 30 s
			j.e[0].Load.Fail(j.now, &j.p, true, "reset")
			j.after(j.p.Longest)
			j.e[0].Load.Probe(j.now)
		}
		j.e[0].Load.Fail(j.now, &j.p, true, "reset")
		j.after(quick)
		j.e[0].Waiting = c.reading(j.now)
		if got := j.e[0].Health(j.now, &j.p, staleAge).State == Probed; got != c.tried {
			t.Errorf("%s: tried after %v: %v, want %v", c.name, quick, got, c.tried)
		}
	}
}

// No request is spent on an endpoint whose page could be read and cannot: it is tried when that can be, or after Longest.
func TestASilentEndpointIsNotTried(t *testing.T) {
	j := judge(t, 2)
	e := j.e[0]
	e.Waiting = Signal{0, j.now}
	j.after(time.Minute)
	e.Load.Fail(j.now, &j.p, true, "no route")
	j.after(j.p.Longest - 1)
	j.want("01", Ejected)
	e.Waiting.At = j.now
	j.want("11", Probed)
	e.Waiting.At = j.now.Add(-time.Minute)
	j.after(1)
	j.want("11", Probed)
}

// A probe whose request never ends does not keep the endpoint out for ever.
func TestLostProbe(t *testing.T) {
	j := judge(t, 2)
	j.e[0].Load.Fail(j.now, &j.p, true, "reset")
	j.after(time.Second)
	j.e[0].Load.Probe(j.now)
	j.want("01", Ejected)
	j.after(quick)
	j.want("11", Probed)
}

func TestAShareStaysInUse(t *testing.T) {
	j := judge(t, 10)
	for i := range j.e {
		j.e[i].Load.Fail(j.now, &j.p, true, "reset")
		j.after(time.Millisecond)
	}
	j.want("1100000000") // a fifth: those whose ejection ends first
	j.p.MinShare = 0.5
	j.want("1111100000")
	j.p.MinShare = 0.01
	j.want("1000000000")
	one := judge(t, 1)
	one.e[0].Load.Fail(one.now, &one.p, true, "reset")
	one.want("1", Ejected)
	one.e[0].Load.Probe(one.now)
	one.e[0].Load.Heal(one.now)
	one.want("1", Slowed) // it is all there is
}

func TestHealthDoesNotAllocate(t *testing.T) {
	j := judge(t, 100)
	keep := make([]bool, 100)
	if n := testing.AllocsPerRun(100, func() { j.p.Fit(j.e, keep, j.now, staleAge, j.rng) }); n != 0 {
		t.Errorf("got %v allocations", n)
	}
	j.e[3].Load.Fail(j.now, &j.p, true, "reset")
	if n := testing.AllocsPerRun(100, func() { j.p.Fit(j.e, keep, j.now, staleAge, j.rng) }); n != 0 {
		t.Errorf("got %v allocations with one ejected", n)
	}
}
