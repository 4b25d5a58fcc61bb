// SPDX-License-Identifier: Apache-2.0

package load

import (
	"math/rand/v2"
	"strings"
)

// The shape of the workload: a few applications, each with a long system prompt that all its
// conversations share, and in each conversation some turns that build on one another.
const (
	apps        = 4
	systemWords = 500 // of a system prompt; a word is about 1.5 tokens
	minWords    = 20  // of a question
	maxWords    = 120
	minTurns    = 2
	maxTurns    = 8
	restSeconds = 8 // between two turns of a conversation, about
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type conversation struct {
	messages []message
	turns    int // still to come, the present one included
}

// talk makes conversations and decides who speaks next. It keeps as many conversations as the rate
// needs for a rest between turns, and no more.
type talk struct {
	rng     *rand.Rand
	systems []string
	idle    []*conversation // the longest rested first
	alive   int
	most    int
	begun   uint64
}

func newTalk(seed uint64, rate float64) *talk {
	t := &talk{rng: rand.New(rand.NewPCG(seed, 2)), most: min(4096, max(2*apps, int(rate*restSeconds)))}
	for range apps {
		t.systems = append(t.systems, t.say(systemWords))
	}
	return t
}

// next is the conversation whose turn it is, with its question.
func (t *talk) next() *conversation {
	var c *conversation
	if len(t.idle) > 0 && t.alive >= t.most {
		c = t.idle[0]
		copy(t.idle, t.idle[1:])
		t.idle = t.idle[:len(t.idle)-1]
	} else {
		app := int(t.begun % apps)
		t.begun++
		t.alive++
		c = &conversation{
			messages: []message{{"system", t.systems[app]}},
			turns:    minTurns + t.rng.IntN(maxTurns-minTurns+1),
		}
	}
	c.messages = append(c.messages, message{"user", t.say(minWords + t.rng.IntN(maxWords-minWords+1))})
	return c
}

// done takes a conversation back with its answer. It ends when it had all its turns, or went wrong.
func (t *talk) done(c *conversation, answer string, ok bool) {
	c.turns--
	if c.turns <= 0 || !ok {
		t.alive--
		return
	}
	c.messages = append(c.messages, message{"assistant", answer})
	t.idle = append(t.idle, c)
}

// say makes up a text.
func (t *talk) say(words int) string {
	var b strings.Builder
	for i := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		for range 1 + t.rng.IntN(3) {
			b.WriteByte("bcdfghjklmnprstvw"[t.rng.IntN(17)])
			b.WriteByte("aeiou"[t.rng.IntN(5)])
		}
	}
	return b.String()
}
