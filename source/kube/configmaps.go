// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/penstock-project/penstock/fleet"
)

// MapRef names a ConfigMap, and the key of the text in it; without a key [ConfigText] chooses. The zero MapRef names none.
type MapRef struct {
	fleet.ID
	Key string
}

// ParseMapRef reads NAMESPACE/NAME or NAMESPACE/NAME/KEY; an empty text names none.
func ParseMapRef(text string) (MapRef, error) {
	if text == "" {
		return MapRef{}, nil
	}
	parts := append(strings.SplitN(text, "/", 3), "-")
	if len(parts) < 3 || slices.Contains(parts, "") {
		return MapRef{}, fmt.Errorf("%q: want NAMESPACE/NAME or NAMESPACE/NAME/KEY", text)
	}
	m := MapRef{ID: fleet.ID{Namespace: parts[0], Name: parts[1]}}
	if len(parts) == 4 {
		m.Key = parts[2]
	}
	return m, nil
}

// String names the ConfigMap as objects do.
func (m MapRef) String() string { return "ConfigMap " + m.ID.String() }

// Is reports whether an object is a text of the ConfigMap.
func (m MapRef) Is(o *Object) bool {
	return o.Kind == "ConfigMap" && o.Namespace == m.Namespace && o.Name == m.Name
}

// configMap is one ConfigMap with a configuration, as a [cache.ReflectorStore].
type configMap struct {
	id      fleet.ID
	key     string
	changed func()
	feed    *feed
	stop    context.CancelFunc
	since   time.Time // it is followed

	mu     sync.Mutex
	object *Object // nil while there is none
}

// shipped are the configurations that llm-d's charts put beside one that an operator wrote.
var shipped = []string{"default-plugins.yaml", "payload-agnostic.yaml"}

// ConfigText chooses a ConfigMap's text: the one under key; when key is empty the only one, else the only one beside
// those that llm-d's charts ship, else the charts' default.
func ConfigText(data map[string]string, key string) (chosen, text string, ok bool) {
	keys := slices.Sorted(maps.Keys(data))
	if key == "" && len(keys) > 1 {
		keys = slices.DeleteFunc(keys, func(k string) bool { return slices.Contains(shipped, k) })
		if len(keys) != 1 {
			keys = shipped[:1]
		}
	}
	if key == "" && len(keys) == 1 {
		key = keys[0]
	}
	text, ok = data[key]
	return key, text, ok
}

// newConfigMap follows one ConfigMap, by a field selector, so that a permission for its name is enough.
func newConfigMap(c *Cluster, id fleet.ID, key string) *configMap {
	m := &configMap{id: id, key: key, changed: c.wakeObjects}
	m.feed = c.clients.feed(c.clients.core, "/api/v1", id.Namespace, "configmaps", fields.OneTermEqualSelector("metadata.name", id.Name).String())
	m.feed.c, m.feed.example, m.feed.store, m.feed.empty = c, &corev1.ConfigMap{}, m, func() runtime.Object { return &corev1.ConfigMapList{} }
	return m
}

// texts are the configurations in ConfigMaps; known tells that those were read that must be.
func (c *Cluster) texts(ctx context.Context, g *errgroup.Group, pools []*Object) (list []*Object, known bool) {
	want := map[fleet.ID]string{}
	if c.opt.ConfigMap != (MapRef{}) {
		want[c.opt.ConfigMap.ID] = c.opt.ConfigMap.Key
	}
	if c.opt.PickerMaps {
		for _, p := range pools {
			if name := pickerOf(p); name != "" {
				id := fleet.ID{Namespace: p.Namespace, Name: name}
				if _, ok := want[id]; !ok {
					want[id] = "" // whatever it holds
				}
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, key := range want {
		if c.maps[id] == nil {
			m := newConfigMap(c, id, key)
			ctx, stop := context.WithCancel(ctx)
			m.stop, m.since = stop, time.Now()
			time.AfterFunc(optionalWait, c.wakeObjects)
			c.maps[id] = m
			g.Go(func() error { return m.feed.run(ctx) })
		}
	}
	known = true
	for id, m := range c.maps {
		if _, ok := want[id]; !ok {
			m.stop()
			delete(c.maps, id)
			continue
		}
		m.mu.Lock()
		if m.object != nil {
			list = append(list, m.object)
		}
		m.mu.Unlock()
		switch synced, why := m.feed.state(); {
		case synced:
		case id == c.opt.ConfigMap.ID, !denies(why) && time.Since(m.since) < optionalWait: // no pool begins by another configuration
			known = false
		}
	}
	return list, known
}

// pickerOf is the name of a pool's picker.
func pickerOf(pool *Object) string {
	var p inferencev1.InferencePool
	_ = json.Unmarshal(pool.Data, &p) // what is wrong with it the configuration says
	if ref := p.Spec.EndpointPickerRef; ref != nil {
		return string(ref.Name)
	}
	return ""
}

// Add notes what the ConfigMap says now.
func (m *configMap) Add(v any) error {
	in, ok := v.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("want a ConfigMap, got %T", v)
	}
	key, text, _ := ConfigText(in.Data, m.key)
	o := &Object{
		Kind: "ConfigMap", Namespace: in.Namespace, Name: in.Name, UID: string(in.UID), Key: key, Data: []byte(text),
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	}
	m.set(o)
	return nil
}

func (m *configMap) set(o *Object) {
	m.mu.Lock()
	m.object = o
	m.mu.Unlock()
	m.changed()
}

// Update is Add.
func (m *configMap) Update(v any) error { return m.Add(v) }

// Delete notes that there is none.
func (m *configMap) Delete(any) error {
	m.set(nil)
	return nil
}

// Replace notes what there is.
func (m *configMap) Replace(list []any, _ string) error {
	if len(list) == 0 {
		m.set(nil)
		return nil
	}
	return m.Add(list[0])
}

// Resync has nothing to do.
func (m *configMap) Resync() error { return nil }
