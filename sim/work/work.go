// SPDX-License-Identifier: Apache-2.0

// Package work answers: what is asked of the fleet, and when? It reads recorded traces, makes up
// work of known kinds, and plans the faults that a rehearsal goes through. A workload is a stream:
// seeded, the same each time, and never held in memory as a whole.
package work

import "time"

// Segment is a piece of a prompt. Equal IDs with equal lengths are equal content, and of two
// segments with one ID the shorter is the beginning of the longer: [Token] says what stands where.
type Segment struct {
	ID     uint64
	Tokens int32
}

// Token is the content of the i-th token of the segment with that ID: a fixed hash, to be cut to
// whatever a vocabulary holds.
func Token(id uint64, i int32) uint64 { return mix(id, uint64(uint32(i))) }

// Request is one call. It belongs to the caller, with its Prompt, until it goes back by
// [Workload.Ended]; after that the workload may use it for another.
type Request struct {
	// At is when it is sent, from the start of the run.
	At time.Duration
	// Index counts from 0, in the order in which the workload made them.
	Index int
	// Session is the conversation or agent, -1 for none. A sub-agent has its own.
	Session int
	// Turn is which of its session, from 0.
	Turn int
	// Tenant, Objective and Priority are what the gateway is told. An empty tenant is none.
	Tenant    string
	Objective string
	Priority  int
	// Model is an adapter or a model; empty for the base model.
	Model string
	// Prompt is what is sent. Earlier answers stand in it as the segments that Answer named. Do not
	// change it.
	Prompt []Segment
	// Answer is the ID of the segment that will be generated. It is one of its own for each call,
	// and does not depend on when calls end: the same call of two runs has the same.
	Answer uint64
	// Output is the number of tokens to generate, at least 1.
	Output int
	// Class is the kind of work, for breakdowns: chat, agents, documents…
	Class string

	part    int      // of a mixture, that made it
	session *session // of a generator
	row     *row     // of a trace
}

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int {
	n := 0
	for _, s := range r.Prompt {
		n += int(s.Tokens)
	}
	return n
}

// Workload hands out requests. It is used by one goroutine at a time.
type Workload interface {
	// Name is what the workload is called in a report.
	Name() string
	// Total is about how many requests it will make, 0 if that is not known.
	Total() int
	// Next is the next request that begins by itself, in order of At. At the end, or when a trace
	// could not be read any further, it is false.
	Next() (*Request, bool)
	// Ended takes back a request that ended, each once; ok says that it was answered in full. What
	// follows it begins at or after at. The slice is valid until the next call. What follows does not
	// depend on ok: a conversation goes on without the lost answer.
	Ended(r *Request, at time.Duration, ok bool) []*Request
	// Err is why Next stopped early, nil at a proper end. It names file and line.
	Err() error
}

// Open starts a workload from its beginning. The rate is requests per second for a generator, and
// a multiplier for what has a rate of its own: a trace, or a named workload ([Multiplied] tells).
// 0 is the rate that the spec says.
type Open func(seed uint64, rate float64) (Workload, error)

// mix makes one well spread number of two; equal numbers give equal results, for ever.
func mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 ^ (b+0x632be59bd9b4e019)*0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return x
}
