// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNoCluster tells that neither a kubeconfig nor the environment names an API server.
var ErrNoCluster = errors.New("no API server is known: neither --kubeconfig nor KUBECONFIG names one, and this is no pod")

// Connect finds the API server: by the kubeconfig at path, else by those that KUBECONFIG names, else by the service
// account of the pod that this is, else by ~/.kube/config. Nothing is sent. agent names us to the server.
func Connect(path, agent string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	named := path != "" || len(rules.Precedence) > 0 && rules.Precedence[0] != clientcmd.RecommendedHomeFile
	var c *rest.Config
	var err error
	if !named {
		if c, err = rest.InClusterConfig(); err != nil && !errors.Is(err, rest.ErrNotInCluster) {
			return nil, err
		}
	}
	if c == nil {
		c, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
		switch {
		case clientcmd.IsEmptyConfig(err):
			return nil, ErrNoCluster
		case err != nil:
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	c.UserAgent = agent
	c.QPS, c.Burst = 50, 100 // at the start some requests go out for each namespace
	return c, nil
}

// clients speak with one API server.
type clients struct {
	host    string
	core    *rest.RESTClient  // core/v1, as protobuf
	custom  *rest.RESTClient  // what we have no types for, as JSON
	dynamic dynamic.Interface // to write

	metadata metadata.Interface // of nodes

	listed atomic.Pointer[time.Time] // when there was last a list of API groups; nil for never
}

func newClients(c *rest.Config) (*clients, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{}, &corev1.ConfigMap{}, &corev1.ConfigMapList{})
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	core := rest.CopyConfig(c)
	core.APIPath, core.GroupVersion = "/api", &corev1.SchemeGroupVersion
	core.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	core.ContentType = "application/vnd.kubernetes.protobuf"
	core.AcceptContentTypes = core.ContentType + ",application/json"
	out := &clients{host: c.Host}
	if out.core, err = rest.RESTClientForConfigAndClient(core, h); err != nil {
		return nil, err
	}
	if out.custom, err = rest.UnversionedRESTClientForConfigAndClient(dynamic.ConfigFor(c), h); err != nil {
		return nil, err
	}
	if out.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(c), h); err != nil {
		return nil, err
	}
	out.dynamic, err = dynamic.NewForConfigAndClient(c, h)
	return out, err
}

// feed follows a resource of the group and version at path. A request is tried once: the feed tries again, and tells.
func (c *clients) feed(client *rest.RESTClient, path, namespace, resource, fields string) *feed {
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	get := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = fields
		return client.Get().MaxRetries(0).AbsPath(path, resource).VersionedParams(&o, metav1.ParameterCodec)
	}
	f := &feed{namespace: namespace, resource: resource}
	f.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list := f.empty()
		return list, get(o).Do(ctx).Into(list)
	}
	f.watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.Watch = true
		return get(o).Watch(ctx)
	}
	return f
}

// discover reads what the API server says of itself under /apis/, into; nothing where it knows no such path.
func (c *clients) discover(ctx context.Context, path string, into any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	raw, err := c.core.Get().MaxRetries(0).AbsPath("/apis/"+path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return c.stranger(ctx)
	}
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	return err
}

// stranger is an error when not even the groups of an API server are found: then somebody else answers, such as a load balancer before
// one that is away. Kinds that are not there are asked for all the time, so that one answer is for all who ask within a moment.
func (c *clients) stranger(ctx context.Context) error {
	if last := c.listed.Load(); last != nil && time.Since(*last) < absentPoll {
		return nil
	}
	var groups struct{ Kind string }
	raw, err := c.core.Get().MaxRetries(0).AbsPath("/apis").SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err), err == nil && json.Unmarshal(raw, &groups) == nil && groups.Kind == "APIGroupList":
		now := time.Now()
		c.listed.Store(&now)
		return nil
	case err == nil || apierrors.IsNotFound(err):
		return errors.New("whoever answers has no list of API groups: it is no API server")
	}
	return err
}

// versions are those of a group that the API server serves, the one that it prefers first; none for a group that it does not
// know.
func (c *clients) versions(ctx context.Context, group string) ([]string, error) {
	var doc struct{ Versions []struct{ Version string } }
	if err := c.discover(ctx, group, &doc); err != nil {
		return nil, err
	}
	var out []string
	for _, v := range doc.Versions {
		out = append(out, v.Version)
	}
	return out, nil
}

// has reports whether the API server serves the resource in that group and version.
func (c *clients) has(ctx context.Context, groupVersion, resource string) (bool, error) {
	var list struct{ Resources []struct{ Name string } }
	if err := c.discover(ctx, groupVersion, &list); err != nil {
		return false, err
	}
	for _, r := range list.Resources {
		if r.Name == resource {
			return true, nil
		}
	}
	return false, nil
}

// CheckName says why no object of an API server can have the name, or nil.
func CheckName(name string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return errors.New("want a name as Kubernetes has them: lower-case letters, digits, - and ., at most 253, with a letter or digit first and last")
	}
	return nil
}

// ParseSelector reads a label selector, such as app=vllm,tier in (a,b).
func ParseSelector(text string) (labels.Selector, error) {
	s, err := labels.Parse(text)
	if err == nil && s.Empty() {
		return nil, errors.New("is empty: want labels such as app=vllm")
	}
	return s, err
}
