// SPDX-License-Identifier: Apache-2.0

// Package dns answers: which addresses have the names that endpoints are written with?
//
// A data plane and a subset hint know addresses only, so what gets to the store is an ip:port. Names stand
// before the store and keep asking, since the system's resolver does not tell for how long an answer holds.
package dns

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/fleet"
)

const (
	again        = 5 * time.Second        // between two questions for a name, give or take a fifth
	retry        = time.Second            // after a failure; doubled with each further one
	maxRetry     = 30 * time.Second       // but no more than this
	timeout      = 5 * time.Second        // of one question
	patience     = 2 * time.Second        // how long a change waits for names that are new
	atOnce       = 8                      // questions
	maxAddresses = 256                    // of one name that count
	spacing      = 25 * time.Millisecond  // of questions, however many names there are
	shortest     = 100 * time.Millisecond // between two looks at what is due
)

// Lookup asks for the addresses of a host name.
type Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

// Names passes on to a store what sources tell, with addresses in place of host names.
//
// Each address of a name is an endpoint: the first has the name that was written, others have -1, -2 and
// so on behind it. An address keeps its number for as long as the name has it, so that a change
// of one address is a new incarnation of one endpoint. Of a name with addresses of both
// families only IPv4 counts: two ways to one engine would be counted as two engines. A
// question that fails changes nothing. Where nothing is written by name, nothing is asked.
type Names struct {
	store  *fleet.Store
	lookup Lookup
	log    *slog.Logger
	wake   chan struct{}

	mu      sync.Mutex
	told    map[string][]fleet.EndpointSpec // by source, as written
	hosts   map[string]*host
	numbers map[entry]map[netip.Addr]int
}

// entry is an endpoint as it was written.
type entry struct {
	source string
	fleet.ID
}

// host is a name in use.
type host struct {
	addresses []netip.Addr // in order, none before the first answer
	fails     int          // in a row
	due       time.Time
	busy      bool
}

// New returns Names that ask with lookup, nil for the system's resolver. Nothing is asked again before Run.
func New(store *fleet.Store, lookup Lookup, log *slog.Logger) *Names {
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	return &Names{
		store: store, lookup: lookup, log: log, wake: make(chan struct{}, 1),
		told: map[string][]fleet.EndpointSpec{}, hosts: map[string]*host{}, numbers: map[entry]map[netip.Addr]int{},
	}
}

// Told returns what a source told last, as it told it, nil when it told nothing. It is not to be changed.
func (n *Names) Told(source string) []fleet.EndpointSpec {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told[source]
}

// Learn asks for the names in a change that are new, so that a later Apply of it does not wait. It
// takes two seconds at most; what is not answered by then is an endpoint as soon as it is.
func (n *Names) Learn(ctx context.Context, c fleet.Change) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fresh := map[string]bool{}
	n.mu.Lock()
	for _, list := range c.Endpoints {
		for i := range list {
			if name, _ := nameOf(list[i].Address); name != "" && n.hosts[name] == nil {
				fresh[name] = true
				n.hosts[name] = &host{busy: true}
			}
		}
	}
	n.mu.Unlock()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4*atOnce)
	for name := range fresh {
		wg.Go(func() {
			slots <- struct{}{}
			n.ask(ctx, name)
			<-slots
		})
	}
	wg.Wait()
}

// Apply is [fleet.Store.Apply] for endpoints that may be written by name.
func (n *Names) Apply(ctx context.Context, c fleet.Change) {
	n.Learn(ctx, c)
	n.mu.Lock()
	defer n.mu.Unlock()
	for source, list := range c.Endpoints {
		if list == nil {
			delete(n.told, source)
		} else {
			n.told[source] = slices.Clone(list)
		}
		for i := range list {
			if name, _ := nameOf(list[i].Address); name != "" && n.hosts[name] == nil {
				n.hosts[name] = &host{} // learned and forgotten since
			}
		}
	}
	n.tell(c)
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// tell passes a change on; the lists of the sources that it names are made anew.
func (n *Names) tell(c fleet.Change) {
	out := fleet.Change{Pools: c.Pools, Endpoints: map[string][]fleet.EndpointSpec{}}
	for source := range c.Endpoints {
		out.Endpoints[source] = n.resolved(source)
	}
	n.forget()
	n.store.Apply(out)
}

// forget drops the names and entries that nobody tells any more.
func (n *Names) forget() {
	if len(n.hosts) == 0 {
		return
	}
	used, written := map[string]bool{}, map[entry]bool{}
	for source, list := range n.told {
		for i := range list {
			if name, _ := nameOf(list[i].Address); name != "" {
				used[name], written[entry{source, list[i].ID}] = true, true
			}
		}
	}
	for name, h := range n.hosts {
		if !used[name] && !h.busy {
			delete(n.hosts, name)
		}
	}
	for e := range n.numbers {
		if !written[e] {
			delete(n.numbers, e)
		}
	}
}

// resolved are the endpoints of a source with addresses for names; nil when it was withdrawn.
func (n *Names) resolved(source string) []fleet.EndpointSpec {
	list := n.told[source]
	if list == nil {
		return nil
	}
	out := make([]fleet.EndpointSpec, 0, len(list))
	var written map[fleet.ID]bool
	for _, e := range list {
		name, port := nameOf(e.Address)
		if name == "" {
			out = append(out, e)
			continue
		}
		h := n.hosts[name]
		if h == nil || len(h.addresses) == 0 {
			continue
		}
		if written == nil {
			written = make(map[fleet.ID]bool, len(list))
			for i := range list {
				written[list[i].ID] = true
			}
		}
		key := entry{source, e.ID}
		numbers := number(n.numbers[key], h.addresses, func(k int) bool { return k > 0 && written[numbered(e.ID, k)] })
		n.numbers[key] = numbers
		scrape, scrapePort := nameOf(e.Scrape)
		for _, a := range h.addresses {
			one := e
			one.ID, one.Host, one.Address = numbered(e.ID, numbers[a]), name, net.JoinHostPort(a.String(), port)
			if scrape == name {
				one.Scrape = net.JoinHostPort(a.String(), scrapePort)
			}
			out = append(out, one)
		}
	}
	return out
}

// nameOf splits an address that has a host name; the name is empty for one that has an ip.
func nameOf(address string) (name, port string) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", ""
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", ""
	}
	return strings.ToLower(name), port
}

func numbered(id fleet.ID, k int) fleet.ID {
	if k > 0 {
		id.Name = fmt.Sprintf("%s-%d", id.Name, k)
	}
	return id
}

// number gives each address the number that it had, or the lowest that is free.
func number(had map[netip.Addr]int, addresses []netip.Addr, taken func(int) bool) map[netip.Addr]int {
	out, used := make(map[netip.Addr]int, len(addresses)), map[int]bool{}
	for _, a := range addresses {
		if k, ok := had[a]; ok && !taken(k) {
			out[a], used[k] = k, true
		}
	}
	k := 0
	for _, a := range addresses {
		if _, ok := out[a]; ok {
			continue
		}
		for used[k] || taken(k) {
			k++
		}
		out[a], used[k] = k, true
	}
	return out
}

// Run keeps asking for the names in use until ctx ends.
func (n *Names) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	answered := make(chan struct{}, 1)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(n.start(func(name string) {
			wg.Go(func() {
				n.ask(ctx, name)
				select {
				case answered <- struct{}{}:
				default:
				}
			})
		}))
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		case <-answered:
		case <-timer.C:
		}
	}
}

// start asks for the names that are due and returns the time to the next.
func (n *Names) start(ask func(name string)) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, busy, wait := time.Now(), 0, time.Hour
	var due []string
	for name, h := range n.hosts {
		switch {
		case h.busy:
			busy++
		case !h.due.After(now):
			due = append(due, name)
		default:
			wait = min(wait, h.due.Sub(now))
		}
	}
	slices.SortFunc(due, func(a, b string) int { return cmp.Or(n.hosts[a].due.Compare(n.hosts[b].due), strings.Compare(a, b)) })
	for _, name := range due[:min(len(due), max(0, atOnce-busy))] { // an answer lets the next one in
		n.hosts[name].busy = true
		ask(name)
	}
	return max(wait, shortest)
}

// ask looks a name up that is marked as busy, and passes on what changed.
func (n *Names) ask(ctx context.Context, name string) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	found, err := n.lookup(limited, name)
	cancel()
	if err == nil {
		if found = usable(found); len(found) == 0 {
			err = fmt.Errorf("%s has no address", name)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[name]
	h.busy = false
	if err != nil {
		h.due = time.Now().Add(jitter(min(maxRetry, retry<<min(h.fails, 10))))
		h.fails++
		if h.fails == 1 && ctx.Err() != context.Canceled {
			what := "a host name cannot be looked up: it is no endpoint until it can"
			if len(h.addresses) > 0 {
				what = "a host name cannot be looked up: its last addresses stay"
			}
			n.log.Warn(what, slog.String("host", name), slog.Any("error", err))
		}
		return
	}
	h.due = time.Now().Add(jitter(max(again, time.Duration(len(n.hosts))*spacing)))
	if h.fails > 0 {
		h.fails = 0
		n.log.Info("a host name can be looked up again", slog.String("host", name), slog.Int("addresses", len(found)))
	}
	if slices.Equal(found, h.addresses) {
		return
	}
	known := len(h.addresses) > 0
	h.addresses = found
	c := fleet.Change{Endpoints: map[string][]fleet.EndpointSpec{}}
	for source, list := range n.told {
		if slices.ContainsFunc(list, func(e fleet.EndpointSpec) bool { host, _ := nameOf(e.Address); return host == name }) {
			c.Endpoints[source] = list
		}
	}
	if len(c.Endpoints) == 0 {
		return // Learn: whoever asked will tell
	}
	if known {
		n.log.Info("a host name has other addresses", slog.String("host", name), slog.Any("addresses", found))
	}
	n.tell(c)
}

// usable are the addresses that count, in order.
func usable(found []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range found {
		if a.IsValid() {
			out = append(out, a.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare) // IPv4 first
	out = slices.Compact(out)
	if i := slices.IndexFunc(out, netip.Addr.Is6); i > 0 {
		out = out[:i]
	}
	return out[:min(len(out), maxAddresses)]
}

func jitter(d time.Duration) time.Duration {
	return time.Duration((0.8 + 0.4*rand.Float64()) * float64(d))
}
