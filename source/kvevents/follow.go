// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/penstock-project/penstock/fleet"
)

// Follow subscribes to the engines of all endpoints, following the store's membership, until ctx ends; it leaves no goroutine
// behind. An endpoint's rank is its place, by port, among those of the same pod and address: rank 2 publishes
// on Options.Port+2. The sink is not told when an endpoint goes: [fleet.Store.OnGone] is, and nothing is
// told of its source once that has been noticed here.
func Follow(ctx context.Context, store *fleet.Store, opt Options, sink Sink) error {
	opt.defaults()
	f := &follower{ctx: ctx, opt: &opt, sink: sink, replays: make(chan struct{}, opt.Replays), each: map[*fleet.Load]*follow{}}
	f.room.left.Store(int64(opt.All))
	defer f.wg.Wait()
	for {
		changed := store.Changed()
		f.sync(store.Load())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

type follower struct {
	ctx     context.Context
	opt     *Options
	sink    Sink
	replays chan struct{}
	room    room
	each    map[*fleet.Load]*follow
	wg      sync.WaitGroup
}

type follow struct {
	rank   int
	cancel context.CancelFunc
}

func (f *follower) sync(snap *fleet.Snapshot) {
	alive := map[*fleet.Load]int{}
	pools := snap.Pools
	if f.opt.Pool != (fleet.ID{}) {
		pools = slices.DeleteFunc(slices.Clone(pools), func(p *fleet.Pool) bool { return p.ID != f.opt.Pool })
	}
	for _, p := range pools {
		ranks := ranksOf(p.Endpoints)
		for i, ep := range p.Endpoints {
			if _, ok := alive[ep.Load]; ok || !ep.AddrPort.IsValid() {
				continue
			}
			alive[ep.Load] = ranks[i]
		}
	}
	for load, one := range f.each {
		if rank, ok := alive[load]; !ok || rank != one.rank {
			one.cancel()
			delete(f.each, load)
		}
	}
	for _, p := range pools {
		for _, ep := range p.Endpoints {
			if rank, ok := alive[ep.Load]; ok && f.each[ep.Load] == nil {
				f.begin(ep, rank)
			}
		}
	}
}

func (f *follower) begin(ep *fleet.Endpoint, rank int) {
	ctx, cancel := context.WithCancel(f.ctx)
	f.each[ep.Load] = &follow{rank: rank, cancel: cancel}
	r := &reader{ctx: ctx, opt: f.opt, sink: f.sink, queue: newQueue(f.opt.Buffer, &f.room), replays: f.replays,
		only: &Source{Load: ep.Load, Name: ep.Address, Rank: rank}}
	if f.opt.Begun != nil {
		f.opt.Begun(r.only)
	}
	host := ep.AddrPort.Addr().String()
	at := func(port int, label string) string {
		if own, err := strconv.ParseUint(ep.Labels[label], 10, 16); label != "" && err == nil && own > 0 {
			return net.JoinHostPort(host, strconv.FormatUint(own, 10))
		}
		if port == 0 {
			return ""
		}
		return net.JoinHostPort(host, strconv.Itoa(port+rank))
	}
	r.replay = at(f.opt.ReplayPort, f.opt.ReplayPortLabel)
	f.wg.Go(r.tell)
	f.wg.Go(func() { r.keepDialling(at(f.opt.Port, f.opt.PortLabel)) })
}

// ranksOf tells the rank of each endpoint of a pool.
func ranksOf(list []*fleet.Endpoint) []int {
	type pod struct {
		namespace, name string
		addr            netip.Addr
	}
	pods := map[pod][]int{}
	for i, ep := range list {
		if ep.Pod != "" {
			k := pod{ep.Namespace, ep.Pod, ep.AddrPort.Addr()}
			pods[k] = append(pods[k], i)
		}
	}
	ranks := make([]int, len(list))
	for _, of := range pods {
		slices.SortFunc(of, func(a, b int) int { return cmp.Compare(list[a].AddrPort.Port(), list[b].AddrPort.Port()) })
		for rank, i := range of {
			ranks[i] = rank
		}
	}
	return ranks
}
