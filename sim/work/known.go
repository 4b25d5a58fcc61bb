// SPDX-License-Identifier: Apache-2.0

package work

import "math"

// known guesses what the prompts of an access log shared. The log says how many tokens of a prompt
// the engine had, and not which: they are taken to be the beginning of what the tenant sent to the
// model not long before, of the call that had hardly more tokens than these. So a conversation
// goes on from its last turn, and a system prompt is one.
type known struct {
	of map[knownBy]*recent
}

type knownBy struct{ tenant, model string }

// recent are the last prompts of one tenant and model, each with its answer.
type recent struct {
	talks [32]struct {
		pieces []Segment
		tokens int
	}
	next int
}

const (
	maxKnown  = 256 // tenants and models
	maxPieces = 64  // of a prompt that is remembered
)

func (k *known) by(w *row) *recent {
	key := knownBy{w.tenant, w.model}
	r := k.of[key]
	if r == nil {
		if k.of == nil || len(k.of) >= maxKnown {
			k.of = map[knownBy]*recent{}
		}
		r = &recent{}
		k.of[key] = r
	}
	return r
}

// recall begins w's prompt with the tokens that were cached, and says how many these are.
func (k *known) recall(w *row, base uint64) int {
	if w.cached == 0 {
		return 0
	}
	r := k.by(w)
	best, fewest := -1, math.MaxInt
	for i := range r.talks {
		j := (r.next + i) % len(r.talks) // the latest last
		if n := r.talks[j].tokens; n >= w.cached && n <= fewest {
			best, fewest = j, n
		}
	}
	if best < 0 { // from before the log
		w.prompt = append(w.prompt, Segment{mix(base, sessionKey([]byte(w.tenant+"\x00"+w.model))), int32(w.cached)})
		return w.cached
	}
	left := w.cached
	for _, s := range r.talks[best].pieces {
		if left == 0 {
			break
		}
		s.Tokens = min(s.Tokens, int32(left))
		left -= int(s.Tokens)
		w.prompt = append(w.prompt, s)
	}
	return w.cached
}

// learn remembers w's prompt with its answer.
func (k *known) learn(w *row, answer Segment) {
	if len(w.prompt) >= maxPieces {
		return
	}
	r := k.by(w)
	t := &r.talks[r.next]
	r.next = (r.next + 1) % len(r.talks)
	t.pieces = append(append(t.pieces[:0], w.prompt...), answer)
	t.tokens = w.input + w.output
}
