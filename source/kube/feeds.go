// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FeedState is how it stands with what we follow.
type FeedState string

// The states. What was known stays in all of them but Absent.
const (
	Synced  FeedState = "synced"
	Listing FeedState = "listing" // nothing is known yet
	Refused FeedState = "refused" // we may not: see Verb
	Absent  FeedState = "absent"  // the API server has no such resource: its definition is not installed
	Away    FeedState = "away"    // the API server cannot be asked
)

// Feed is how one resource is followed in one namespace.
type Feed struct {
	Resource  string // as permissions name it, such as inferencepools.inference.networking.k8s.io
	Namespace string // empty for all
	Name      string // of the only object that is followed; empty for all
	Version   string // in use, with the group; empty while there is none
	State     FeedState
	Verb      string // that is refused, or fails; empty for none
	Since     time.Time
	Objects   int    // that are known
	Error     string // the last one, whether it is over or not
}

// Feeds are all that is followed, by resource, namespace and name.
func (c *Cluster) Feeds() []Feed {
	var out []Feed
	for _, s := range slices.Concat(c.pools, c.others) {
		out = append(out, s.view())
	}
	c.mu.Lock()
	for _, w := range c.watched {
		w.mu.Lock()
		n := len(w.all)
		w.mu.Unlock()
		out = append(out, w.feed.view(schema.GroupVersion{Version: "v1"}, n))
	}
	for _, m := range c.maps {
		m.mu.Lock()
		n := 0
		if m.object != nil {
			n = 1
		}
		m.mu.Unlock()
		v := m.feed.view(schema.GroupVersion{Version: "v1"}, n)
		v.Name = m.id.Name
		out = append(out, v)
	}
	c.mu.Unlock()
	c.nodes.mu.Lock()
	if f := c.nodes.feed; f != nil {
		out = append(out, f.view(schema.GroupVersion{Version: "v1"}, len(c.nodes.all)))
	}
	c.nodes.mu.Unlock()
	slices.SortFunc(out, func(a, b Feed) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// view is the feed as others see it, of that version and with so many objects.
func (f *feed) view(version schema.GroupVersion, objects int) Feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := Feed{Resource: f.resource, Namespace: f.namespace, Version: version.String(), State: Listing, Since: f.since, Objects: objects, Error: f.last}
	verb, t := f.worst()
	switch {
	case t.refused:
		v.State, v.Verb = Refused, verb
	case t.text != "":
		v.State, v.Verb = Away, verb
	case f.synced:
		v.State = Synced
	}
	return v
}

// view is the kind as others see it.
func (s *objects) view() Feed {
	s.mu.Lock()
	f, n, using := s.feed, len(s.all), s.using.GroupVersion()
	v := Feed{Resource: s.plural + "." + s.versions[0].Group, Namespace: s.namespace, State: Listing, Since: s.since, Objects: n, Error: s.trouble}
	switch {
	case s.absent:
		v.State = Absent
	case s.trouble != "":
		v.State, v.Verb = Away, "discover"
	}
	s.mu.Unlock()
	if f != nil {
		return f.view(using, n)
	}
	return v
}
