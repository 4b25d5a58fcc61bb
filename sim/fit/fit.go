// SPDX-License-Identifier: Apache-2.0

// Package fit answers: which constants make a simulated engine as fast as this one? It measures a server at a few loads,
// and finds the constants of sim/engine that explain the times best.
package fit

import (
	"math"
	"slices"
	"time"

	"github.com/penstock-project/penstock/sim/engine"
)

// Sample is a time that was measured, and what it is made of.
type Sample struct {
	// Steps are how many steps of the engine the time holds. Prefill, Seqs and KV sum, over these, the prompt tokens
	// computed, the sequences in the batch and the tokens of context read; Pairs those of [engine.Timing] in millions.
	Steps, Prefill, Seqs, KV, Pairs float64
	// Calls are how many times a request went to the server and its first token came back.
	Calls float64
	Took  time.Duration
}

// First is the time to the first token of a prompt of that many tokens, alone on the engine, which computes at most
// budget tokens in a step.
func First(prompt, budget int, took time.Duration) Sample {
	s := Sample{Prefill: float64(prompt), Pairs: float64(prompt) * float64(prompt+1) / 2e6, Calls: 1, Took: took}
	for at := 0; at < prompt; {
		at = min(at+budget, prompt)
		s.Steps++
		s.Seqs++
		s.KV += float64(at)
	}
	return s
}

// Next is the time from one token to the next of one of so many sequences, which have context tokens each.
func Next(seqs int, context float64, took time.Duration) Sample {
	return Sample{Steps: 1, Seqs: float64(seqs), KV: float64(seqs) * context, Took: took}
}

// Result is what fits best.
type Result struct {
	Timing engine.Timing
	// Call is what a request costs beside the engine's steps: the network, HTTP, the template, the tokenizer.
	Call time.Duration
	// Off is how far the samples are from what the constants say: the mean and the worst, as shares of the sample.
	Off, Worst float64
}

// unknowns is how many there are.
const unknowns = 6

func (s *Sample) row() [unknowns]float64 {
	return [unknowns]float64{s.Steps, s.Prefill, s.Seqs, s.KV, s.Pairs, s.Calls}
}

// Solve finds the constants, none below 0, with the least sum of squares of relative errors: Lawson and Hanson's way, over
// all choices of which constants are 0, as there are few.
func Solve(samples []Sample) Result {
	var a [unknowns][unknowns]float64 // of the normal equations
	var b [unknowns]float64
	for i := range samples {
		s := &samples[i]
		y := s.Took.Seconds()
		if y <= 0 {
			continue
		}
		row := s.row()
		for j := range row {
			row[j] /= y
		}
		for j := range row {
			b[j] += row[j]
			for k := range row {
				a[j][k] += row[j] * row[k]
			}
		}
	}
	var best [unknowns]float64
	least := math.Inf(1)
	for set := 1; set < 1<<unknowns; set++ {
		x, ok := solve(a, b, set)
		if !ok {
			continue
		}
		if off := square(samples, x); off < least*(1-1e-9) {
			least, best = off, x
		}
	}
	d := func(i int) time.Duration { return time.Duration(best[i] * 1e9) }
	r := Result{Timing: engine.Timing{Base: d(0), PerPrefillToken: d(1), PerSeq: d(2), PerKVToken: d(3), PerMPairs: d(4)}, Call: d(5)}
	for i := range samples {
		off := math.Abs(said(&samples[i], best)/samples[i].Took.Seconds() - 1)
		r.Off += off / float64(len(samples))
		r.Worst = max(r.Worst, off)
	}
	return r
}

func said(s *Sample, x [unknowns]float64) (t float64) {
	for j, v := range s.row() {
		t += v * x[j]
	}
	return t
}

func square(samples []Sample, x [unknowns]float64) (sum float64) {
	for i := range samples {
		off := said(&samples[i], x)/samples[i].Took.Seconds() - 1
		sum += off * off
	}
	return sum
}

// solve solves the equations for the unknowns of a set, the others being 0. It fails where they are not definite, or one
// comes out below 0.
func solve(a [unknowns][unknowns]float64, b [unknowns]float64, set int) (x [unknowns]float64, ok bool) {
	var at []int
	for j := range unknowns {
		if set>>j&1 == 1 {
			at = append(at, j)
		}
	}
	n := len(at)
	m := make([][]float64, n) // scaled to a diagonal of 1, as the unknowns are of very different size
	scale := make([]float64, n)
	for i, j := range at {
		if a[j][j] <= 0 {
			return x, false
		}
		scale[i] = 1 / math.Sqrt(a[j][j])
	}
	for i, j := range at {
		m[i] = make([]float64, n+1)
		for k, l := range at {
			m[i][k] = a[j][l] * scale[i] * scale[k]
		}
		m[i][n] = b[j] * scale[i]
	}
	for i := range n {
		p := i
		for k := i + 1; k < n; k++ {
			if math.Abs(m[k][i]) > math.Abs(m[p][i]) {
				p = k
			}
		}
		if math.Abs(m[p][i]) < 1e-9 {
			return x, false
		}
		m[i], m[p] = m[p], m[i]
		for k := i + 1; k < n; k++ {
			f := m[k][i] / m[i][i]
			for l := i; l <= n; l++ {
				m[k][l] -= f * m[i][l]
			}
		}
	}
	for i := n - 1; i >= 0; i-- {
		v := m[i][n]
		for k := i + 1; k < n; k++ {
			v -= m[i][k] * x[at[k]] / scale[k]
		}
		v = v / m[i][i] * scale[i]
		if v < 0 {
			return x, false
		}
		x[at[i]] = v
	}
	return x, true
}

// median is the middle one; 0 of none.
func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}
