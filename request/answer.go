// SPDX-License-Identifier: Apache-2.0

package request

// Usage is what an engine says it computed, in tokens; -1 where it does not say.
type Usage struct {
	Prompt, Output, Cached int
}

// Answer reads a response as it passes.
type Answer struct {
	Events int   // events that carried output
	First  bool  // the latest Feed brought the first output
	Output bool  // the latest Feed brought output
	Done   bool  // the end marker was seen
	Usage  Usage // the last one told
}

// Reset prepares for an answer of an API, which is a stream of events or one JSON document.
func (a *Answer) Reset(api API, sse bool) { *a = Answer{Usage: Usage{-1, -1, -1}} }

// Feed reads the next piece. It neither keeps nor changes p.
func (a *Answer) Feed(p []byte) {}

// Finish reads what was left over at the end.
func (a *Answer) Finish() {}
