// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// LeaseName is the name of the lease of a pool's pickers, ours and llm-d's.
func LeaseName(namespace, pool string) string { return "epp-" + namespace + "-" + pool + ".llm-d.ai" }

// leaderAddress is the annotation of a lease with the address at which its holder says whether it is healthy.
const leaderAddress = "penstock.llm-d.ai/health-address"

// Times of an election. The lease is as long as it is so that a slow API server costs nobody the lead; a leader
// that crashed is noticed by its health port.
const (
	leaseDuration = 15 * time.Second
	leaseRetry    = 2 * time.Second
	leaseAgain    = 100 * time.Millisecond // after somebody was faster
	leaseTimeout  = 10 * time.Second       // of one request
	peerPoll      = 200 * time.Millisecond // how often a standby asks the leader's health
	peerTimeout   = time.Second
	silentAfter   = 3 * time.Second        // how long a leader's health says nothing until it is thought to hang
	silentLease   = 5 * time.Second        // how long the lease of such a leader lasts
	peerHurry     = 5 * time.Second        // how long the lease is looked at again and again, once its holder is leaving
	coldAfter     = 5 * time.Second        // how long one that could not serve lets others go first
	forgotten     = time.Minute            // how long nobody has renewed a lease that was left, by the clock
	forgottenWait = 2 * time.Second        // and how long nobody has answered for it then
	aloneAfter    = 500 * time.Millisecond // how long the API server has, to say who comes after a leader that crashed
)

// Peer is the health service of another picker.
type Peer interface {
	// Ready reports whether requests may be sent there; an error says that it did not answer.
	Ready(ctx context.Context) (bool, error)
	Close() error
}

// ElectionOptions tell who stands for what.
type ElectionOptions struct {
	// Config says where the API server is.
	Config *rest.Config
	// Namespace and Name are the lease.
	Namespace, Name string
	// Host is where we run, such as the name of the pod. With Life, which is another each time that we start, it is our
	// identity; by chance when empty.
	Host, Life string
	// Address is that of our health service, as others reach it; empty when it has none.
	Address string
	// Peer opens the health service of another.
	Peer func(address string) (Peer, error)
	// Warm reports whether we could serve; one that could not lets others go first for a while. Nil for always.
	Warm func() bool
	// Told is called when we begin to lead, and when we end; nil for nobody.
	Told func(leads bool)
	Log  *slog.Logger
}

// Lead is how an election stands.
type Lead struct {
	// Leads tells that we lead; Holder is who holds the lease, empty for nobody.
	Leads   bool
	Holder  string
	Address string
	// Trouble is why the lease cannot be read or written, empty when it can.
	Trouble string
}

// Election decides by a lease which of several pickers of a pool is the one to send requests to. The others stand by.
//
// A standby takes a lease that was given back at once, and so one whose holder crashed: it asks the holder's health
// service all the time, and when that breaks off and nobody listens at its address, nobody holds the lease. Otherwise
// a lease ends when nothing was heard of its holder for its duration, during which the API server answered us: while it does
// not, nobody is deposed. That is sooner when the holder's health service is silent, too: it hangs. A leader that cannot reach the API server goes on until it sees that another leads.
type Election struct {
	opt    ElectionOptions
	leases leases
	dial   func(ctx context.Context, address string) error // whether somebody listens there
	hurry  chan struct{}

	mu      sync.Mutex
	lease   *coordinationv1.Lease // as we last saw it; nil for none
	since   time.Time             // since when it has been the same while the API server answered; zero for not
	leads   bool
	alone   bool   // we lead without the lease: its holder is gone, and the API server does not answer
	gone    string // a holder that is known to be gone
	silent  string // a holder whose health service answered once and no longer does
	healthy time.Time
	vacant  time.Time // since when the lease has been ours to take, while we are cold; zero for not
	settled bool      // somebody leads, or did when we looked
	unheard bool      // we asked for the lease, and did not hear whether we have it
	trouble string
}

// leases is the part of an API server that an election needs.
type leases interface {
	get(ctx context.Context) (*coordinationv1.Lease, error)
	create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// NewElection prepares to stand. Nothing is sent before Run.
func NewElection(o ElectionOptions) (*Election, error) {
	d, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, err
	}
	if o.Life == "" {
		o.Life = strings.ToLower(rand.Text()[:10])
	}
	return newElection(o, serverLeases{d.Resource(coordinationv1.SchemeGroupVersion.WithResource("leases")).Namespace(o.Namespace), o.Name}), nil
}

func newElection(o ElectionOptions, l leases) *Election {
	if o.Warm == nil {
		o.Warm = func() bool { return true }
	}
	if o.Told == nil {
		o.Told = func(bool) {}
	}
	return &Election{opt: o, leases: l, dial: listens, hurry: make(chan struct{}, 1)}
}

// listens dials an address, and hangs up.
func listens(ctx context.Context, address string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (e *Election) identity() string { return e.opt.Host + "_" + e.opt.Life }

// State is how the election stands.
func (e *Election) State() Lead {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Lead{Leads: e.leads || e.alone, Holder: holder(e.lease), Trouble: e.trouble}
	if e.lease != nil {
		s.Address = e.lease.Annotations[leaderAddress]
	}
	return s
}

// Leads reports whether requests should come to us.
func (e *Election) Leads() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leads || e.alone
}

// Ready says why no requests should come to us, or nil.
func (e *Election) Ready() error {
	s := e.State()
	switch {
	case s.Leads:
		return nil
	case s.Trouble != "":
		return errors.New("standing by: " + s.Trouble)
	case s.Holder == "":
		return errors.New("standing by: nobody leads yet")
	}
	return fmt.Errorf("standing by: %s leads", s.Holder)
}

// Settled reports whether we know of a leader, or knew of one: we ourselves, or another that answered or renewed its lease.
func (e *Election) Settled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settled
}

// Run stands until ctx ends, then gives the lease back.
func (e *Election) Run(ctx context.Context) error {
	e.opt.Told(false)
	following := make(chan struct{})
	go func() {
		defer close(following)
		e.follow(ctx)
	}()
	defer func() { <-following }()
	for ctx.Err() == nil {
		started := time.Now()
		wait := leaseRetry
		if !e.turn(ctx) {
			wait = leaseAgain
		}
		t := time.NewTimer(wait - min(time.Since(started), wait/2))
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-e.hurry:
		}
		t.Stop()
	}
	e.release(context.WithoutCancel(ctx))
	return nil
}

// turn renews the lease, takes it, or looks who has it. It reports false when the lease changed meanwhile.
func (e *Election) turn(ctx context.Context) bool {
	e.mu.Lock()
	lease, leads := e.lease, e.leads
	e.mu.Unlock()
	if leads && e.write(ctx, lease) {
		return true
	}
	began := time.Now()
	asked, cancel := context.WithTimeout(ctx, leaseTimeout)
	lease, err := e.leases.get(asked)
	cancel()
	switch {
	case apierrors.IsNotFound(err):
		lease = nil
	case err != nil:
		e.failed(ctx, "get", err)
		return true
	}
	if !e.saw(lease, began) {
		return true
	}
	return e.fit() && e.write(ctx, lease)
}

// fit reports whether we may take a lease that is ours to take: one that is cold waits whether a warm one does.
func (e *Election) fit() bool {
	warm := e.opt.Warm()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.vacant.IsZero() {
		e.vacant = time.Now()
	}
	return warm || holder(e.lease) == e.identity() || time.Since(e.vacant) >= coldAfter
}

// saw notes a lease, nil for none, that was read by a request that began then, and reports whether it is ours to take.
func (e *Election) saw(lease *coordinationv1.Lease, began time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered()
	before := e.lease
	if before == nil || lease == nil || e.since.IsZero() || !sameHold(before, lease) {
		e.since = time.Now()
	}
	e.settled = e.settled || before != nil && lease != nil && holder(lease) != "" && !sameHold(before, lease)
	e.set(lease)
	if lease == nil {
		return true
	}
	limit := time.Duration(deref(lease.Spec.LeaseDurationSeconds)) * time.Second
	who := holder(lease)
	switch {
	case time.Since(e.healthy) < 2*peerTimeout:
		limit *= 2 // it is cut off from the API server, but it serves
	case who == e.silent:
		limit = min(limit, silentLease) // two ways to hear of it, and nothing comes by either
	case lease.Spec.RenewTime != nil && began.Sub(lease.Spec.RenewTime.Time) > limit+forgotten:
		limit = min(limit, forgottenWait) // it was left long ago
	}
	free := who == "" || who == e.identity() || who == e.gone || e.earlier(lease) || began.Sub(e.since) > limit
	if !free {
		e.vacant = time.Time{}
	}
	return free
}

// set is called with the lock held, with the lease as it is.
func (e *Election) set(lease *coordinationv1.Lease) {
	before, led := holder(e.lease), e.leads || e.alone
	e.lease = lease
	who := holder(lease)
	e.leads = who == e.identity()
	e.settled = e.settled || e.leads
	if who != e.gone {
		e.gone, e.alone = "", false
	}
	if e.leads {
		e.vacant = time.Time{}
	}
	if who != before {
		e.healthy, e.silent = time.Time{}, ""
	}
	switch leads := e.leads || e.alone; {
	case leads && !led:
		e.opt.Told(true)
		e.opt.Log.Info("we lead", slog.String("lease", e.opt.Namespace+"/"+e.opt.Name), slog.String("before", before))
	case !leads && led:
		e.opt.Told(false)
		e.opt.Log.Warn("another leads: we stand by", slog.String("lease", e.opt.Namespace+"/"+e.opt.Name), slog.String("leader", who))
	case !leads && who != before:
		e.opt.Log.Info("standing by", slog.String("lease", e.opt.Namespace+"/"+e.opt.Name), slog.String("leader", who))
	}
}

// earlier reports whether a lease is held by an earlier life of ours: of the same host, at the same address.
func (e *Election) earlier(lease *coordinationv1.Lease) bool {
	return e.opt.Address != "" && lease.Annotations[leaderAddress] == e.opt.Address && strings.HasPrefix(holder(lease), e.opt.Host+"_")
}

// claim is the lease as we want it.
func (e *Election) claim(from *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.opt.Namespace, Name: e.opt.Name}}
	if from != nil {
		l = from.DeepCopy()
	}
	at := metav1.NewMicroTime(now)
	if before := holder(from); before != e.identity() {
		l.Spec.AcquireTime = &at
		if from != nil {
			l.Spec.LeaseTransitions = ref(deref(l.Spec.LeaseTransitions) + 1)
		}
	}
	l.Spec.HolderIdentity, l.Spec.RenewTime = ref(e.identity()), &at
	l.Spec.LeaseDurationSeconds = ref(int32(leaseDuration / time.Second))
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	if l.Annotations[leaderAddress] = e.opt.Address; e.opt.Address == "" {
		delete(l.Annotations, leaderAddress)
	}
	return l
}

// write takes or renews the lease, unless it changed since it was read as from (nil when there was none); then it
// reports false.
func (e *Election) write(ctx context.Context, from *coordinationv1.Lease) bool {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	verb, do := "update", e.leases.update
	if from == nil {
		verb, do = "create", e.leases.create
	}
	written, err := do(ctx, e.claim(from, time.Now()))
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return false
	case err != nil:
		e.mu.Lock()
		e.unheard = true
		e.mu.Unlock()
		e.failed(ctx, verb, err)
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered()
	e.since = time.Now()
	e.set(written)
	return true
}

// failed notes that the API server did not do what it was asked. What it last said stays.
func (e *Election) failed(ctx context.Context, verb string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	trouble := fmt.Sprintf("cannot %s the lease %s/%s: %v", verb, e.opt.Namespace, e.opt.Name, err)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		trouble = fmt.Sprintf("may not %s leases.coordination.k8s.io in namespace %s: grant get, create and update", verb, e.opt.Namespace)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.since = time.Time{}
	if e.trouble == "" {
		e.opt.Log.Warn(trouble, slog.Bool("leads", e.leads || e.alone))
	}
	e.trouble = trouble
}

// answered is called with the lock held when the API server did as it was asked.
func (e *Election) answered() {
	if e.trouble != "" {
		e.opt.Log.Info("the lease can be read and written again", slog.String("lease", e.opt.Namespace+"/"+e.opt.Name))
	}
	e.trouble, e.unheard = "", false
}

// release gives the lease back, so that a standby takes it at once.
func (e *Election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout/2)
	defer cancel()
	e.mu.Lock()
	lease, leads, unheard := e.lease, e.leads, e.unheard
	e.leads, e.alone = false, false
	e.mu.Unlock()
	e.opt.Told(false)
	if !leads && !unheard {
		return
	}
	err := e.give(ctx, lease, unheard)
	if apierrors.IsConflict(err) {
		err = e.give(ctx, nil, true)
	}
	if err != nil {
		e.opt.Log.Warn("the lease could not be given back: a standby notices that we are gone", slog.Any("error", err))
	}
}

// give gives a lease back, as it was seen, or as it is now: a renewal of ours, or a taking, may have been cut off when it was done.
func (e *Election) give(ctx context.Context, lease *coordinationv1.Lease, look bool) error {
	if look {
		var err error
		if lease, err = e.leases.get(ctx); err != nil || holder(lease) != e.identity() {
			return err
		}
	}
	l := lease.DeepCopy()
	now := metav1.NowMicro()
	l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime = ref(""), &now, &now
	l.Spec.LeaseDurationSeconds = ref(int32(1))
	delete(l.Annotations, leaderAddress)
	_, err := e.leases.update(ctx, l)
	return err
}

// follow asks the leader's health service whenever we stand by.
func (e *Election) follow(ctx context.Context) {
	var peer Peer
	var of Lead          // whose it is
	var reached bool     // it answered once
	var leaving struct { // it says that it is not ready
		is    bool
		since time.Time
	}
	var lost time.Time  // since when nobody has listened there
	var heard time.Time // when it last answered
	hangUp := func() {
		if peer != nil {
			_ = peer.Close()
		}
		peer, reached, leaving.is, lost = nil, false, false, time.Time{}
	}
	defer hangUp()
	tick := time.NewTicker(peerPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := e.State()
		if now.Holder != of.Holder || now.Address != of.Address {
			hangUp()
			of = now
		}
		if now.Holder == "" || now.Holder == e.identity() || now.Address == "" {
			continue
		}
		if peer == nil {
			var err error
			if peer, err = e.opt.Peer(now.Address); err != nil {
				continue
			}
		}
		asked, cancel := context.WithTimeout(ctx, peerTimeout)
		ready, err := peer.Ready(asked)
		if err != nil && reached && lost.IsZero() && refused(e.dial(asked, now.Address)) {
			lost = time.Now()
			e.lose(of.Holder)
		}
		cancel()
		switch {
		case err == nil:
			reached, lost, heard = true, time.Time{}, time.Now()
			e.answers(of.Holder, ready)
			if ready {
				leaving.is = false
			} else if !leaving.is {
				leaving.is, leaving.since = true, time.Now()
			}
			if leaving.is && time.Since(leaving.since) < peerHurry {
				signal(e.hurry)
			}
		case !lost.IsZero():
			if time.Since(lost) < peerHurry {
				signal(e.hurry)
			}
			if time.Since(lost) >= aloneAfter {
				e.leadAlone(of.Holder)
			}
		case reached && time.Since(heard) >= silentAfter:
			e.hangs(of.Holder)
		}
	}
}

// refused reports whether an error of dialling says that nobody listens there.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// answers notes that a holder's health service answered.
func (e *Election) answers(who string, ready bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if holder(e.lease) != who {
		return
	}
	e.silent = ""
	if !ready { // one that is gone may have begun anew, and not lead yet
		return
	}
	e.gone, e.healthy, e.settled = "", time.Now(), true
	if e.alone {
		e.alone = false
		e.opt.Told(false)
		e.opt.Log.Info("the leader is back: we stand by", slog.String("leader", who))
	}
}

// lose notes that a holder is gone.
func (e *Election) lose(who string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if holder(e.lease) == who && who != e.identity() {
		e.gone, e.healthy = who, time.Time{}
		e.opt.Log.Info("the leader is gone: its health port was closed", slog.String("leader", who), slog.String("address", e.lease.Annotations[leaderAddress]))
		signal(e.hurry)
	}
}

// hangs notes that a holder's health service says nothing any more, though nobody refuses: it hangs, or its node is lost. The
// lease is then looked at more often.
func (e *Election) hangs(who string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if holder(e.lease) != who || who == e.identity() {
		return
	}
	if e.silent != who {
		e.opt.Log.Info("the leader's health service does not answer", slog.String("leader", who), slog.String("address", e.lease.Annotations[leaderAddress]))
	}
	e.silent = who
	signal(e.hurry)
}

// leadAlone has us lead while the API server cannot say who does. Several may, for a while; what a picker knows is
// no more than an opinion, so that two do no harm, and none would.
func (e *Election) leadAlone(who string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone == who && holder(e.lease) == who && !e.leads && !e.alone {
		e.alone = true
		e.opt.Told(true)
		e.opt.Log.Warn("the leader is gone, and the API server does not say who leads: we do until it says", slog.String("leader", who))
	}
}

func holder(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return deref(l.Spec.HolderIdentity)
}

// sameHold reports whether nothing was heard of the holder between two states of a lease.
func sameHold(a, b *coordinationv1.Lease) bool {
	return holder(a) == holder(b) && a.Spec.RenewTime.Equal(b.Spec.RenewTime) && a.Spec.AcquireTime.Equal(b.Spec.AcquireTime)
}

func ref[T any](v T) *T { return &v }

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// serverLeases is one lease of an API server.
type serverLeases struct {
	client dynamic.ResourceInterface
	name   string
}

func (s serverLeases) get(ctx context.Context) (*coordinationv1.Lease, error) {
	return asLease(s.client.Get(ctx, s.name, metav1.GetOptions{}))
}

func (s serverLeases) create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	u, err := fromLease(l)
	if err != nil {
		return nil, err
	}
	return asLease(s.client.Create(ctx, u, metav1.CreateOptions{FieldManager: fieldManager}))
}

func (s serverLeases) update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	u, err := fromLease(l)
	if err != nil {
		return nil, err
	}
	return asLease(s.client.Update(ctx, u, metav1.UpdateOptions{FieldManager: fieldManager}))
}

func fromLease(l *coordinationv1.Lease) (*unstructured.Unstructured, error) {
	l.APIVersion, l.Kind = coordinationv1.SchemeGroupVersion.String(), "Lease"
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(l)
	return &unstructured.Unstructured{Object: m}, err
}

func asLease(u *unstructured.Unstructured, err error) (*coordinationv1.Lease, error) {
	if err != nil {
		return nil, err
	}
	l := &coordinationv1.Lease{}
	return l, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, l)
}

// Reachable is the address at which others reach a listener of ours: at ip, or where none is given at the address from
// which we reach the API server. It is empty when that cannot be known.
func Reachable(c *rest.Config, ip string, listener net.Addr) string {
	_, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return ""
	}
	if ip != "" {
		return net.JoinHostPort(ip, port)
	}
	server, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return ""
	}
	toward := server.Port()
	if toward == "" {
		toward = "443"
	}
	conn, err := net.Dial("udp", net.JoinHostPort(server.Hostname(), toward)) // sends nothing
	if err != nil {
		return ""
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return ""
	}
	return net.JoinHostPort(host, port)
}
