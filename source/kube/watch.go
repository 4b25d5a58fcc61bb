// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// How long we wait before an API server is asked again that did not answer, and how often one is asked for
// kinds that it does not have.
const (
	firstRetry  = 200 * time.Millisecond
	lastRetry   = 5 * time.Second
	steady      = time.Second     // a watch that held for so long had nothing wrong: after it breaks, what is missed is soon asked for
	quietRetry  = 5 * time.Minute // of what is optional
	absentPoll  = 2 * time.Second
	absentAfter = 5 * time.Second  // an API server that is starting does not know its definitions: what was known is gone later
	otherPoll   = 30 * time.Second // for a better version than the one in use
)

// feed follows one resource in one namespace: it lists, then watches, and lists again when a watch cannot go on.
// What it knows stays when the server cannot be asked.
type feed struct {
	c         *Cluster
	resource  string // as permissions name it, such as pods or inferenceobjectives.llm-d.ai
	namespace string // empty for all
	cluster   bool   // it is not of a namespace
	quiet     bool   // what we may not is told once, in passing, and asked again seldom
	custom    bool   // of a CustomResourceDefinition, with which the resource goes
	example   runtime.Object
	empty     func() runtime.Object // a list
	list      func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch     func(context.Context, metav1.ListOptions) (watch.Interface, error)
	store     cache.ReflectorStore
	filled    func() // called once a list counts as known; nil for nobody

	mu      sync.Mutex
	synced  bool               // listed once
	lists   int                // how often it was listed
	current bool               // the last list is the one that is watched from
	trouble map[string]trouble // by verb, what is wrong now
	last    string             // the last trouble, wrong still or not
	since   time.Time          // it was synced, or is in trouble
	again   context.CancelFunc // ends the watch, so that a list is next
}

// trouble is what keeps a feed from going on.
type trouble struct {
	text    string
	refused bool
}

// where names the place of a feed in a sentence.
func (f *feed) where() string {
	if f.cluster {
		return "the cluster"
	}
	return place(f.namespace, "all namespaces")
}

// place names a namespace in a sentence, or where there is none, all.
func place(namespace, all string) string {
	if namespace == "" {
		return all
	}
	return "namespace " + namespace
}

// state reports whether the first list came, and what is wrong now.
func (f *feed) state() (synced bool, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, t := f.worst()
	return f.synced, t.text
}

// listed is the number of the list that the watch goes on from; 0 while nothing is watched: there is trouble, or a list is next.
func (f *feed) listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, t := f.worst(); t.text != "" || !f.current {
		return 0
	}
	return f.lists
}

// worst is what is wrong now, and with which verb.
func (f *feed) worst() (verb string, t trouble) {
	for _, verb := range []string{"list", "watch"} {
		if t := f.trouble[verb]; t.text != "" {
			return verb, t
		}
	}
	return "", trouble{}
}

// refused reports whether we may not go on.
func (f *feed) refused() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, t := f.worst()
	return t.refused
}

// said notes how the API server answered, and tells when that is another answer than before.
func (f *feed) said(verb string, err error) {
	f.mu.Lock()
	before := f.trouble[verb]
	_, worst := f.worst()
	now := trouble{}
	switch {
	case err == nil:
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		now = trouble{fmt.Sprintf("may not %s %s in %s", verb, f.resource, f.where()), true}
	default:
		now = trouble{text: fmt.Sprintf("cannot %s %s in %s: %v", verb, f.resource, f.where(), err)}
	}
	f.set(verb, now)
	f.mu.Unlock()
	log := f.c.opt.Log
	switch {
	case f.quiet && now.refused:
		if !worst.refused {
			log.Info("the API server does not let us " + verb + " " + f.resource + ": endpoints have the labels that their pods have")
		}
	case err != nil:
		f.c.opt.Metrics.Failed(f.resource, verb, reason(err))
		if before != now {
			attrs := []any{slog.String("verb", verb), slog.String("resource", f.resource), slog.String("namespace", f.namespace), slog.Any("error", err)}
			if apierrors.IsForbidden(err) {
				log.Warn("the API server does not let us "+verb+" "+f.resource+": what needs them is off until it does, and what was known stays", attrs...)
			} else {
				log.Warn("the API server cannot be asked; what was known stays", attrs...)
			}
		}
	case before != trouble{}:
		log.Info("the API server answers again", slog.String("verb", verb), slog.String("resource", f.resource), slog.String("namespace", f.namespace))
	}
	if before != now {
		f.c.wakeObjects()
	}
}

// set notes what is wrong with a verb, nothing when t is empty; f.mu is held.
func (f *feed) set(verb string, t trouble) {
	_, was := f.worst()
	if f.trouble == nil {
		f.trouble = map[string]trouble{}
	}
	if f.trouble[verb] = t; t.text != "" {
		f.last = t.text
	}
	if _, is := f.worst(); (is.text == "") != (was.text == "") || is.refused != was.refused {
		f.since = time.Now()
	}
}

// reason is a short name for an error, for a metric.
func reason(err error) string {
	if r := apierrors.ReasonForError(err); r != metav1.StatusReasonUnknown {
		return string(r)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "Timeout"
	}
	return "Unreachable"
}

// gone reports whether an error says that the API server has no such resource any more. Of what is built in nobody but a stranger
// says so, such as a load balancer before an API server that is away.
func (f *feed) gone(err error) bool {
	var status apierrors.APIStatus
	return f.custom && errors.As(err, &status) && status.Status().Code == http.StatusNotFound
}

// run follows the resource until ctx ends, or the server has no such resource any more, which is an error.
func (f *feed) run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.Discard()) // we say ourselves what there is to say
	checked := func(verb string, err error) {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !f.gone(err) {
			f.said(verb, err)
		}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := f.list(ctx, o)
			checked("list", err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := f.watch(ctx, o)
			if o.SendInitialEvents == nil || err == nil || apierrors.IsForbidden(err) { // otherwise a list is tried next
				checked("watch", err)
			}
			if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !f.gone(err) {
				err = opaque{err} // or the reflector would wait by itself, whether ctx ends or not
			}
			return w, err
		},
	}
	discard := logr.Discard()
	reflector := cache.NewReflectorWithOptions(lw, f.example, synced{f}, cache.ReflectorOptions{
		Name: f.resource, Logger: &discard,
		Backoff: &wait.Backoff{Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: 0.5, Steps: 10},
	})
	for pause := firstRetry; ; {
		started := time.Now()
		round, end := context.WithCancel(ctx)
		f.mu.Lock()
		f.again = end
		f.mu.Unlock()
		err := reflector.ListAndWatchWithContext(round)
		wanted := round.Err() != nil
		end()
		f.mu.Lock()
		f.current = false
		f.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case wanted:
			pause = firstRetry
		case f.gone(err):
			return err
		case err != nil:
			if _, why := f.state(); why == "" { // what was answered makes no sense
				f.said("list", err)
			}
		case time.Since(started) > steady:
			pause = firstRetry
		}
		if f.quiet && f.refused() {
			pause = quietRetry
		}
		t := time.NewTimer(pause + rand.N(pause/2))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		pause = min(2*pause, lastRetry)
	}
}

// anew lists anew.
func (f *feed) anew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.again != nil {
		f.again()
	}
}

// opaque is an error whose kind is nobody's business.
type opaque struct{ err error }

func (o opaque) Error() string { return o.err.Error() }

// synced is a feed's store, which notes when it is filled.
type synced struct{ *feed }

func (s synced) Add(o any) error    { return s.store.Add(o) }
func (s synced) Update(o any) error { return s.store.Update(o) }
func (s synced) Delete(o any) error { return s.store.Delete(o) }
func (s synced) Resync() error      { return nil }

func (s synced) Replace(list []any, version string) error {
	err := s.store.Replace(list, version)
	s.mu.Lock()
	s.lists, s.current = s.lists+1, true
	if !s.synced {
		s.synced, s.since = true, time.Now()
	}
	s.set("list", trouble{}) // a streamed list has the verb watch
	s.mu.Unlock()
	if s.filled != nil { // who was told by the store before may have found that nothing is known yet
		s.filled()
	}
	s.c.wakeObjects()
	return err
}

// Transformer is that of the store, if it has one.
func (s synced) Transformer() cache.TransformFunc {
	if t, ok := s.store.(cache.TransformingStore); ok {
		return t.Transformer()
	}
	return nil
}
