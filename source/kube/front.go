// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Times of a front: how often it looks whether we lead, tries again after a failure, and says it again.
const (
	frontLook    = 50 * time.Millisecond
	frontRetry   = time.Second
	frontRepeat  = time.Minute
	frontTimeout = 5 * time.Second
)

// Front is a Service without selector that leads to whoever leads. The leader writes its EndpointSlice, so that
// standbys may be ready in Kubernetes' eyes and get no requests, and a new leader gets them at once.
type Front struct {
	Config             *rest.Config
	Namespace, Service string
	// Pod, IP and Node are ours. Node may be empty; some data planes want it.
	Pod, IP, Node string
	// Leads tells whether the Service is to lead to us.
	Leads func() bool
	Log   *slog.Logger

	client dynamic.Interface // nil before Run, unless a test gave one
}

// Run keeps the Service leading to us while we lead, until ctx ends. What it leads to stays when we do not lead any more:
// the next leader overwrites it.
func (f *Front) Run(ctx context.Context) error {
	addr, err := netip.ParseAddr(f.IP)
	if err != nil {
		return fmt.Errorf("service %s/%s leads to pods by their IP: %w (set POD_IP to status.podIP)", f.Namespace, f.Service, err)
	}
	if f.client == nil {
		if f.client, err = dynamic.NewForConfig(f.Config); err != nil {
			return err
		}
	}
	var said, tried time.Time
	trouble := ""
	for t := time.NewTicker(frontLook); ; {
		switch now := time.Now(); {
		case !f.Leads():
			said, tried = time.Time{}, time.Time{}
		case now.Sub(said) < frontRepeat, now.Sub(tried) < frontRetry:
		default:
			tried = now
			err := f.say(ctx, addr)
			switch {
			case err == nil && said.IsZero():
				f.Log.Info("the service leads to us", slog.String("service", f.Namespace+"/"+f.Service))
				fallthrough
			case err == nil:
				said, trouble = now, ""
			case ctx.Err() == nil && err.Error() != trouble:
				trouble = err.Error()
				f.Log.Warn("the service cannot be led to us", slog.String("service", f.Namespace+"/"+f.Service), slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// say writes the EndpointSlice.
func (f *Front) say(ctx context.Context, addr netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, frontTimeout)
	defer cancel()
	u, err := f.client.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(f.Namespace).Get(ctx, f.Service, metav1.GetOptions{})
	if err != nil {
		return err
	}
	service := &corev1.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, service); err != nil {
		return err
	}
	if len(service.Spec.Selector) > 0 {
		return fmt.Errorf("it has a selector: Kubernetes itself says where it leads")
	}
	slice := f.slice(service, addr)
	_, err = f.client.Resource(endpointSlices).Namespace(f.Namespace).Apply(ctx, slice.GetName(), slice, metav1.ApplyOptions{FieldManager: "penstock", Force: true})
	return err
}

var endpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}

// slice is the EndpointSlice that has a service lead to us.
func (f *Front) slice(service *corev1.Service, addr netip.Addr) *unstructured.Unstructured {
	name, family := f.Service+"-leader", "IPv4"
	if addr.Is6() {
		name, family = f.Service+"-leader6", "IPv6" // the family of a slice cannot be changed
	}
	ports := []any{}
	for _, p := range service.Spec.Ports {
		number := int64(p.TargetPort.IntValue())
		if number == 0 {
			number = int64(p.Port)
		}
		ports = append(ports, map[string]any{"name": p.Name, "port": number, "protocol": string(p.Protocol)})
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
			"labels": map[string]any{"kubernetes.io/service-name": f.Service, "endpointslice.kubernetes.io/managed-by": "penstock.dev"},
		},
		"addressType": family, "endpoints": []any{endpoint}, "ports": ports,
	}}
}
