// SPDX-License-Identifier: Apache-2.0

package work

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is something that goes wrong in the fleet or at the gateway, and heals.
type Fault struct {
	// At is when it begins, from the start of the run, and For how long it lasts; 0 is to the end.
	At, For time.Duration
	// Endpoint is which, from 0; -1 means every one. Of gateway-loss it is the gateway replica.
	Endpoint int
	// Kind is one of those that [FaultKinds] lists.
	Kind string
	// Factor says how bad it is: how many times as long a step takes (slow), how many seconds an
	// event comes late (event-delay), which share of events is lost (event-loss).
	Factor float64
}

// Kind describes a kind of work or of fault: its name in a spec, what it is, and its parameters.
type Kind struct {
	Name   string
	Doc    string
	Params []Param
}

const (
	most  = int(1e12)
	day   = 24 * time.Hour
	week  = 7 * 24 * 3600.0
	crowd = 1e5
)

func faultParams(extra ...Param) []Param {
	return append(extra,
		Param{Name: "at", Unit: Duration, Default: "1m", Max: week, Doc: "when it begins"},
		Param{Name: "for", Unit: Duration, Default: "30s", Max: week, Doc: "how long it lasts; 0 is to the end"},
	)
}

func which(def, doc string) Param {
	return Param{Name: "endpoint", Unit: Count, Default: def, Min: -1, Max: crowd, Doc: doc}
}

func factor(def string, low, high float64, doc string) Param {
	return Param{Name: "factor", Unit: Number, Default: def, Min: low, Max: high, Doc: doc}
}

var faultKinds = []Kind{
	{"loss", "An endpoint dies: what it was doing breaks off, its cache is empty when it comes back.", faultParams(which("0", "which one"))},
	{"slow", "An endpoint works slower than it says, as one that is too hot or has a noisy neighbour.", faultParams(which("0", "which one; -1 is all"), factor("2", 1, 1000, "how many times as long each step takes"))},
	{"scrape-stall", "The metrics of endpoints stand still: the gateway decides by what it last saw.", faultParams(which("-1", "whose; -1 is all"))},
	{"event-delay", "KV events come late.", faultParams(which("-1", "whose; -1 is all"), factor("5", 0, 3600, "seconds"))},
	{"event-loss", "KV events are lost.", faultParams(which("-1", "whose; -1 is all"), factor("1", 0, 1, "the share that is lost"))},
	{"gateway-loss", "A gateway replica dies: the others take its traffic, and what it knew is gone.", faultParams(which("0", "which replica"))},
}

// FaultKinds lists the kinds of faults. The slice is the caller's.
func FaultKinds() []Kind { return slices.Clone(faultKinds) }

// ParseFaults reads faults such as "loss?endpoint=2&at=1m&for=30s, slow?factor=3": a kind and its
// parameters, a comma between two. They come sorted by their beginning. An empty spec has none.
func ParseFaults(spec string) ([]Fault, error) {
	if len(spec) > maxSpec {
		return nil, fmt.Errorf("faults: %w", errLong)
	}
	if strings.TrimSpace(spec) == "" {
		return nil, nil
	}
	var list []Fault
	for part := range strings.SplitSeq(spec, ",") {
		name, query, _ := strings.Cut(strings.TrimSpace(part), "?")
		i := slices.IndexFunc(faultKinds, func(k Kind) bool { return k.Name == name })
		if i < 0 {
			return nil, unknown("no fault", name, kindNames(faultKinds))
		}
		k := faultKinds[i]
		v, err := parseValues(k.Name, query, k.Params)
		if err != nil {
			return nil, err
		}
		f := Fault{Kind: k.Name, At: v.duration("at"), For: v.duration("for"), Endpoint: v.count("endpoint")}
		if v.find("factor") != nil {
			f.Factor = v.number("factor")
		}
		if (k.Name == "loss" || k.Name == "gateway-loss") && f.Endpoint < 0 {
			v.wrong(v.find("endpoint"), "-1", "one of them, from 0: with all of them gone there is nothing to see")
		}
		if v.err != nil {
			return nil, v.err
		}
		list = append(list, f)
	}
	slices.SortStableFunc(list, func(a, b Fault) int { return int(a.At - b.At) })
	return list, nil
}

func kindNames(kinds []Kind) []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.Name
	}
	return names
}
