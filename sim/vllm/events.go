// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-project/penstock/sim/engine"
	"github.com/penstock-project/penstock/source/kvevents"
)

// Events says whether and where the engine publishes the changes of its KV cache; the names of --kv-events-config are vLLM's.
type Events struct {
	// Enabled publishes them.
	Enabled bool `json:"enable_kv_cache_events"`
	// Publisher is zmq, or null for none; empty is zmq when Enabled.
	Publisher string `json:"publisher"`
	// Endpoint is tcp://HOST:PORT. As with vLLM it is listened on when it has a * or ::, or here also port 0, and dialled
	// otherwise, for one subscriber in the middle of all engines.
	Endpoint string `json:"endpoint"`
	// ReplayEndpoint, if any, is listened on for subscribers that missed something.
	ReplayEndpoint string `json:"replay_endpoint"`
	// BufferSteps is how many messages can be replayed, at most 8 MiB of them.
	BufferSteps int `json:"buffer_steps"`
	// HWM is how many messages may wait for a slow subscriber, MaxQueueSize how many to be published.
	HWM          int `json:"hwm"`
	MaxQueueSize int `json:"max_queue_size"`
	// Topic is what messages are published under, by custom kv@POD@MODEL.
	Topic string `json:"topic"`

	// Listener and ReplayListener, if not nil, are taken instead of what the endpoints say. The server closes them.
	Listener, ReplayListener net.Listener `json:"-"`
}

// replayBytes bounds the memory of what can be replayed, because there may be hundreds of engines in a process.
const replayBytes = 8 << 20

// usualEvents are vLLM's defaults.
func usualEvents() Events {
	return Events{Endpoint: "tcp://*:5557", BufferSteps: 10_000, HWM: 100_000, MaxQueueSize: 100_000}
}

// on tells whether events are published.
func (o *Events) on() bool { return o.Enabled && o.Publisher != "null" }

// Validate reports what cannot be published on.
func (o *Events) Validate() error {
	if !o.on() {
		return nil
	}
	var errs []error
	if o.Publisher != "" && o.Publisher != "zmq" {
		errs = append(errs, fmt.Errorf("kv-events-config: publisher: want zmq or null, got %q", o.Publisher))
	}
	check := func(name, endpoint string) {
		if _, _, err := splitEndpoint(endpoint); err != nil {
			errs = append(errs, fmt.Errorf("kv-events-config: %s: %w", name, err))
		}
	}
	if o.Listener == nil {
		check("endpoint", o.Endpoint)
	}
	if o.ReplayListener == nil && o.ReplayEndpoint != "" {
		check("replay_endpoint", o.ReplayEndpoint)
	}
	if o.BufferSteps < 0 || o.HWM < 0 || o.MaxQueueSize < 0 {
		errs = append(errs, errors.New("kv-events-config: buffer_steps, hwm and max_queue_size must not be below 0"))
	}
	return errors.Join(errs...)
}

// splitEndpoint reads tcp://HOST:PORT, and tells whether it is to be listened on.
func splitEndpoint(endpoint string) (address string, bind bool, err error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, splitErr := net.SplitHostPort(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if !ok || splitErr != nil || portErr != nil || host == "" {
		return "", false, fmt.Errorf("want tcp://HOST:PORT, with * for all hosts, got %q", endpoint)
	}
	bind = host == "*" || strings.Contains(host, "::") || n == 0
	if host == "*" {
		host = ""
	}
	return net.JoinHostPort(host, port), bind, nil
}

// eventsFlag is --kv-events-config.
type eventsFlag Events

func (f *eventsFlag) String() string {
	if !f.Enabled {
		return ""
	}
	return string(appendJSON(nil, (*Events)(f)))
}

func (f *eventsFlag) Type() string { return "JSON" }

func (f *eventsFlag) Set(v string) error {
	dec := json.NewDecoder(strings.NewReader(v))
	dec.DisallowUnknownFields()
	if err := dec.Decode((*Events)(f)); err != nil {
		return fmt.Errorf("want JSON as vLLM's KVEventsConfig: %w", err)
	}
	return nil
}

// EventTrouble is what can be wrong with the events of an engine.
type EventTrouble struct {
	// DelayMS is how many milliseconds late they come.
	DelayMS int `json:"delay_ms,omitempty"`
	// Drop is the share of messages, 0 to 1, that are lost on their way. Their numbers are missed, and a replay has them.
	Drop float64 `json:"drop,omitempty"`
	// Silent loses what happens before it gets a number, so that nobody can tell but by what is really cached.
	Silent bool `json:"silent,omitempty"`
}

// Validate reports what no engine can have.
func (t *EventTrouble) Validate() error {
	switch {
	case t.DelayMS < 0 || t.DelayMS > 600_000:
		return fmt.Errorf("events.delay_ms: want 0 to 600000, got %d", t.DelayMS)
	case !(t.Drop >= 0 && t.Drop <= 1):
		return fmt.Errorf("events.drop: want 0 to 1, got %g", t.Drop)
	}
	return nil
}

// stream is the way of an engine's events from its cache to the subscribers: a batch for each step, as vLLM's scheduler makes
// them, and behind it a queue that is published in the background. The cache's side is guarded by the server's mu.
type stream struct {
	out             kvevents.Publisher
	events, replays net.Listener
	dial            string
	most            int // messages that wait

	block    int              // tokens of a block
	adapters map[string]int64 // numbers by which old readers know them
	body     []byte           // events of the open step
	count    int              // of these
	tokens   []uint32
	extras   []kvevents.Extra

	mu      sync.Mutex // guards what follows; whoever holds it takes no other but the publisher's
	trouble EventTrouble
	down    bool
	waiting []dispatch
	seq     uint64
	chance  uint64
	news    chan struct{}
}

type dispatch struct {
	at      time.Time // when it is due
	payload []byte
}

// newStream opens the sockets that are listened on.
func newStream(o *Events, block int, seed uint64) (*stream, error) {
	usual := usualEvents()
	either := func(n, usual int) int {
		if n == 0 {
			return usual
		}
		return n
	}
	e := &stream{
		block: block, adapters: map[string]int64{}, chance: seed, news: make(chan struct{}, 1), events: o.Listener, replays: o.ReplayListener,
		most: either(o.MaxQueueSize, usual.MaxQueueSize),
	}
	e.out.Topic, e.out.KeepBytes = o.Topic, replayBytes
	e.out.Keep, e.out.Queue = either(o.BufferSteps, usual.BufferSteps), either(o.HWM, usual.HWM)
	var err error
	if e.events == nil {
		address, bind, _ := splitEndpoint(o.Endpoint) // valid
		if !bind {
			e.dial = address
		} else if e.events, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("kv-events-config: endpoint: %w", err)
		}
	}
	if e.replays == nil && o.ReplayEndpoint != "" {
		address, _, _ := splitEndpoint(o.ReplayEndpoint)
		if e.replays, err = net.Listen("tcp", address); err != nil {
			e.shut()
			return nil, fmt.Errorf("kv-events-config: replay_endpoint: %w", err)
		}
	}
	return e, nil
}

// shut closes the sockets that are listened on.
func (e *stream) shut() {
	for _, l := range []net.Listener{e.events, e.replays} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Stored implements [engine.Events].
func (e *stream) Stored(s *engine.Seq, first int, parent uint64, hashes []uint64) {
	a := s.Tag.(*answer)
	ev := kvevents.Event{
		Kind: kvevents.BlockStored, Hashes: hashes, Parent: parent, HasParent: first > 0, BlockSize: e.block,
		Tokens: e.said(a, first*e.block, (first+len(hashes))*e.block),
		LoraID: -1, LoraName: s.Adapter, Medium: "gpu", SpecKind: "full_attention",
	}
	e.extras = e.extras[:0]
	for i := range hashes {
		if s.Adapter != "" {
			e.extras = append(e.extras, kvevents.Extra{Block: i, Text: []byte(s.Adapter)})
		}
		if first+i == 0 && s.Salt != "" {
			e.extras = append(e.extras, kvevents.Extra{Block: i, Text: []byte(s.Salt)})
		}
	}
	ev.Extras = e.extras
	if s.Adapter != "" {
		if e.adapters[s.Adapter] == 0 {
			e.adapters[s.Adapter] = int64(len(e.adapters)) + 1
		}
		ev.LoraID = e.adapters[s.Adapter]
	}
	e.add(&ev)
}

// said are the tokens of a prompt and its answer, from one to before another.
func (e *stream) said(a *answer, from, to int) []uint32 {
	n := len(a.prompt)
	if to <= n {
		return a.prompt[from:to]
	}
	e.tokens = append(e.tokens[:0], a.prompt[min(from, n):]...)
	e.tokens = append(e.tokens, a.out.tokens[max(0, from-n):to-n]...)
	return e.tokens
}

// Removed implements [engine.Events].
func (e *stream) Removed(hash uint64) {
	e.add(&kvevents.Event{Kind: kvevents.BlockRemoved, Hashes: []uint64{hash}, Medium: "gpu"})
}

// Cleared implements [engine.Events]. As with vLLM nobody hears of it before the next step.
func (e *stream) Cleared() { e.add(&kvevents.Event{Kind: kvevents.AllBlocksCleared}) }

func (e *stream) add(ev *kvevents.Event) {
	e.body = ev.Append(e.body, kvevents.Maps)
	e.count++
}

// step publishes what happened since the last one.
func (e *stream) step() {
	if e.count == 0 {
		return
	}
	now := time.Now()
	payload := kvevents.AppendHead(make([]byte, 0, len(e.body)+24), float64(now.UnixMicro())/1e6, e.count)
	payload = kvevents.AppendRank(append(payload, e.body...), 0)
	e.body, e.count = e.body[:0], 0
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down || e.trouble.Silent || len(e.waiting) >= e.most {
		return
	}
	e.waiting = append(e.waiting, dispatch{now.Add(time.Duration(e.trouble.DelayMS) * time.Millisecond), payload})
	e.poke()
}

func (e *stream) poke() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// begin makes the stream that of a process that has just started.
func (e *stream) begin() {
	e.body, e.count = e.body[:0], 0
	e.mu.Lock()
	defer e.mu.Unlock()
	e.out.Reopen()
	e.down, e.seq = false, 0
}

// end makes the stream that of a process that is gone.
func (e *stream) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down, e.waiting = true, nil
	e.out.Close()
}

func (e *stream) setTrouble(t EventTrouble) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trouble = t
}

// redial is the pause between two connections to a subscriber in the middle, libzmq's.
const redial = 100 * time.Millisecond

// run publishes until the context ends, and then closes all sockets.
func (e *stream) run(ctx context.Context) error {
	defer e.out.Close()
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, e.shut)
	defer stop()
	serve := func(l net.Listener, f func(net.Listener) error) {
		if l != nil {
			g.Go(func() error {
				if err := f(l); ctx.Err() == nil {
					return fmt.Errorf("KV events: %w", err)
				}
				return nil
			})
		}
	}
	serve(e.events, e.out.ServeEvents)
	serve(e.replays, e.out.ServeReplays)
	if e.dial != "" {
		g.Go(func() error {
			e.out.Dial(e.dial, redial, ctx.Done())
			return nil
		})
	}
	g.Go(func() error {
		e.publish(ctx)
		return nil
	})
	return g.Wait()
}

// publish sends what waits, each message when it is due.
func (e *stream) publish(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(e.flush())
		select {
		case <-ctx.Done():
			return
		case <-e.news:
		case <-timer.C:
		}
	}
}

// flush sends what is due and tells how long nothing more is.
func (e *stream) flush() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.waiting) > 0 {
		m := e.waiting[0]
		if early := time.Until(m.at); early > 0 {
			return early
		}
		e.waiting[0] = dispatch{}
		e.waiting = e.waiting[1:]
		e.chance += 0x9e3779b97f4a7c15
		if float64(mix(e.chance)>>11)/(1<<53) < e.trouble.Drop {
			e.out.Lose(e.seq, m.payload)
		} else {
			e.out.Send(e.seq, m.payload)
		}
		e.seq++
	}
	return time.Hour
}

// EventAddrs are the addresses on which subscribers and their replay requests are taken, nil where none are.
func (s *Server) EventAddrs() (events, replays net.Addr) {
	if s.events == nil {
		return nil, nil
	}
	addr := func(l net.Listener) net.Addr {
		if l == nil {
			return nil
		}
		return l.Addr()
	}
	return addr(s.events.events), addr(s.events.replays)
}
