// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"encoding/binary"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// words are what the engine says. With its space each is one token, so that an answer that comes back
// as a part of the next turn's prompt has the very tokens with which it was generated.
var words = strings.Fields("the sea and our old mud ran low but you say one may dam icy fen for way out off wet bay " +
	"sun was hot her hat red his oar dry eat pie try ale sit rub eel who can ask how dew met fog not cat see all tin " +
	"pan ore boy cut new ice big fir log six owl fly top gap air it. so, us. oh, me, up. in. ox, no, by. at, go.")

// output is an answer, known in full before its first token is generated.
type output struct {
	tokens []uint32
	text   string
	ends   []int  // the length of text after each token
	cut    int    // the length of text that is shown; a stop string ends it early
	reason string // "stop" or "length"
	stop   string // the stop string, when one was met
}

// speech is what limits an answer.
type speech struct {
	max         int  // tokens
	natural     bool // the engine ends by itself at max: it was not asked for a length
	stops       []string
	includeStop bool
	seed        uint64
}

// speak writes the answer to a prompt: filler that depends on the prompt and the seed only.
func speak(prompt []uint32, sp speech) output {
	rng := sp.seed ^ fingerprint(prompt)
	out := output{reason: "length"}
	if sp.natural {
		out.reason = "stop"
	}
	var text strings.Builder
	for range sp.max {
		rng += 0x9e3779b97f4a7c15
		word := words[mix(rng)%uint64(len(words))] + " "
		text.WriteString(word)
		out.tokens = tokenize(out.tokens, word)
		out.ends = append(out.ends, text.Len())
		if len(sp.stops) == 0 {
			continue
		}
		if at, stop := findStop(text.String(), len(word), sp.stops); stop != "" {
			out.reason, out.stop, out.cut = "stop", stop, at
			if sp.includeStop {
				out.cut += len(stop)
			}
			out.text = text.String()
			return out
		}
	}
	out.text, out.cut = text.String(), text.Len()
	return out
}

// findStop finds the stop string that ends in the last new bytes of a text, the earliest first.
func findStop(text string, added int, stops []string) (at int, stop string) {
	at = len(text)
	for _, s := range stops {
		from := max(0, len(text)-added-len(s)+1)
		if i := strings.Index(text[from:], s); s != "" && i >= 0 && from+i < at {
			at, stop = from+i, s
		}
	}
	return at, stop
}

// piece is what is shown of the i-th token.
func (o *output) piece(i int) string {
	from := 0
	if i > 0 {
		from = o.ends[i-1]
	}
	return o.text[min(from, o.cut):min(o.ends[i], o.cut)]
}

// shown is the whole answer.
func (o *output) shown() string { return o.text[:o.cut] }

// fingerprint is a hash of tokens.
func fingerprint(tokens []uint32) uint64 {
	h := xxhash.New()
	var buf [512]byte
	for len(tokens) > 0 {
		n := min(len(tokens), len(buf)/4)
		b := buf[:0]
		for _, t := range tokens[:n] {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
		_, _ = h.Write(b)
		tokens = tokens[n:]
	}
	return h.Sum64()
}

// mix is splitmix64's finalizer.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
