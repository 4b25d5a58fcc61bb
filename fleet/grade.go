// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"sync"
)

// A grade compares what we said an endpoint has cached of a prompt with what its engine reported afterwards.

// gradeOver is how many requests the agreement remembers, about.
const gradeOver = 16

// Grade is how well the prefixes that we predict agree with what an engine reports, for one incarnation.
type Grade struct {
	// Requests were graded; Exact of them agreed to the token.
	Requests, Exact int64
	// Predicted and Reported sum the cached tokens of these requests.
	Predicted, Reported int64
	// Agreement is the recent mean of 1 - |predicted - reported| / prompt: 1 when all agree, 0 when nothing does;
	// 1 before the first.
	Agreement float64
}

type grade struct {
	mu sync.Mutex
	Grade
}

// Graded is told what was predicted of one request, and what the engine reported, in cached tokens of a prompt.
func (l *Load) Graded(predicted, reported, prompt int64) {
	if prompt <= 0 || predicted < 0 || reported < 0 {
		return
	}
	predicted, reported = min(predicted, prompt), min(reported, prompt)
	agree := 1 - math.Abs(float64(predicted-reported))/float64(prompt)
	g := &l.grade
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Requests++
	if predicted == reported {
		g.Exact++
	}
	g.Predicted += predicted
	g.Reported += reported
	if g.Requests == 1 {
		g.Agreement = agree
		return
	}
	g.Agreement += (agree - g.Agreement) / float64(min(g.Requests, gradeOver))
}

// Grade tells how well predictions agreed until now.
func (l *Load) Grade() Grade {
	l.grade.mu.Lock()
	defer l.grade.mu.Unlock()
	g := l.grade.Grade
	if g.Requests == 0 {
		g.Agreement = 1
	}
	return g
}
