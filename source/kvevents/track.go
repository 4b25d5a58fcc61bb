// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"
	"strings"
)

// endMark is the sequence that ends a replay; it numbers no data.
const endMark = math.MaxUint64

// frames reads the parts of a published message: topic, sequence, payload.
func frames(parts [][]byte) (topic []byte, seq uint64, payload []byte, err error) {
	if len(parts) != 3 || len(parts[1]) != 8 {
		return nil, 0, nil, BadFrame
	}
	if seq = binary.BigEndian.Uint64(parts[1]); seq == endMark {
		return nil, 0, nil, BadFrame
	}
	return parts[0], seq, parts[2], nil
}

// replayed reads the parts of an answer to a replay request: an empty delimiter, in newer engines the
// topic, then sequence and payload. At the end the sequence is [endMark] or the payload empty.
func replayed(parts [][]byte) (topic []byte, seq uint64, payload []byte, end bool, err error) {
	n := len(parts)
	if n < 2 || n > 4 {
		return nil, 0, nil, false, BadFrame
	}
	payload = parts[n-1]
	if len(parts[n-2]) == 8 {
		seq = binary.BigEndian.Uint64(parts[n-2])
	} else if len(payload) != 0 {
		return nil, 0, nil, false, BadFrame
	}
	if n > 2 {
		topic = parts[n-3]
	}
	return topic, seq, payload, seq == endMark || len(payload) == 0, nil
}

// SplitTopic reads kv@pod@model. Any other topic is all pod id.
func SplitTopic(topic string) (pod, model string) {
	if rest, ok := strings.CutPrefix(topic, "kv@"); ok {
		if pod, model, ok = strings.Cut(rest, "@"); ok {
			return pod, model
		}
	}
	return topic, ""
}

// wanted applies a filter as ZeroMQ does: by the topic's start.
func wanted(topic []byte, filter string) bool { return bytes.HasPrefix(topic, []byte(filter)) }

// verdict is what a sequence number means after those before it.
type verdict uint8

const (
	inOrder   verdict = iota
	ahead             // some are missing before it
	again             // the same message came before
	late              // its gap was told, or was never noticed
	restarted         // the numbers began anew
)

// memory is how many messages back a tracker knows what they said.
const memory = 64

// tracker follows one publisher's numbers.
//
// A number that went backwards is a restart when the message differs from the one that had it before, when it is the first
// on a new connection (a publisher never repeats itself), when it is 0 or far back. Else it is a duplicate
// or late; neither should be possible over one connection.
type tracker struct {
	known bool
	next  uint64
	fresh bool // nothing came yet since it connected
	// fillTo is behind the newest message that came by replay: those before it may come over the connection as well.
	fillTo uint64
	seen   [memory]struct{ seq, sum uint64 }
}

var seed = maphash.MakeSeed()

func sumOf(payload []byte) uint64 { return maphash.Bytes(seed, payload) | 1 } // 0 is for what was not seen

func (t *tracker) judge(seq, sum uint64) verdict {
	switch s := t.seen[seq%memory]; {
	case !t.known && seq == 0, t.known && seq == t.next:
		return inOrder
	case !t.known, seq > t.next:
		return ahead
	case t.filled(seq) && s.sum == sum:
		return again
	case t.fresh:
		return restarted
	case s.sum != 0 && s.seq == seq:
		if s.sum == sum {
			return again
		}
		return restarted
	case seq == 0, t.next-seq > memory:
		return restarted
	}
	return late
}

// took notes that the message was told.
func (t *tracker) took(seq, sum uint64) {
	t.known, t.next, t.fresh = true, seq+1, false
	s := &t.seen[seq%memory]
	s.seq, s.sum = seq, sum
}

// filled reports that the message came by replay.
func (t *tracker) filled(seq uint64) bool { return seq < t.fillTo }

// newest is the number and sum of the message told last; ok is false when there is none.
func (t *tracker) newest() (seq, sum uint64, ok bool) {
	if !t.known {
		return 0, 0, false
	}
	s := t.seen[(t.next-1)%memory]
	return s.seq, s.sum, s.sum != 0 && s.seq == t.next-1
}

// forget begins anew.
func (t *tracker) forget() { *t = tracker{} }
