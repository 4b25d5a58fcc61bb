// SPDX-License-Identifier: Apache-2.0

// Package kvevents answers: what do the engines keep in their caches?
//
// Engines publish each change of their KV cache over ZeroMQ, in numbered messages of msgpack. [Follow] dials the
// engines of all endpoints, [Serve] lets engines dial us. Both tell a [Sink] what was said, and as loudly what they did not
// hear: what is missing from the sequence and could not be replayed, and that an engine began anew.
package kvevents

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

// Sink takes what engines publish. Calls for one source come one after the other, in the order of its sequence;
// those for different sources come at the same time. While a call lasts that source's messages queue up, and beyond
// [Options.Buffer] the newest are dropped, which comes out as a gap.
type Sink interface {
	// Batch tells the changes of one message. The batch is the caller's again when Batch returns.
	Batch(source *Source, seq uint64, b *Batch)
	// Gap tells that the messages from one number to another, both included, are lost for good: blocks may have been
	// stored, removed or cleared. It comes before the message that follows. Where the last is before the first none may be: the engine
	// ended the connection, and whether it is still the same nobody can tell.
	Gap(source *Source, from, to uint64)
	// Restarted tells that the engine began anew: whatever it said before is void. It comes before the new messages.
	Restarted(source *Source)
	// Dropped tells that a message, or an event of one, was left out, for a counter. What it means for the
	// cache is told by Gap or Restarted, before or after.
	Dropped(source *Source, reason Reason)
}

// Source is one publisher, a data-parallel rank of an engine. There is one for as long as an endpoint or a topic is
// followed, so that its address may be a key.
type Source struct {
	// Load is the incarnation that was dialled; nil when the engine dialled us.
	Load *fleet.Load
	// Name is the endpoint's ip:port or, when the engine dialled us, the topic's pod id.
	Name string
	// Rank is the data-parallel rank.
	Rank int
	// From is the address that the engine dialled us from; not valid when it was dialled.
	From netip.Addr

	again     atomic.Bool
	connected atomic.Bool
	heard     atomic.Int64 // UnixNano
	failed    atomic.Pointer[error]

	mu    sync.Mutex // held while a message is told
	track tracker
	last  *reader // whose connection it came over last
}

// Connected reports whether the publisher is connected now.
func (s *Source) Connected() bool { return s.connected.Load() }

// Failed is why the publisher could not be connected when that was tried last; nil when it could.
func (s *Source) Failed() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Again has all that the engine holds told anew with the next message, as far as it can be replayed. It may be called while the
// sink is told something.
func (s *Source) Again() { s.again.Store(true) }

// Heard is when a message came last, zero for never: a rank that is connected and silent may be one that publishes
// elsewhere.
func (s *Source) Heard() time.Time {
	if t := s.heard.Load(); t != 0 {
		return time.Unix(0, t)
	}
	return time.Time{}
}
