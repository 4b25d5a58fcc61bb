// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/penstock-project/penstock/api/v1"
)

// fieldManager is the name under which we write.
const fieldManager = "penstock"

// Times of reports.
const (
	reportTick     = time.Second
	reportTimeout  = 10 * time.Second
	reportPatience = 10 * time.Minute // the most that one who is overruled again and again waits
	reportDenied   = 30 * time.Second // until a permission that was missing is tried again
	reportOthers   = 10 * time.Second // how long the picker whose turn it is has to speak
	reportLegacy   = 10 * time.Second // how often the group of before is looked at
)

// reports writes what became of objects into their status, and events about what is wrong.
//
// Several pickers see the same objects. An object that is for several pools is reported by the picker of the first of them
// that exists, and by others only when that one says nothing. What is said depends on the object and on the pools that exist,
// not on who says it; and who finds that another has said something else since waits longer each time.
type reports struct {
	to  reporting
	may func() bool // whether we speak for our pool
	log *slog.Logger

	wake chan struct{}

	mu     sync.Mutex
	list   []report
	spoken map[string]*spoken   // by UID
	denied map[string]time.Time // by resource, until when nothing is tried
}

// reporting is the part of an API server that reports need.
type reporting interface {
	// apply writes a condition of an object.
	apply(ctx context.Context, o *Object, condition metav1.Condition) error
	// event records an event about an object.
	event(ctx context.Context, o *Object, warning bool, reason, message string) error
}

// report is what is to be said about one object.
type report struct {
	*Object
	condition metav1.Condition // Accepted, but for the time; of an object whose status is not ours an event tells
	lost      string           // which of its pools are not there; empty for none
	turn      bool             // it is ours to say
}

// spoken is what we said about an object.
type spoken struct {
	condition metav1.Condition
	object    *Object // as it was then
	times     int     // in a row that we were overruled, or not heard
	next      time.Time
	event     string    // the last
	lost      string    // the last pools of which we told that they are not there
	logged    string    // of which the log tells
	agreed    time.Time // when its status was last what we would say; when it was first seen, if never
}

func newReports(to reporting, may func() bool, log *slog.Logger) *reports {
	if may == nil {
		may = func() bool { return true }
	}
	return &reports{to: to, may: may, log: log, wake: make(chan struct{}, 1), spoken: map[string]*spoken{}, denied: map[string]time.Time{}}
}

// take notes what became of objects. pools are all pools of their namespaces; ours reports whether a pool is one that
// we serve.
func (r *reports) take(verdicts []Verdict, pools []*Object, ours func(pool *Object) bool) {
	now := time.Now()
	list := make([]report, 0, len(verdicts))
	for _, v := range verdicts {
		condition, of, lost := judge(v, pools)
		list = append(list, report{Object: v.Object, condition: condition, lost: lost, turn: len(of) == 0 || ours(of[0])})
	}
	r.mu.Lock()
	before := r.spoken
	r.spoken = map[string]*spoken{}
	for i := range list {
		p := &list[i]
		s := before[p.UID]
		if s == nil {
			s = &spoken{agreed: now}
		}
		r.spoken[p.UID] = s
	}
	r.list = list
	r.mu.Unlock()
	signal(r.wake)
}

// judge turns a verdict into a condition, and names the pools that the object is for: the first has the say. lost says which
// pools that it names do not exist.
func judge(v Verdict, pools []*Object) (c metav1.Condition, of []*Object, lost string) {
	c = metav1.Condition{Type: v1.Accepted, ObservedGeneration: v.Generation}
	set := func(status metav1.ConditionStatus, reason string, parts ...string) {
		c.Status, c.Reason = status, reason
		c.Message = short(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; "))
	}
	warnings := strings.Join(v.Warnings, "; ")
	if v.Kind == "InferencePool" && v.Superseded {
		set(metav1.ConditionFalse, v1.ReasonSuperseded, fmt.Sprintf("%s is not read where the API server has %s: write this as %s/v1, or follow that group with --pool-group", v.Resource.Group, poolGroup, poolGroup))
		return c, nil, ""
	}
	if !reported(v.Object) {
		if set(metav1.ConditionTrue, v1.ReasonAccepted, "in force", warnings); len(v.Errors) > 0 {
			set(metav1.ConditionFalse, v1.ReasonInvalid, slices.Clone(v.Errors)...)
		}
		if v.Kind == "InferencePool" {
			return c, []*Object{v.Object}, ""
		}
		return c, nil, ""
	}
	of, missing := v.among(pools)
	if len(missing) > 0 {
		lost = fmt.Sprintf("namespace %s has no InferencePool %s", v.Namespace, strings.Join(missing, ", "))
	}
	var names []string
	for _, p := range of {
		names = append(names, p.Name)
	}
	switch {
	case v.Superseded:
		set(metav1.ConditionFalse, v1.ReasonSuperseded, fmt.Sprintf("%s is not read where the API server has %s: write this as %s/v1", v.Resource.Group, ownGroup, ownGroup))
	case len(v.Errors) > 0:
		set(metav1.ConditionFalse, v1.ReasonInvalid, slices.Clone(v.Errors)...)
	case len(of) == 0 && lost != "":
		field := "spec.poolRefs"
		if v.Kind == "InferenceModelRewrite" {
			field = "spec.poolRef"
		}
		set(metav1.ConditionFalse, v1.ReasonPoolNotFound, lost+": create it, or name another in "+field)
	case len(of) == 0:
		set(metav1.ConditionFalse, v1.ReasonPoolNotFound, fmt.Sprintf("no InferencePool of namespace %s has the labels of spec.poolSelector: label one, or change the selector", v.Namespace))
	case len(v.Pools) == 0 && ruleless(v.Object):
		set(metav1.ConditionTrue, v1.ReasonAccepted, "has no rules: it changes nothing", lost, warnings)
	case len(v.Pools) == 0 && warnings != "":
		set(metav1.ConditionFalse, v1.ReasonConflicted, warnings)
	case len(v.Pools) == 0:
		set(metav1.ConditionUnknown, v1.ReasonPending, "InferencePool "+strings.Join(names, ", ")+" is not in force: its events say why")
	default:
		set(metav1.ConditionTrue, v1.ReasonAccepted, "counts for InferencePool "+strings.Join(names, ", "), lost, warnings)
	}
	return c, of, lost
}

// ruleless reports whether an object is an InferenceModelRewrite without rules.
func ruleless(o *Object) bool {
	var r v1.InferenceModelRewrite
	return o.Kind == "InferenceModelRewrite" && json.Unmarshal(o.Data, &r) == nil && len(r.Spec.Rules) == 0
}

// among are the pools that an object is for, those that it names first, and the names of those that do not exist.
func (o *Object) among(pools []*Object) (found []*Object, missing []string) {
	for _, name := range o.pools {
		i := slices.IndexFunc(pools, func(p *Object) bool { return p.Namespace == o.Namespace && p.Name == name })
		if i < 0 {
			missing = append(missing, name)
		} else if !slices.Contains(found, pools[i]) {
			found = append(found, pools[i])
		}
	}
	named := len(found)
	for _, p := range pools {
		if o.concerns(p) && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found[named:], func(a, b *Object) int { return strings.Compare(a.Name, b.Name) })
	return found, missing
}

// reported reports whether an object's status is ours to write.
func reported(o *Object) bool {
	return o.Kind == "InferenceObjective" || o.Kind == "InferenceModelRewrite"
}

// short cuts a message to what an API server takes of an event.
func short(s string) string {
	const most = 1000
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// report has reported what became of objects.
func (c *Cluster) report(verdicts []Verdict) {
	var pools []*Object
	for _, s := range c.pools {
		pools = append(pools, s.list()...)
	}
	c.mu.Lock()
	verdicts = slices.Concat(verdicts, c.old)
	c.mu.Unlock()
	c.reports.take(verdicts, pools, func(p *Object) bool { return !c.single() || p.Name == c.opt.Pool.Name })
}

// seekSuperseded looks for objects of the group of before, where there is a newer one, until ctx ends: every now and
// then, and when the newer one has come.
func (c *Cluster) seekSuperseded(ctx context.Context) {
	told := map[string]bool{}
	wait := func(d time.Duration) {
		again := time.NewTimer(d)
		defer again.Stop()
		select {
		case <-ctx.Done():
		case <-c.wake.older:
		case <-again.C:
		}
	}
	for wait(c.opt.seekEvery / 6); ctx.Err() == nil; wait(c.opt.seekEvery) {
		if !c.reports.may() {
			continue
		}
		var old []Verdict
		for _, s := range slices.Concat(c.pools, c.others) {
			s.mu.Lock()
			using := s.using
			s.mu.Unlock()
			was := version(legacyGroup, "v1alpha2")
			if using.Group != s.as.Group || s.versions[len(s.versions)-1].Group != legacyGroup {
				continue
			}
			if has, err := c.clients.has(ctx, was.String(), s.plural); err != nil || !has {
				continue
			}
			list, err := c.clients.dynamic.Resource(was.WithResource(s.plural)).Namespace(s.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				continue // what is not read need not be seen
			}
			old = append(old, superseded(s.name, was.WithResource(s.plural), list)...)
			if where := s.plural + " " + s.namespace; len(list.Items) > 0 && !told[where] {
				told[where] = true
				c.opt.Log.Warn("of two groups the newer is read: objects of the other do not count", slog.String("resource", s.plural), slog.String("read", using.Group),
					slog.String("not", legacyGroup), slog.String("namespace", s.namespace), slog.Int("objects", len(list.Items)))
			}
		}
		c.mu.Lock()
		news := len(old) > 0 || len(c.old) > 0
		c.old = old
		c.mu.Unlock()
		if news {
			c.wakeObjects()
		}
	}
}

// run reports until ctx ends.
func (r *reports) run(ctx context.Context) {
	tick := time.NewTicker(reportTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-tick.C:
		}
		if !r.may() {
			continue
		}
		r.mu.Lock()
		list := r.list
		r.mu.Unlock()
		for _, p := range list {
			if ctx.Err() != nil {
				return
			}
			r.say(ctx, p)
		}
	}
}

// say writes one report, if it is due.
func (r *reports) say(ctx context.Context, p report) {
	now := time.Now()
	r.mu.Lock()
	s := r.spoken[p.UID]
	r.mu.Unlock()
	if s == nil {
		return // a later take is without it
	}
	if !reported(p.Object) {
		r.tell(ctx, p, s)
		return
	}
	said := accepted(p.Status)
	stale := said.ObservedGeneration != p.Generation || said.Status == metav1.ConditionUnknown || said.Status == ""
	switch {
	case same(said, p.condition):
		s.event, s.lost, s.logged = p.condition.Reason+p.condition.Message, p.lost, p.lost // whoever said so told it
		s.agreed = now
		return
	case s.object == p.Object && same(s.condition, p.condition):
		return // what we wrote is on its way back
	case now.Before(s.next):
		return
	case !p.turn && (!stale || now.Sub(s.agreed) < reportOthers):
		return
	case r.held(p.Resource, now):
		r.tell(ctx, p, s)
		return
	}
	if s.object != nil && same(said, s.condition) {
		s.times, s.object = 0, nil // it is as we left it, and has become another
	}
	c := p.condition
	c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	if said.Status == c.Status && !said.LastTransitionTime.IsZero() {
		c.LastTransitionTime = said.LastTransitionTime
	}
	asked, cancel := context.WithTimeout(ctx, reportTimeout)
	err := r.to.apply(asked, p.Object, c)
	cancel()
	s.next = now.Add(min(reportTick<<min(s.times, 20), reportPatience))
	s.times++
	if err != nil {
		if r.failed(ctx, p, err); r.held(p.Resource, now) {
			s.times, s.next = 0, time.Time{} // that is how long it waits
			r.tell(ctx, p, s)
		}
		return
	}
	s.condition, s.object = p.condition, p.Object
	r.tell(ctx, p, s)
}

// tell records an event when there is something new to tell: about what is wrong, what is right again, and pools that are
// named and are not there.
func (r *reports) tell(ctx context.Context, p report, s *spoken) {
	warning := p.condition.Status == metav1.ConditionFalse
	text := p.condition.Reason + p.condition.Message
	if !p.turn {
		return
	}
	if p.lost != s.logged && p.lost != "" {
		r.log.Warn("an object names a pool that is not there", slog.String("object", p.String()), slog.String("problem", p.lost))
	}
	s.logged = p.lost
	switch {
	case warning || p.lost == "":
		s.lost = p.lost // the condition says so
	case p.lost != s.lost:
		r.record(ctx, p, &s.lost, p.lost, true, v1.ReasonPoolNotFound, p.lost)
		if s.lost == p.lost {
			s.event = text
		}
		return
	}
	if s.event != text && (warning || p.Kind == "ConfigMap" || s.event != "") {
		r.record(ctx, p, &s.event, text, warning, p.condition.Reason, p.condition.Message)
	}
}

// record records an event, and notes in last that it was told, unless we may not.
func (r *reports) record(ctx context.Context, p report, last *string, told string, warning bool, reason, message string) {
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	if r.held(events, time.Now()) {
		return
	}
	asked, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := r.to.event(asked, p.Object, warning, reason, message)
	if err != nil {
		e := *p.Object
		e.Resource = events
		r.failed(ctx, report{Object: &e}, err)
	}
	if !apierrors.IsForbidden(err) {
		*last = told // one that was lost is not tried again
	}
}

// held reports whether a resource is not to be written to for now.
func (r *reports) held(resource schema.GroupVersionResource, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.denied[resource.String()])
}

// failed notes that a report was not taken. One that may not be made is told once and tried again seldom.
func (r *reports) failed(ctx context.Context, p report, err error) {
	if ctx.Err() != nil {
		return
	}
	name := p.Resource.GroupResource().String()
	var told string
	switch {
	case apierrors.IsForbidden(err) && p.Resource.Resource == "events":
		told = "the API server does not let us create events in namespace " + p.Namespace + ": what is wrong with objects stands in their status and in the log"
	case apierrors.IsForbidden(err):
		told = "the API server does not let us patch " + name + "/status in namespace " + p.Namespace + ": what becomes of objects stands in the log and in /debug/fleet alone"
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "could not find the requested resource"):
		told = "the API server's " + name + " have no status: their definition is an old one, what becomes of objects stands in the log and in /debug/fleet alone"
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return // it is gone, or another by now
	default:
		r.log.Debug("a report was not taken; it is tried again", slog.String("object", p.String()), slog.Any("error", err))
		return
	}
	r.mu.Lock()
	_, before := r.denied[p.Resource.String()]
	r.denied[p.Resource.String()] = time.Now().Add(reportDenied)
	r.mu.Unlock()
	if !before {
		r.log.Warn(told, slog.Any("error", err))
	}
}

// accepted is the condition of that type in a status; empty for none.
func accepted(status map[string]any) (c metav1.Condition) {
	list, _, _ := unstructured.NestedSlice(status, "conditions")
	for _, m := range list {
		if m, ok := m.(map[string]any); ok && m["type"] == v1.Accepted {
			_ = runtime.DefaultUnstructuredConverter.FromUnstructured(m, &c) // what is not a condition is none
		}
	}
	return c
}

// same reports whether two conditions say the same of the same generation.
func same(a, b metav1.Condition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message && a.ObservedGeneration == b.ObservedGeneration
}

// superseded are objects of the group of before, which nobody reads since the API server has llm-d.ai.
func superseded(kind string, resource schema.GroupVersionResource, list *unstructured.UnstructuredList) (out []Verdict) {
	for i := range list.Items {
		u := &list.Items[i]
		o := &Object{Kind: kind, Namespace: u.GetNamespace(), Name: u.GetName(), Resource: resource, UID: string(u.GetUID()), Generation: u.GetGeneration()}
		o.Status, _, _ = unstructured.NestedMap(u.Object, "status")
		if spec, _, _ := unstructured.NestedMap(u.Object, "spec"); spec != nil {
			o.refer(spec)
		}
		out = append(out, Verdict{Object: o, Superseded: true})
	}
	return out
}

// notary is an API server that is reported to.
type notary struct {
	client     dynamic.Interface
	manager    string // who we are among the managers of an object's fields
	host       string
	correlator *record.EventCorrelator
}

// newNotary writes as the picker of a pool; of all pools when it is empty.
func newNotary(client dynamic.Interface, pool string) *notary {
	host, _ := os.Hostname() // the pod's name; events do without
	manager := fieldManager
	if pool != "" {
		manager += "-" + pool
	}
	return &notary{client: client, manager: manager[:min(len(manager), 128)], host: host, correlator: record.NewEventCorrelator(clock.RealClock{})}
}

// apply applies a condition on the server's side, so that conditions of others stay.
func (s *notary) apply(ctx context.Context, o *Object, c metav1.Condition) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": o.Resource.GroupVersion().String(), "kind": o.Kind,
		"metadata": map[string]any{"namespace": o.Namespace, "name": o.Name, "uid": o.UID},
		"status":   map[string]any{"conditions": []metav1.Condition{c}},
	})
	if err != nil {
		return err
	}
	force := true
	_, err = s.client.Resource(o.Resource).Namespace(o.Namespace).Patch(ctx, o.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: s.manager, Force: &force}, "status")
	return err
}

// event records an event, or counts one up. Too many of one object are left out.
func (s *notary) event(ctx context.Context, o *Object, warning bool, reason, message string) error {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	now := metav1.Now()
	e := &corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: fmt.Sprintf("%s.%x", o.Name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: o.Resource.GroupVersion().String(), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.UID),
		},
		Type: kind, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: fieldManager, Host: s.host}, ReportingController: fieldManager, ReportingInstance: s.host,
	}
	result, err := s.correlator.EventCorrelate(e)
	if err != nil || result.Skip {
		return err
	}
	events := s.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(o.Namespace)
	if result.Event.Count > 1 {
		u, err := events.Patch(ctx, result.Event.Name, types.StrategicMergePatchType, result.Patch, metav1.PatchOptions{FieldManager: s.manager})
		if err == nil || !apierrors.IsNotFound(err) {
			return s.recorded(u, err)
		}
		result.Event.ResourceVersion = ""
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(result.Event)
	if err != nil {
		return err
	}
	return s.recorded(events.Create(ctx, &unstructured.Unstructured{Object: m}, metav1.CreateOptions{FieldManager: s.manager}))
}

// recorded has the next event of its kind count up the one that was recorded.
func (s *notary) recorded(u *unstructured.Unstructured, err error) error {
	if err != nil {
		return err
	}
	e := &corev1.Event{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, e); err != nil {
		return errors.Join(errors.New("an event of the API server"), err)
	}
	s.correlator.UpdateState(e)
	return nil
}
