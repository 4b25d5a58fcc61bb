// SPDX-License-Identifier: Apache-2.0

// Package kube answers: what does the API server say?
//
// Pods become endpoints of the pools that select them, and go to the store at once. Everything else (pools,
// objectives, rewrites, configurations in ConfigMaps) is handed on as documents, to be read as strictly as files are.
// What was known stays in force while the API server cannot be asked. Kinds that are optional may come and go, and a
// permission that is missing costs only what needs it.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/penstock-project/penstock/fleet"
)

// Options tell what to follow, and whom to tell.
type Options struct {
	// Config says where the API server is; see [Connect].
	Config *rest.Config
	// Pool is the one that is served; its namespace is the only one that is looked at. Empty for all pools of Namespaces,
	// of all namespaces when these are empty, too.
	Pool       fleet.ID
	Namespaces []string
	// Group is that of InferencePool; empty for inference.networking.k8s.io or, where the API server does not have that, the
	// group before it.
	Group string
	// Selector and Ports are a pool that no InferencePool describes; Selector is nil when one does.
	Selector labels.Selector
	Ports    []int
	// ConfigMap holds the configuration for all pools; zero for none.
	ConfigMap MapRef
	// PickerMaps reads for each pool the ConfigMap that has the name of its endpointPickerRef, where there is one.
	PickerMaps bool
	// Endpoints takes what a source tells; see [fleet.Store.SetEndpoints].
	Endpoints func(source string, list []fleet.EndpointSpec)
	// Objects takes all objects that count, sorted by kind, namespace and name, whenever some of them changed. It
	// returns what became of them.
	Objects func(ctx context.Context, list []*Object) []Verdict
	// Speaks reports whether we write into the status of objects what became of them; nil for always.
	Speaks  func() bool
	Metrics Metrics
	Log     *slog.Logger

	compareEvery, compareAgain, seekEvery, betterEvery time.Duration
}

// Verdict is what a configuration made of an object.
type Verdict struct {
	*Object
	// Pools are those for which it counts, by name; all are in its namespace.
	Pools []string
	// Superseded tells that it is of a group that is not read, since there is a newer one.
	Superseded bool
	// Errors are why it does not count at all, Warnings what else its author should know.
	Errors, Warnings []string
}

// Metrics count what happens between us and the API server. Methods may be called from any goroutine.
type Metrics interface {
	// Failed counts a request that failed: the resource, the verb and a short reason, such as Forbidden.
	Failed(resource, verb, reason string)
	// Differs tells by how many objects of a namespace our list differs from the API server's.
	Differs(resource, namespace string, n int)
	// Forget tells that a namespace is not followed any more.
	Forget(namespace string)
}

// Silent are [Metrics] for nobody.
type Silent struct{}

// Failed does nothing.
func (Silent) Failed(string, string, string) {}

// Differs does nothing.
func (Silent) Differs(string, string, int) {}

// Forget does nothing.
func (Silent) Forget(string) {}

// How long changes wait for company after the last ones were told.
const (
	podsSpacing    = 20 * time.Millisecond
	objectsSpacing = 100 * time.Millisecond
	optionalWait   = 2 * time.Second // how long the first configuration waits for kinds that are optional
)

// Cluster is what we follow of one API server.
type Cluster struct {
	opt     Options
	clients *clients
	pools   []*objects // by namespace, or one for all; none with a selector
	others  []*objects
	reports *reports
	nodes   *nodes

	wake struct{ pods, objects, older chan struct{} }

	mu      sync.Mutex
	watched map[string]*watched // namespaces whose pods are followed
	maps    map[fleet.ID]*configMap
	dirty   map[string]bool // namespaces whose endpoints changed
	told    bool            // the first configuration is in force
	known   bool            // all that there is was known once
	old     []Verdict       // of objects that are superseded
}

// watched is a namespace with pools.
type watched struct {
	*pods
	feed *feed
	stop context.CancelFunc
	told bool // its endpoints were told once
}

// klogged has client-go log where the first Cluster does: its logger is the process's, and may be set once.
var klogged sync.Once

// New prepares to follow an API server. Nothing is sent before Run.
func New(opt Options) (*Cluster, error) {
	if opt.Metrics == nil {
		opt.Metrics = Silent{}
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	opt.compareEvery, opt.compareAgain = cmp.Or(opt.compareEvery, compareEvery), cmp.Or(opt.compareAgain, compareAgain)
	opt.seekEvery, opt.betterEvery = cmp.Or(opt.seekEvery, reportLegacy), cmp.Or(opt.betterEvery, otherPoll)
	if opt.Group != "" && opt.Group != poolGroup && opt.Group != legacyGroup {
		return nil, fmt.Errorf("group %q has no InferencePool: want %s or %s", opt.Group, poolGroup, legacyGroup)
	}
	c := &Cluster{opt: opt, watched: map[string]*watched{}, maps: map[fleet.ID]*configMap{}, dirty: map[string]bool{}}
	c.nodes = newNodes(c.poolsChanged)
	c.wake.pods, c.wake.objects, c.wake.older = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	klogged.Do(func() { klog.SetSlogLogger(opt.Log.With(slog.String("from", "client-go"))) })
	var err error
	if c.clients, err = newClients(opt.Config); err != nil {
		return nil, err
	}
	c.reports = newReports(newNotary(c.clients.dynamic, opt.Pool.Name), opt.Speaks, opt.Log)
	if opt.Selector != nil {
		return c, nil
	}
	for _, namespace := range c.scopes() {
		c.pools = append(c.pools, newObjects(c, poolKind(opt.Group), namespace))
		for _, k := range optionalKinds() {
			c.others = append(c.others, newObjects(c, k, namespace))
		}
	}
	return c, nil
}

// scopes are the namespaces that are looked at; one that is empty for all.
func (c *Cluster) scopes() []string {
	switch {
	case c.opt.Pool != (fleet.ID{}):
		return []string{c.opt.Pool.Namespace}
	case len(c.opt.Namespaces) > 0:
		return slices.Compact(slices.Sorted(slices.Values(c.opt.Namespaces)))
	}
	return []string{""}
}

func (c *Cluster) single() bool { return c.opt.Pool != (fleet.ID{}) }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// wakePods has the endpoints of a namespace told again.
func (c *Cluster) wakePods(namespace string) {
	c.mu.Lock()
	c.dirty[namespace] = true
	c.mu.Unlock()
	signal(c.wake.pods)
}

// poolsChanged has all endpoints told again.
func (c *Cluster) poolsChanged() {
	c.mu.Lock()
	for namespace := range c.watched {
		c.dirty[namespace] = true
	}
	c.mu.Unlock()
	signal(c.wake.pods)
}

// Reconsider has the objects told again, since what becomes of them may have changed.
func (c *Cluster) Reconsider() { c.wakeObjects() }

func (c *Cluster) wakeObjects() { signal(c.wake.objects) }

// Run follows the API server until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, o := range slices.Concat(c.pools, c.others) {
		g.Go(func() error { o.run(ctx); return nil })
	}
	if c.single() {
		c.watch(ctx, g, []string{c.opt.Pool.Namespace})
	}
	g.Go(func() error { c.tellPods(ctx, g); return nil })
	g.Go(func() error { c.tellObjects(ctx, g); return nil })
	g.Go(func() error { c.reports.run(ctx); return nil })
	g.Go(func() error { c.nodes.follow(ctx, c); return nil })
	g.Go(func() error { c.seekSuperseded(ctx); return nil })
	c.wakeObjects()
	return g.Wait()
}

// watch follows the pods of exactly these namespaces.
func (c *Cluster) watch(ctx context.Context, g *errgroup.Group, namespaces []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, namespace := range namespaces {
		if c.watched[namespace] != nil {
			continue
		}
		p := newPods(namespace, func() { c.wakePods(namespace) })
		p.warn = func(pod, problem string) {
			c.opt.Log.Warn("an annotation of a pod is not as it should be", slog.String("namespace", namespace), slog.String("pod", pod), slog.String("problem", problem))
		}
		f := podFeed(c, p)
		ctx, stop := context.WithCancel(ctx)
		c.watched[namespace] = &watched{pods: p, feed: f, stop: stop}
		g.Go(func() error { return f.run(ctx) })
		g.Go(func() error { p.compare(ctx, c, f); return nil })
	}
	for namespace, w := range c.watched {
		if !slices.Contains(namespaces, namespace) {
			w.stop()
			delete(c.watched, namespace)
			c.opt.Endpoints(Source(namespace), nil)
		}
	}
}

// Source is the name under which the endpoints of a namespace are told.
func Source(namespace string) string { return "kube " + namespace }

// tellPods tells the endpoints of namespaces in which something changed.
func (c *Cluster) tellPods(ctx context.Context, g *errgroup.Group) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake.pods:
		}
		pools, known := c.poolsByNamespace()
		if !known {
			continue // the pools' first list wakes us again
		}
		if !c.single() {
			var namespaces []string
			for namespace := range pools {
				namespaces = append(namespaces, namespace)
			}
			c.watch(ctx, g, namespaces)
		}
		c.mu.Lock()
		var changed []*watched
		for namespace := range c.dirty {
			if w := c.watched[namespace]; w != nil {
				changed = append(changed, w)
			}
		}
		clear(c.dirty)
		c.mu.Unlock()
		for _, w := range changed {
			if synced, _ := w.feed.state(); !synced {
				continue // its first list wakes us again
			}
			c.opt.Endpoints(Source(w.namespace), w.endpoints(pools[w.namespace], c.nodes.placed))
			c.mu.Lock()
			w.told = true
			c.mu.Unlock()
		}
		sleep(ctx, podsSpacing)
	}
}

// poolsByNamespace are the pools that are served; known tells that they were listed.
func (c *Cluster) poolsByNamespace() (pools map[string][]pool, known bool) {
	if c.opt.Selector != nil {
		return map[string][]pool{c.opt.Pool.Namespace: {{name: c.opt.Pool.Name, selector: c.opt.Selector, ports: c.opt.Ports}}}, true
	}
	pools, known = map[string][]pool{}, true
	for _, s := range c.pools {
		if settled, _ := s.state(); !settled {
			if c.single() {
				return nil, false
			}
			continue // of several namespaces those that are known count
		}
		for _, o := range s.list() {
			if c.single() && o.Name != c.opt.Pool.Name {
				continue
			}
			p, err := poolOf(o)
			if err != nil {
				continue // the configuration says what is wrong with it
			}
			pools[o.Namespace] = append(pools[o.Namespace], p)
		}
	}
	return pools, known
}

// tellObjects hands on the objects whenever some of them changed.
func (c *Cluster) tellObjects(ctx context.Context, g *errgroup.Group) {
	var since time.Time // the pools are known
	lacks := false      // the pool is not there
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake.objects:
		}
		list, known := c.count(ctx, g)
		if !known {
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		if left := optionalWait - time.Since(since); left > 0 && !c.settled() {
			time.AfterFunc(min(left, optionalWait), c.wakeObjects)
			continue
		}
		c.report(c.opt.Objects(ctx, list))
		// Without its pool a picker waits, and nothing else in the log would say for what.
		if gone := c.lacking(); gone != lacks {
			if lacks = gone; gone {
				c.opt.Log.Warn("there is no such InferencePool: the picker is not ready until it comes", slog.String("pool", c.opt.Pool.String()))
			} else {
				c.opt.Log.Info("the InferencePool is there", slog.String("pool", c.opt.Pool.String()))
			}
		}
		c.mu.Lock()
		first := !c.told
		c.told = true
		c.mu.Unlock()
		if first {
			c.opt.Log.Info("the API server's objects are known", slog.Int("objects", len(list)))
		}
		sleep(ctx, objectsSpacing)
	}
}

// lacking reports whether the API server has the kind of the one pool, and not the pool.
func (c *Cluster) lacking() bool {
	return c.single() && slices.ContainsFunc(c.pools, func(s *objects) bool { return !s.feedless() && s.get(c.opt.Pool) == nil })
}

// settled reports whether it is known of all kinds what there is of them.
func (c *Cluster) settled() bool {
	for _, s := range c.others {
		settled, why := s.state()
		if !settled && !denies(why) {
			return false
		}
	}
	return true
}

// count are the objects that count; known tells that the pools are among them.
func (c *Cluster) count(ctx context.Context, g *errgroup.Group) (list []*Object, known bool) {
	var pools []*Object
	for _, s := range c.pools {
		settled, _ := s.state()
		if !settled && c.single() {
			return nil, false
		}
		pools = append(pools, s.list()...)
	}
	var rest []*Object
	for _, s := range c.others {
		rest = append(rest, s.list()...)
	}
	rest = slices.DeleteFunc(rest, func(o *Object) bool { return !c.poolsKnown(o.Namespace) })
	if c.single() {
		rest = slices.DeleteFunc(rest, func(o *Object) bool { return !c.ours(o, pools) })
		pools = slices.DeleteFunc(pools, func(o *Object) bool { return o.Name != c.opt.Pool.Name })
	}
	texts, known := c.texts(ctx, g, pools)
	return sorted(slices.Concat(pools, rest, texts)), known
}

// poolsKnown reports whether it is known which pools a namespace has: until then nobody can say that an object of it
// names one that is not there.
func (c *Cluster) poolsKnown(namespace string) bool {
	return !slices.ContainsFunc(c.pools, func(s *objects) bool {
		settled, _ := s.state()
		return !settled && (s.namespace == "" || s.namespace == namespace)
	})
}

// ours reports whether a picker of one pool has something to say of an object: it is for that pool, or for none that
// there is.
func (c *Cluster) ours(o *Object, pools []*Object) bool {
	other := false
	for _, p := range pools {
		if o.concerns(p) {
			if p.Name == c.opt.Pool.Name {
				return true
			}
			other = true
		}
	}
	return !other
}

// Ready says what is not known yet, or nil: the pools, their pods and the configuration. Once it is known what there
// is, only a pool that is gone makes a picker for one pool unready again.
func (c *Cluster) Ready() error {
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	if !known {
		if err := c.unknown(); err != nil {
			return err
		}
	}
	for _, s := range c.pools {
		if _, why := s.state(); c.single() && s.get(c.opt.Pool) == nil {
			return errors.New(cmp.Or(why, fmt.Sprintf("there is no InferencePool %s", c.opt.Pool)))
		}
	}
	return nil
}

// unknown says what was not known yet, or nil.
func (c *Cluster) unknown() error {
	var pools, pods places
	for _, s := range c.pools {
		settled, why := s.state()
		pools.add(settled, cmp.Or(why, fmt.Sprintf("the pools of %s are not known yet", place(s.namespace, "the cluster"))))
	}
	of, _ := c.poolsByNamespace()
	if c.single() { // whose pods are followed before there is a pool
		of = map[string][]pool{c.opt.Pool.Namespace: nil}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace := range of {
		told, why := false, "" // nobody has begun to ask for them
		if w := c.watched[namespace]; w != nil {
			told = w.told
			_, why = w.feed.state()
		}
		pods.add(told, cmp.Or(why, fmt.Sprintf("the pods of namespace %s are not known yet", namespace)))
	}
	why := pools.missing()
	switch {
	case why != "":
	case !c.told:
		why = "the API server's objects are not in force yet"
	default:
		why = pods.missing()
	}
	if why != "" {
		return errors.New(why)
	}
	c.known = true
	return nil
}

// places are the namespaces of which something should be known. Those that may not be read are no hindrance to others.
type places struct {
	known        bool // some are
	denied, open string
}

func (p *places) add(known bool, why string) {
	switch {
	case known:
		p.known = true
	case denies(why):
		p.denied = why
	default:
		p.open = why
	}
}

// missing says why too little is known, empty for enough.
func (p *places) missing() string {
	if p.open == "" && !p.known {
		return p.denied
	}
	return p.open
}

// denies reports whether what is wrong is that we may not.
func denies(why string) bool { return strings.HasPrefix(why, "may not ") }

// get is an object, or nil.
func (s *objects) get(id fleet.ID) *Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id.Namespace+"/"+id.Name]
}

// feedless reports whether the API server lacks the kind.
func (s *objects) feedless() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed == nil
}
