// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// demo is a report of policies that are made up: servers that work off requests of three tenants one after
// the other, chosen at random, in turn, or by the shortest queue.
func demo(policies []string, workloads []string, rates []float64, seeds []uint64, endpoints int) *Report {
	r := &Report{Title: "A rehearsal", Command: "penstock sim run --workload demo --seed 7 --seeds 3 --rate 0.5,1,2 --html report.html"}
	r.Notes = append(r.Notes, "The fleet is made up, and so are its engines.")
	for w, workload := range workloads {
		for _, rate := range rates {
			for p, policy := range policies {
				for _, seed := range seeds {
					r.Add(demoRun(policy, p, workload, w, rate, seed, endpoints))
				}
			}
		}
	}
	return r
}

func demoRun(policy string, p int, workload string, w int, rate float64, seed uint64, endpoints int) Run {
	const ms = time.Millisecond
	names, kinds := make([]string, endpoints), make([]string, endpoints)
	for i := range names {
		names[i], kinds[i] = fmt.Sprintf("engine-%d", i), "H100-70B-TP4"
	}
	rec := NewRecorder(Setup{Policy: policy, Workload: workload, Seed: seed, Rate: rate, Endpoints: names, Kinds: kinds,
		SLO: SLO{TTFT: 2 * time.Second, TPOT: 50 * ms}})
	rng := rand.New(rand.NewPCG(seed, uint64(w)))
	free := make([]time.Duration, endpoints)
	at, sampled := time.Duration(0), time.Duration(0)
	for i := range 2000 {
		at += time.Duration(rng.ExpFloat64() * float64(120*ms) * 8 / float64(endpoints) / rate)
		for ; sampled < at; sampled += time.Second {
			for e := range free {
				n := int(max(0, free[e]-sampled) / (400 * ms))
				rec.Sample(sampled, e, max(0, n-4), min(n, 4), min(1, float64(n)/20))
			}
			rec.Queue(sampled, 0, int(max(0, free[0]-sampled)/(900*ms)))
			rec.Queue(sampled, 10, int(max(0, free[endpoints-1]-sampled)/(5*time.Second)))
		}
		e := 0
		switch p % 4 {
		case 0:
			e = i % endpoints
		case 1:
			e = rng.IntN(endpoints)
		default:
			for k := range free {
				if free[k] < free[e] {
					e = k
				}
			}
		}
		prompt, output := 500+rng.IntN(4000), 20+rng.IntN(400)
		cached := prompt * min(9, p*2+w) / 12
		tenant := []string{"big", "big", "big", "small", "tiny"}[rng.IntN(5)]
		rec.Sent(i, at, tenant, []string{"chat", "agent"}[rng.IntN(2)], prompt)
		if p == 1 && free[e]-at > 20*time.Second {
			rec.Failed(i, at+time.Second, "rejected-queue-full")
			continue
		}
		start := max(at, free[e])
		free[e] = start + time.Duration(prompt-cached)*ms*5/20 + time.Duration(output)*ms/2
		first := start + time.Duration(prompt-cached)*ms*5/20
		rec.First(i, first)
		gap := time.Duration(8+rng.IntN(20)+p) * ms
		rec.Gap(gap, output-1)
		rec.Done(i, first+gap*time.Duration(output-1), output, cached, e, max(0, free[e]-at)/4)
	}
	return rec.Run()
}
