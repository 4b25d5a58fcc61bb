// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// sliceServer is the part of an API server that a front needs: one Service, its EndpointSlices, and Endpoints.
type sliceServer struct {
	mu        sync.Mutex
	service   string                    // what its spec has before ports
	target    string                    // of its first port
	slices    map[string]map[string]any // by name
	version   int
	endpoints bool           // there are Endpoints of that name
	denied    string         // a method and a path that are forbidden, as they begin
	changed   chan struct{}  // closed with the next change
	asked     map[string]int // by method
}

func newSliceServer() *sliceServer {
	return &sliceServer{target: "9102", slices: map[string]map[string]any{}, changed: make(chan struct{}), asked: map[string]int{}}
}

// put stores a slice, nil to delete it, as anybody may. It is called with the lock held.
func (s *sliceServer) put(name string, slice map[string]any) {
	s.version++
	if delete(s.slices, name); slice != nil {
		slice["metadata"].(map[string]any)["resourceVersion"] = fmt.Sprint(s.version)
		s.slices[name] = slice
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// change does something to what is there.
func (s *sliceServer) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// foreign is a slice that somebody else wrote.
func foreign(name, by string) map[string]any {
	return map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": []any{},
		"metadata": map[string]any{"name": name, "namespace": "ns", "labels": map[string]any{"endpointslice.kubernetes.io/managed-by": by}}}
}

// names are the slices that are there, with the address that each leads to.
func (s *sliceServer) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		for _, e := range s.slices[name]["endpoints"].([]any) {
			name += "=" + fmt.Sprint(e.(map[string]any)["addresses"].([]any)...)
		}
		all = append(all, name)
	}
	if s.endpoints {
		all = append(all, "endpoints")
	}
	return strings.Join(all, " ")
}

func (s *sliceServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const of = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
	s.mu.Lock()
	defer s.mu.Unlock()
	method := r.Method
	if r.URL.Query().Get("watch") != "" {
		method = "WATCH"
	}
	s.asked[method]++
	w.Header().Set("Content-Type", "application/json")
	if s.denied != "" && strings.HasPrefix(method+" "+r.URL.Path, s.denied) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`)
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, of), "/")
	switch {
	case r.URL.Path == "/api/v1/namespaces/ns/services/epp":
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"epp","uid":"u1"},"spec":{%s"ports":[{"name":"grpc-ext-proc","port":9002,"targetPort":%s,"protocol":"TCP","appProtocol":"grpc"},{"name":"zmq","port":5557,"protocol":"TCP"}]}}`, s.service, s.target)
	case r.URL.Path == "/api/v1/namespaces/ns/endpoints/epp" && method == "DELETE":
		s.endpoints = false
		for name, slice := range s.slices {
			if labels := slice["metadata"].(map[string]any)["labels"].(map[string]any); labels["endpointslice.kubernetes.io/managed-by"] == ofEndpointsByAPI {
				s.put(name, nil)
			}
		}
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	case method == "WATCH":
		f := w.(http.Flusher)
		w.WriteHeader(http.StatusOK)
		for f.Flush(); ; f.Flush() {
			changed := s.changed
			s.mu.Unlock()
			select {
			case <-changed:
				s.mu.Lock()
				fmt.Fprintln(w, `{"type":"MODIFIED","object":{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"one"}}}`)
			case <-r.Context().Done():
				s.mu.Lock()
				return
			}
		}
	case method == "GET" && name == "":
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": map[string]any{}, "items": slices.Collect(maps.Values(s.slices))})
	case method == "PATCH":
		var slice map[string]any
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &slice); err != nil || r.Header.Get("Content-Type") != "application/apply-patch+yaml" || r.URL.RawQuery != "fieldManager=penstock&force=true" {
			panic(fmt.Sprint(err, r.Header, r.URL))
		}
		s.put(name, slice)
		_ = json.NewEncoder(w).Encode(slice)
	case method == "DELETE":
		var o struct {
			Preconditions struct{ ResourceVersion string }
		}
		_ = json.NewDecoder(r.Body).Decode(&o)
		if slice := s.slices[name]; slice == nil || slice["metadata"].(map[string]any)["resourceVersion"] != o.Preconditions.ResourceVersion {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`)
			return
		}
		s.put(name, nil)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// standing is a front before a server, and what it has said.
type standing struct {
	*sliceServer
	front *Front
	leads atomic.Bool
	log   lockedBuffer
	stop  func()
}

func newStanding(t *testing.T, addresses ...string) *standing {
	s := &standing{sliceServer: newSliceServer()}
	server := httptest.NewServer(s)
	s.front = &Front{
		Config: &rest.Config{Host: server.URL, QPS: -1}, Namespace: "ns", Service: "epp", Pod: "epp-1", Node: "n1",
		Addresses: Addresses(addresses...), Leads: s.leads.Load, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.front.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		s.stop()
		server.Close()
	})
	return s
}

// until waits until the slices are these.
func (s *standing) until(t *testing.T, what, names string) {
	t.Helper()
	s.wait(t, what+": "+names, func() bool { return s.names() == names })
}

func (s *standing) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute; there are %q; log:\n%s", what, s.names(), s.log.String())
		}
	}
}

// TestFront: the Service leads to us once we lead and not before, whatever others do, and what it led to before goes.
func TestFront(t *testing.T) {
	s := newStanding(t, "10.0.0.7", "fd00::10")
	s.change(func() {
		s.put("epp-leader", map[string]any{"metadata": map[string]any{"name": "epp-leader", "labels": map[string]any{}}, "endpoints": []any{map[string]any{"addresses": []any{"10.0.0.6"}}}})
		s.put("epp-abcde", foreign("epp-abcde", ofSelectors)) // from when the Service had a selector
		s.put("epp-fghij", foreign("epp-fghij", ofEndpointsByAPI))
		s.put("mine", foreign("mine", "somebody"))
		s.endpoints = true
	})
	before := s.names()
	if want := "epp-abcde epp-fghij epp-leader=10.0.0.6 mine endpoints"; before != want {
		t.Fatalf("got %s, want %s", before, want)
	}
	s.leads.Store(true)
	const ours = "epp-leader=10.0.0.7 epp-leader6=fd00::10 mine"
	s.until(t, "when we lead", ours)

	s.mu.Lock()
	got, _ := json.Marshal(s.slices["epp-leader6"])
	s.mu.Unlock()
	const want = `{"addressType":"IPv6","apiVersion":"discovery.k8s.io/v1",` +
		`"endpoints":[{"addresses":["fd00::10"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n1","targetRef":{"kind":"Pod","name":"epp-1","namespace":"ns"}}],` +
		`"kind":"EndpointSlice",` +
		`"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":"penstock.llm-d.ai","kubernetes.io/service-name":"epp"},"name":"epp-leader6","namespace":"ns",` +
		`"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"epp","uid":"u1"}],"resourceVersion":"V"},` +
		`"ports":[{"appProtocol":"grpc","name":"grpc-ext-proc","port":9102,"protocol":"TCP"},{"name":"zmq","port":5557,"protocol":"TCP"}]}`
	s.mu.Lock()
	version := s.slices["epp-leader6"]["metadata"].(map[string]any)["resourceVersion"].(string)
	s.mu.Unlock()
	if got := strings.Replace(string(got), `"resourceVersion":"`+version+`"`, `"resourceVersion":"V"`, 1); got != want {
		t.Errorf("the slice is\n%s\nwant\n%s", got, want)
	}

	s.change(func() { s.put("epp-leader", nil) })
	s.until(t, "deleted", ours)
	s.change(func() {
		s.slices["epp-leader"]["endpoints"] = []any{map[string]any{"addresses": []any{"10.0.0.1"}}}
		s.put("epp-leader", s.slices["epp-leader"])
	})
	s.until(t, "edited", ours)
	s.change(func() {
		s.slices["epp-leader"]["endpoints"] = append(s.slices["epp-leader"]["endpoints"].([]any), map[string]any{"addresses": []any{"10.0.0.8"}})
		s.put("epp-leader", s.slices["epp-leader"])
	})
	s.until(t, "another beside us", ours)
	s.change(func() {
		addresses := s.slices["epp-leader"]["endpoints"].([]any)[0].(map[string]any)
		addresses["addresses"] = append(addresses["addresses"].([]any), "10.0.0.8")
		s.put("epp-leader", s.slices["epp-leader"])
	})
	s.until(t, "another address", ours)
	s.change(func() {
		s.slices["epp-leader"]["endpoints"].([]any)[0].(map[string]any)["conditions"].(map[string]any)["ready"] = false
		s.put("epp-leader", s.slices["epp-leader"])
	})
	s.wait(t, "made unready", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.slices["epp-leader"]["endpoints"].([]any)[0].(map[string]any)["conditions"].(map[string]any)["ready"] == true
	})

	// A release that goes back to a single picker: what Kubernetes says counts, and what we said goes.
	s.change(func() {
		s.service = `"selector":{"app":"epp"},`
		s.put("epp-klmno", foreign("epp-klmno", ofSelectors))
	})
	s.until(t, "a selector", "epp-klmno mine")
	s.wait(t, "said", func() bool { return strings.Contains(s.log.String(), "it has a selector") })
	s.change(func() { s.service = `"ipFamilies":["IPv6"],` })
	s.until(t, "without a selector, and with one family", "epp-leader6=fd00::10 mine")
}

// TestFrontHandsOver: what the Service leads to stays while we drain, for the next leader to overwrite; what nobody has
// overwritten when we are gone is removed.
func TestFrontHandsOver(t *testing.T) {
	for _, next := range []bool{true, false} {
		s := newStanding(t, "10.0.0.7")
		s.leads.Store(true)
		s.until(t, "when we lead", "epp-leader=10.0.0.7")
		s.wait(t, "watched", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.asked["WATCH"] > 0
		})
		s.leads.Store(false)
		want := ""
		if next {
			want = "epp-leader=10.0.0.8"
			s.change(func() {
				s.slices["epp-leader"]["endpoints"] = []any{map[string]any{"addresses": []any{"10.0.0.8"}}}
				s.put("epp-leader", s.slices["epp-leader"])
			})
		} else if got := s.names(); got != "epp-leader=10.0.0.7" {
			t.Errorf("while nobody leads: %q", got)
		}
		s.stop()
		if got := s.names(); got != want {
			t.Errorf("at the end, another leads %v: got %q, want %q", next, got, want)
		}
	}
}

// TestFrontContested: another that leads the Service to itself while we lead is named, once.
func TestFrontContested(t *testing.T) {
	s := newStanding(t, "10.0.0.7")
	other := func() {
		s.change(func() {
			e := s.slices["epp-leader"]["endpoints"].([]any)[0].(map[string]any)
			e["addresses"], e["targetRef"] = []any{"10.0.0.8"}, map[string]any{"kind": "Pod", "name": "other-1", "namespace": "ns"}
			s.put("epp-leader", s.slices["epp-leader"])
		})
	}
	const line = "each needs a service of its own"
	here := func(want bool) {
		s.wait(t, fmt.Sprint("here: ", want), func() bool { here, _ := s.front.State(); return here == want })
	}
	for range 3 { // what another does while we do not lead is right
		s.leads.Store(true)
		s.until(t, "when we lead", "epp-leader=10.0.0.7")
		here(true)
		s.leads.Store(false)
		here(false)
		other()
	}
	s.leads.Store(true)
	s.until(t, "when we lead again", "epp-leader=10.0.0.7")
	if here(true); strings.Contains(s.log.String(), line) {
		t.Fatal(s.log.String())
	}
	for range 3 {
		other()
		s.until(t, "when another led it to itself", "epp-leader=10.0.0.7")
		s.wait(t, line, func() bool { return strings.Contains(s.log.String(), line) })
	}
	if n := strings.Count(s.log.String(), line); n != 1 || !strings.Contains(s.log.String(), "pod=other-1") {
		t.Errorf("said %d times:\n%s", n, s.log.String())
	}
}

// TestFrontWithoutPermission: what is missing is named, and is tried again.
func TestFrontWithoutPermission(t *testing.T) {
	const slices = " /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
	for _, c := range []struct{ denied, want string }{
		{"GET /api/v1/namespaces/ns/services", "may not get services in namespace ns: grant get of services, get, list, watch, create, patch and delete of endpointslices"},
		{"GET" + slices, "may not list endpointslices.discovery.k8s.io in namespace ns"},
		{"PATCH" + slices, "may not patch endpointslices.discovery.k8s.io in namespace ns"},
		{"WATCH" + slices, "may not watch endpointslices.discovery.k8s.io in namespace ns"},
	} {
		s := newStanding(t, "10.0.0.7")
		s.change(func() { s.denied = c.denied })
		s.leads.Store(true)
		s.wait(t, c.want, func() bool { return strings.Contains(s.log.String(), c.want) })
		s.change(func() { s.denied = "" })
		s.until(t, "granted", "epp-leader=10.0.0.7")
		s.stop()
	}
}

// TestFrontByName: a Service whose port is a name of the pods' is told of, since it has no pods.
func TestFrontByName(t *testing.T) {
	s := newStanding(t, "10.0.0.7")
	s.change(func() { s.target = `"grpc"` })
	s.leads.Store(true)
	s.wait(t, "said", func() bool { return strings.Contains(s.log.String(), "write its number") })
}

// TestAddresses: one of each family, and what is an IPv4 address is one however it is written.
func TestAddresses(t *testing.T) {
	got := Addresses("", "::ffff:10.0.0.7", "10.0.0.8", "fd00::1%eth0", "none")
	if want := []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::1")}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
