// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sim/vllm"
	"github.com/penstock-project/penstock/source/kvevents"
)

// feedOf is the feed of a pool that goes by prefixes, with nothing running.
func feedOf(t *testing.T, events string, endpoints ...fleet.EndpointSpec) (*feed, *process) {
	t.Helper()
	p, err := newProcess(preciseOf(t, preciseConfig(events, "")), defaults(), &lockedBuffer{})
	if err != nil {
		t.Fatal(err)
	}
	p.store.SetEndpoints("test", endpoints)
	for _, f := range p.feeds.all {
		return f, p
	}
	t.Fatal("no feed")
	return nil, nil
}

// stored is a batch that tells of one block with that hash.
func stored(hash uint64) *kvevents.Batch {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(hash) + uint32(i)
	}
	return &kvevents.Batch{Events: []kvevents.Event{{Kind: kvevents.BlockStored, Hashes: []uint64{hash}, Tokens: tokens, BlockSize: 16}}}
}

// Whose a publisher is that dialled us is told by its topic and its rank.
func TestPublisherOf(t *testing.T) {
	at := func(name, address, pod string) fleet.EndpointSpec {
		return fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: name}, Address: address, Pod: pod}
	}
	f, _ := feedOf(t, listening("127.0.0.1:0"),
		at("one", "10.0.0.1:8000", ""), at("six", "[fd00::6]:8000", ""), at("shared-a", "10.0.0.2:8000", ""), at("shared-b", "10.0.0.2:8001", ""),
		at("pod-rank-0", "10.0.0.3:8000", "pod"), at("pod-rank-1", "10.0.0.3:8001", "pod"), at("pod-rank-2", "10.0.0.3:8002", "pod"))
	names := map[*fleet.Load]string{nil: "nobody"}
	for _, e := range f.store.Load().Pools[0].Endpoints {
		names[e.Load] = e.Name
	}
	for _, c := range []struct {
		topic string
		rank  int
		want  string
	}{
		{"kv@10.0.0.1:8000@m", 0, "one"}, {"kv@10.0.0.1@m", 0, "one"}, {"kv@one@m", 0, "one"}, {"kv@10.0.0.1:8000@org/m@v2", 0, "one"},
		{"kv@10.0.0.1@m", 5, "one"}, // an engine that spreads requests over its ranks by itself
		{"kv@[fd00::6]:8000@m", 0, "six"}, {"kv@fd00::6@m", 0, "six"}, {"kv@[fd00::6]@m", 0, "six"}, {"kv@[FD00:0::6]:8000@m", 0, "six"},
		{"kv@::ffff:10.0.0.1@m", 0, "one"},
		{"kv@10.0.0.2:8001@m", 0, "shared-b"}, {"kv@10.0.0.2@m", 0, "nobody"}, {"kv@10.0.0.2@m", 1, "nobody"}, // it may be either
		{"kv@pod@m", 0, "pod-rank-0"}, {"kv@pod@m", 2, "pod-rank-2"}, {"kv@10.0.0.3@m", 1, "pod-rank-1"},
		{"kv@10.0.0.3:8000@m", 0, "pod-rank-0"}, {"kv@10.0.0.3:8000@m", 2, "pod-rank-2"}, // one topic for all ranks
		{"kv@10.0.0.3:8001@m", 1, "pod-rank-1"}, {"kv@10.0.0.3:8001@m", 0, "pod-rank-1"}, // a topic for each
		{"kv@pod@m", 4, "pod-rank-1"}, {"kv@10.0.0.3:8000@m", 3, "pod-rank-0"}, // ranks 3 to 5 are this pod's
		{"kv@10.0.0.9:8000@m", 0, "nobody"}, {"kv@@m", 0, "nobody"}, {"kv@", 0, "nobody"}, {"", 0, "nobody"}, {"kv-events", 0, "nobody"}, {"kv@pod-rank-1@m", 0, "nobody"},
	} {
		pod, _ := kvevents.SplitTopic(c.topic)
		if got := names[f.find(&kvevents.Source{Name: pod, Rank: c.rank})]; got != c.want {
			t.Errorf("%s, rank %d: got %s, want %s", c.topic, c.rank, got, c.want)
		}
	}
}

// What comes for an endpoint that has just left is nothing.
func TestBatchOfEndpointThatLeft(t *testing.T) {
	f, p := feedOf(t, dialling, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.1:8000"})
	e := p.store.Load().Pools[0].Endpoints[0]
	s := &kvevents.Source{Load: e.Load, Name: e.Address}
	p.store.SetEndpoints("test", []fleet.EndpointSpec{{ID: e.ID, Address: "10.0.0.2:8000"}})
	if !e.Load.Ended() {
		t.Fatal("it is still there")
	}
	f.Batch(s, 0, stored(1))
	f.Gap(s, 1, 2)
	f.Restarted(s)
	if v := f.view(); v.Blocks != 0 || len(v.Dropped) != 0 || len(v.Strangers) != 0 || len(f.sources) != 0 {
		t.Errorf("%+v", v)
	}
}

// Publishers that are no endpoint are named; what they missed is a gap once they are.
func TestUnknownPublishers(t *testing.T) {
	f, p := feedOf(t, listening("127.0.0.1:0"), fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.1:8000"})
	late := &kvevents.Source{Name: "10.0.0.2:8000"}
	for i := range 3 {
		f.Batch(late, uint64(i), stored(uint64(i)))
	}
	v := f.view()
	if len(v.Strangers) != 1 || v.Strangers[0].Name != late.Name || v.Strangers[0].Messages != 3 || v.Dropped["unknown-publisher"] != 3 || v.Blocks != 0 {
		t.Errorf("strangers %+v; dropped %v", v.Strangers, v.Dropped)
	}
	p.store.SetEndpoints("more", []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "default", Name: "b"}, Address: "10.0.0.2:8000"}})
	f.Batch(late, 4, stored(4))
	v = f.view()
	if c := v.Endpoints[1].Counts; c["gaps"] != 1 || c["missed"] != 3 || c["stored"] != 1 || len(v.Strangers) != 0 {
		t.Errorf("%v, strangers %+v", c, v.Strangers)
	}
	for i := range 2 * mostStrangers {
		f.Batch(&kvevents.Source{Name: fmt.Sprint("odd", i)}, 0, stored(1))
	}
	if v = f.view(); len(v.Strangers) != mostStrangers || len(f.sources) > 2 {
		t.Errorf("%d strangers, %d sources are remembered", len(v.Strangers), len(f.sources))
	}
}

// That most engines overruled the first is said once.
func TestBlocksAreOverruled(t *testing.T) {
	var specs []fleet.EndpointSpec
	for i := range 4 {
		specs = append(specs, fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: fmt.Sprint("e", i)}, Address: fmt.Sprintf("10.0.0.%d:8000", i+1)})
	}
	f, p := feedOf(t, dialling, specs...)
	var log lockedBuffer
	f.log = slog.New(slog.NewTextHandler(&log, nil))
	for i, e := range p.store.Load().Pools[0].Endpoints {
		b := stored(1 << 40)
		if i == 0 { // of a hybrid model, whose first group is not followed
			other := b.Events[0]
			other.SpecKind, other.BlockSize = "mamba", 8192
			b.Events = append([]kvevents.Event{other}, b.Events...)
			b.Events[1].BlockSize, b.Events[1].Tokens = 7, make([]uint32, 7)
		}
		f.Batch(&kvevents.Source{Load: e.Load, Name: e.Address}, 0, b)
	}
	if n := strings.Count(log.String(), "begins anew"); n != 1 || !strings.Contains(log.String(), "tokens=16 before=7") {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// An endpoint that speaks from its own address is spoken for by nobody else, and what others said before is void. An endpoint speaks for
// no other.
func TestForeignPublishers(t *testing.T) {
	f, p := feedOf(t, listening("127.0.0.1:0"),
		fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.1:8000"},
		fleet.EndpointSpec{ID: fleet.ID{Namespace: "default", Name: "b"}, Address: "10.0.0.2:8000"})
	slot := p.store.Load().Pools[0].Endpoints[0].Load.Slot
	from := func(addr string) *kvevents.Source {
		return &kvevents.Source{Name: "10.0.0.1:8000", From: netip.MustParseAddr(addr)}
	}
	held := func(what string, want int, dropped uint64) {
		t.Helper()
		v := f.view()
		if n := f.producer.Mirror().Index.Held(slot); n != want || v.Dropped["foreign-publisher"] != dropped || v.Dropped["unknown-publisher"] != 0 {
			t.Errorf("%s: %d blocks are held, want %d; dropped %v", what, n, want, v.Dropped)
		}
	}
	f.Batch(from("10.0.0.2"), 0, stored(1))
	held("b for a", 0, 1)
	other, own := from("192.168.0.1"), from("10.0.0.1")
	f.Batch(other, 0, stored(2))
	f.Batch(other, 1, stored(3))
	held("an address of nobody's for a", 2, 1)
	f.Batch(own, 0, stored(4))
	held("a for itself", 1, 1)
	f.Batch(other, 2, stored(5))
	f.Batch(from("192.168.0.9"), 0, stored(6))
	f.Gap(other, 3, 4)
	f.Restarted(other)
	held("others then", 1, 3)
	f.Batch(own, 1, stored(7))
	held("a again", 2, 3)
	if v := f.view(); len(v.Strangers) != 1 || v.Strangers[0].From != "192.168.0.9" {
		t.Errorf("strangers %+v", v.Strangers)
	}
	p.store.SetEndpoints("test", []fleet.EndpointSpec{{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.3:8000"}})
	f.Batch(&kvevents.Source{Name: "a", From: netip.MustParseAddr("192.168.0.1")}, 0, stored(8))
	if n := f.view().Endpoints[0].Blocks; n != 1 || len(f.own) != 0 {
		t.Errorf("%d blocks of who came after, %d remembered", n, len(f.own))
	}
}

// An address that is taken is said, tried again, and heard at once it is free. Two pools hear at one address.
func TestAddressIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := startEngine(t, "a", dials(l.Addr().String()))
	r := rehearse(t, preciseConfig(listening(l.Addr().String()), ""), a)
	until(t, "the error", func() bool { return strings.Contains(r.page().Error, "in use") })
	r.complete(r.text(50))
	if v := r.known(a); v.Evidence != "approximate" {
		t.Errorf("known by %s", v.Evidence)
	}
	l.Close()
	r.settle(a)
	if v := r.page(); v.Error != "" {
		t.Errorf("still says %s", v.Error)
	}
	if n := strings.Count(r.log.String(), "cannot be heard"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

// A reload keeps what is known where the producer is the same, and leaves nothing behind where it is not.
func TestReloadOfFeeds(t *testing.T) {
	for _, c := range []struct{ name, events string }{{"dialled", dialling}, {"dialling", listening(freeAddress(t))}} {
		t.Run(c.name, func(t *testing.T) {
			var set func(*vllm.Options, string)
			if c.events != dialling {
				set = dials(strings.TrimSuffix(strings.TrimPrefix(c.events, `{zmqEndpoint: "tcp://`), `"}`))
			}
			a := startEngine(t, "a", set)
			text := preciseConfig(c.events, "")
			r := rehearse(t, text, a)
			p := r.text(100)
			r.complete(p)
			r.settle(a)
			apply := func(text string) {
				t.Helper()
				if err := r.p.apply(context.Background(), preciseOf(t, text)); err != nil {
					t.Fatal(err)
				}
			}
			before := r.mirror()
			apply(text)
			if r.mirror() != before {
				t.Error("the same configuration has another index")
			}
			apply(strings.Replace(text, "weight: 1", "weight: 2", 1))
			if r.mirror() != before {
				t.Error("another weight has another index")
			}
			if got := r.exact("with another weight", r.complete(p)); got.predicted != 96 {
				t.Errorf("%d tokens are known after a reload, want 96", got.predicted)
			}
			r.settle(a)
			if v := r.known(a); v.Counts["restarts"]+v.Counts["gaps"] > 1 {
				t.Errorf("after a reload: %v", v.Counts)
			}
			apply(strings.Replace(text, "kvEventsConfig", "speculativeTTL: 5s, kvEventsConfig", 1))
			if r.mirror() == before {
				t.Error("another producer has the same index")
			}
			r.settle(a) // heard by the new one
			if c.events == dialling {
				r.exact("by a new producer, which asked again", r.complete(p))
			}
			apply(strings.NewReplacer("- {type: token-producer, parameters: {simulated: true}}\n", "").Replace(
				text[:strings.Index(text, "- type: precise")] + text[strings.Index(text, "- {type: prefix"):]))
			r.p.feeds.mu.Lock()
			if n := len(r.p.feeds.all) + len(r.p.feeds.ears); n != 0 {
				t.Errorf("%d feeds of nobody", n)
			}
			r.p.feeds.mu.Unlock()
			if c.events != dialling { // the address is free again
				until(t, "the address to be free", func() bool {
					l, err := net.Listen("tcp", strings.TrimSuffix(strings.TrimPrefix(c.events, `{zmqEndpoint: "tcp://`), `"}`))
					if err == nil {
						l.Close()
					}
					return err == nil
				})
			}
			until(t, "nobody to listen or to dial", func() bool {
				stacks := make([]byte, 4<<20)
				text := string(stacks[:runtime.Stack(stacks, true)])
				return !strings.Contains(text, "kvevents.(*reader)") && !strings.Contains(text, "kvevents.Follow(") && !strings.Contains(text, "kvevents.Serve(")
			})
			r.complete(p)
		})
	}
}

// Two pools whose pickers name one address both hear there, each its own engines.
func TestPoolsShareAnAddress(t *testing.T) {
	t.Parallel()
	central := freeAddress(t)
	text := preciseConfig(listening(central), "")
	a, b := startEngine(t, "a", dials(central)), startEngine(t, "b", dials(central))
	r := rehearse(t, text, a)
	two := preciseOf(t, text)
	other := *two.Pools[0]
	other.Name = "q"
	two.Pools[0].Selector, other.Selector = map[string]string{"app": "p"}, map[string]string{"app": "q"}
	two.Pools = append(two.Pools, &other)
	specs := []fleet.EndpointSpec{a.spec(), b.spec()}
	specs[0].Labels["app"], specs[1].Labels["app"] = "p", "q"
	r.p.store.SetEndpoints("test", specs)
	if err := r.p.apply(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	until(t, "both pools to hear their engines", func() bool {
		r.barrier(a)
		r.barrier(b)
		views := r.p.caches()
		return len(views) == 2 && views[0].Endpoints[0].Evidence == "events" && views[1].Endpoints[0].Evidence == "events"
	})
	for _, v := range r.p.caches() {
		if len(v.Endpoints) != 1 || v.Error != "" {
			t.Errorf("%+v", v)
		}
		for _, s := range v.Strangers {
			if s.Name == a.address || s.Name == b.address {
				t.Logf("%s: %s was unknown at first: %d messages", v.Pool, s.Name, s.Messages)
			}
		}
	}
}
