// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Times of a front: how often it looks whether we lead, the least between two tries, how long after a failure it tries again,
// and how often it looks though nothing was seen to change.
const (
	frontLook    = 50 * time.Millisecond
	frontGap     = 250 * time.Millisecond
	frontRetry   = time.Second
	frontRepeat  = 10 * time.Second
	frontTimeout = 5 * time.Second
)

// Who wrote an EndpointSlice.
const (
	frontManager     = "penstock.llm-d.ai"
	ofSelectors      = "endpointslice-controller.k8s.io"
	ofEndpointsByAPI = "endpointslicemirroring-controller.k8s.io"
)

// Front is a Service without selector that leads to whoever leads. The leader writes its EndpointSlices, one per IP family,
// so that standbys may be ready in Kubernetes' eyes and get no requests, and a new leader gets them at once.
type Front struct {
	Config             *rest.Config
	Namespace, Service string
	// Pod and Node are ours, Addresses those at which we listen. Node may be empty; some data planes want it.
	Pod, Node string
	Addresses []netip.Addr
	// Leads tells whether the Service is to lead to us.
	Leads func() bool
	Log   *slog.Logger

	client    dynamic.Interface // nil before Run
	contested string            // the pod that led the Service to itself since we lead; empty for none

	mu      sync.Mutex
	said    bool   // the Service leads to us since we lead
	trouble string // why it does not
}

// State reports whether the Service leads to us, as far as we know, and why it cannot be led to us, empty when it can.
func (f *Front) State() (here bool, trouble string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said && f.trouble == "", f.trouble
}

// now notes how it stands and reports whether that is news.
func (f *Front) now(said bool, trouble string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	news := said != f.said || trouble != f.trouble
	f.said, f.trouble = said, trouble
	return news
}

var (
	services       = corev1.SchemeGroupVersion.WithResource("services")
	endpoints      = corev1.SchemeGroupVersion.WithResource("endpoints")
	endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
)

// Run keeps the Service leading to us while we lead, whatever others do to its EndpointSlices, until ctx ends. What it leads to
// stays when we do not lead any more, for the next leader to overwrite: who was told to end still serves for a while. Only what
// nobody has overwritten when Run returns is removed, since nobody listens there then.
func (f *Front) Run(ctx context.Context) error {
	var err error
	if f.client, err = dynamic.NewForConfig(f.Config); err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	var unwatch context.CancelFunc // nil while nobody watches
	var tried, next time.Time
	led := false  // ever
	again := true // when something has changed; not after a failure
	look := time.NewTicker(frontLook)
	defer look.Stop()
	for {
		now := time.Now()
		switch leads := f.Leads(); {
		case !leads && unwatch != nil:
			unwatch()
			unwatch, next, f.contested = nil, time.Time{}, ""
			f.now(false, "")
		case leads && !now.Before(next):
			led = true
			if unwatch == nil {
				var watching context.Context
				watching, unwatch = context.WithCancel(ctx)
				watchers.Go(func() { f.watch(watching, changed) })
			}
			tried, next = now, now.Add(frontRepeat)
			err := f.say(ctx)
			again = err == nil
			switch {
			case err == nil && f.now(true, ""):
				f.Log.Info("the service leads to us", slog.String("service", f.Namespace+"/"+f.Service), slog.Any("addresses", f.Addresses))
			case err != nil && ctx.Err() == nil:
				if next = now.Add(frontRetry); f.now(false, err.Error()) {
					f.Log.Warn("the service cannot be led to us: requests may not come here", slog.String("service", f.Namespace+"/"+f.Service), slog.Any("error", err))
				}
			}
		}
		select {
		case <-ctx.Done():
			if unwatch != nil {
				unwatch()
			}
			if led {
				f.leave(context.WithoutCancel(ctx))
			}
			return nil
		case <-changed:
			if soon := tried.Add(frontGap); soon.Before(next) && again {
				next = soon
			}
		case <-look.C:
		}
	}
}

// watch tells of each change of the Service's EndpointSlices, until ctx ends.
func (f *Front) watch(ctx context.Context, changed chan struct{}) {
	denied := false
	for ctx.Err() == nil {
		w, err := f.slices().Watch(ctx, f.its())
		switch {
		case err == nil:
			for e := range w.ResultChan() {
				if e.Type != watch.Error && e.Type != watch.Bookmark {
					signal(changed)
				}
			}
			w.Stop()
		case ctx.Err() == nil && apierrors.IsForbidden(err) && !denied:
			denied = true
			f.Log.Warn("what others do to the service's EndpointSlices is noticed late", slog.String("service", f.Namespace+"/"+f.Service), slog.Any("error", f.may("watch", "endpointslices.discovery.k8s.io", err)))
		}
		t := time.NewTimer(frontRetry)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

func (f *Front) slices() dynamic.ResourceInterface {
	return f.client.Resource(endpointSlices).Namespace(f.Namespace)
}

// its selects the EndpointSlices of the Service.
func (f *Front) its() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + f.Service}
}

// may says which permission is missing, when one is.
func (f *Front) may(verb, resource string, err error) error {
	if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		return err
	}
	return fmt.Errorf("may not %s %s in namespace %s: grant get of services, get, list, watch, create, patch and delete of endpointslices.discovery.k8s.io, and delete of endpoints", verb, resource, f.Namespace)
}

// look reads the Service, and the EndpointSlices that are there for it.
func (f *Front) look(ctx context.Context) (*corev1.Service, []unstructured.Unstructured, error) {
	u, err := f.client.Resource(services).Namespace(f.Namespace).Get(ctx, f.Service, metav1.GetOptions{})
	if err != nil {
		return nil, nil, f.may("get", "services", err)
	}
	service := &corev1.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, service); err != nil {
		return nil, nil, err
	}
	there, err := f.slices().List(ctx, f.its())
	if err != nil {
		return nil, nil, f.may("list", "endpointslices.discovery.k8s.io", err)
	}
	return service, there.Items, nil
}

// say has the EndpointSlices name us and nobody else.
func (f *Front) say(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, frontTimeout)
	defer cancel()
	service, there, err := f.look(ctx)
	if err != nil {
		return err
	}
	if len(service.Spec.Selector) > 0 { // so it is when a release goes back to a single picker
		return errors.Join(errors.New("it has a selector: Kubernetes itself says where it leads"), f.remove(ctx, there, nil))
	}
	var ours []string
	for _, addr := range f.Addresses {
		if family := familyOf(addr); len(service.Spec.IPFamilies) > 0 && !slices.Contains(service.Spec.IPFamilies, corev1.IPFamily(family)) {
			continue
		}
		slice, err := f.slice(service, addr)
		if err != nil {
			return err
		}
		ours = append(ours, slice.GetName())
		if i := slices.IndexFunc(there, func(u unstructured.Unstructured) bool { return u.GetName() == slice.GetName() }); i >= 0 {
			if says(&there[i], slice) {
				continue
			}
			f.contest(&there[i])
		}
		if _, err := f.slices().Apply(ctx, slice.GetName(), slice, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return f.may("patch", "endpointslices.discovery.k8s.io", err)
		}
	}
	if ours == nil {
		return fmt.Errorf("it is for %v, and we listen at %v", service.Spec.IPFamilies, f.Addresses)
	}
	return f.remove(ctx, there, ours)
}

// contest tells, once while we lead, which other pod led the Service to itself after we had led it here. A successor may, before we know
// of it; two releases take it from each other all the time.
func (f *Front) contest(u *unstructured.Unstructured) {
	var s discoveryv1.EndpointSlice
	here, _ := f.State()
	if !here || f.contested != "" || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &s) != nil {
		return
	}
	for _, e := range s.Endpoints {
		if e.TargetRef != nil && e.TargetRef.Name != f.Pod {
			f.contested = e.TargetRef.Name
			f.Log.Warn("while we lead, another pod led the service to itself; when it does so again and again, it is of another release: each needs a service of its own",
				slog.String("service", f.Namespace+"/"+f.Service), slog.String("pod", f.contested))
			return
		}
	}
}

// says reports whether an EndpointSlice is what we want of it. What the API server adds does not count; further endpoints,
// addresses and ports do.
func says(u, want *unstructured.Unstructured) bool {
	var is, ours discoveryv1.EndpointSlice
	from := runtime.DefaultUnstructuredConverter.FromUnstructured
	return from(u.Object, &is) == nil && from(want.Object, &ours) == nil && equality.Semantic.DeepDerivative(want.Object, u.Object) &&
		len(is.Ports) == len(ours.Ports) && len(is.Endpoints) == 1 && len(is.Endpoints[0].Addresses) == 1
}

// remove deletes the slices by which a Service that had a selector before led to all pickers, and those of ours that are not
// among keep. What somebody else has written on purpose stays.
func (f *Front) remove(ctx context.Context, there []unstructured.Unstructured, keep []string) error {
	for i := range there {
		u := &there[i]
		by := u.GetLabels()[discoveryv1.LabelManagedBy]
		switch {
		case slices.Contains(keep, u.GetName()):
			continue
		case by == frontManager, by == ofSelectors && keep != nil:
			if err := f.slices().Delete(ctx, u.GetName(), *f.as(u)); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return f.may("delete", "endpointslices.discovery.k8s.io", err)
			}
		case by == ofEndpointsByAPI && keep != nil: // it is written again for as long as there are Endpoints
			if err := f.client.Resource(endpoints).Namespace(f.Namespace).Delete(ctx, f.Service, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return f.may("delete", "endpoints", err)
			}
		}
	}
	return nil
}

// as has a deletion fail when an object is not what it was.
func (f *Front) as(u *unstructured.Unstructured) *metav1.DeleteOptions {
	uid, version := u.GetUID(), u.GetResourceVersion()
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

// leave has the Service lead nowhere if it still leads to us.
func (f *Front) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, frontTimeout)
	defer cancel()
	there, err := f.slices().List(ctx, f.its())
	if err == nil {
		there.Items = slices.DeleteFunc(there.Items, func(u unstructured.Unstructured) bool { return !f.names(&u) })
		err = f.remove(ctx, there.Items, nil)
	}
	if err != nil {
		f.Log.Warn("the service may still lead to us, where nobody listens any more, until another leads", slog.String("service", f.Namespace+"/"+f.Service), slog.Any("error", err))
	}
}

// names reports whether an EndpointSlice leads to us.
func (f *Front) names(u *unstructured.Unstructured) bool {
	var s discoveryv1.EndpointSlice
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &s) != nil {
		return false
	}
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool { return slices.Contains(e.Addresses, a.String()) })
	})
}

func familyOf(addr netip.Addr) discoveryv1.AddressType {
	if addr.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// slice is the EndpointSlice that has a Service lead to an address of ours. The family of a slice cannot be changed, so that each
// has a name of its own.
func (f *Front) slice(service *corev1.Service, addr netip.Addr) (*unstructured.Unstructured, error) {
	name := f.Service + "-leader"
	if addr.Is6() {
		name += "6"
	}
	ports := []any{}
	for _, p := range service.Spec.Ports {
		number := int64(p.TargetPort.IntVal)
		if p.TargetPort.StrVal != "" {
			return nil, fmt.Errorf("its port %s leads to the port %q of pods, by name: write its number, since a Service without selector has no pods that could be looked at", p.Name, p.TargetPort.StrVal)
		}
		if number == 0 {
			number = int64(p.Port)
		}
		port := map[string]any{"name": p.Name, "port": number, "protocol": string(p.Protocol)}
		if p.AppProtocol != nil {
			port["appProtocol"] = *p.AppProtocol
		}
		ports = append(ports, port)
	}
	endpoint := map[string]any{
		"addresses":  []any{addr.String()},
		"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
		"targetRef":  map[string]any{"kind": "Pod", "namespace": f.Namespace, "name": f.Pod},
	}
	if f.Node != "" {
		endpoint["nodeName"] = f.Node
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata": map[string]any{
			"name": name, "namespace": f.Namespace,
			"labels": map[string]any{discoveryv1.LabelServiceName: f.Service, discoveryv1.LabelManagedBy: frontManager},
			// It goes when the Service does.
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Service", "name": f.Service, "uid": string(service.UID)}},
		},
		"addressType": string(familyOf(addr)), "endpoints": []any{endpoint}, "ports": ports,
	}}, nil
}

// Addresses are the first of a list of each IP family; what is no address is left out.
func Addresses(list ...string) (addrs []netip.Addr) {
	for _, one := range list {
		a, err := netip.ParseAddr(one)
		a = a.Unmap().WithZone("")
		if err == nil && !slices.ContainsFunc(addrs, func(b netip.Addr) bool { return b.Is4() == a.Is4() }) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
