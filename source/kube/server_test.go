// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/penstock-project/penstock/fleet"
)

// server is an API server as far as reading goes: it lists, watches and discovers, forbids and goes away. e2e/kube has the real one.
type server struct {
	*httptest.Server
	mu         sync.Mutex
	kinds      map[string]string         // what plurals are called
	groups     map[string][]string       // plurals by group and version
	objects    map[string]map[string]any // by group and version, plural, namespace and name
	versions   int
	forbidden  map[string]bool   // "verb plural", or "verb plural namespace"
	mute       bool              // changes make no events
	asked      map[string]int    // by "verb plural"
	writes     []string          // what was written, or was to be
	events     map[string]string // by name
	bookmark   bool              // streams are told how far they are
	bookmarked map[string]int    // by plural, how far streams were told
	conflicts  int               // writes that find that another was first
	changed    chan struct{}
	left       chan struct{} // closed when streams are to end
	log        []event
}

type event struct {
	version int
	kind    string
	path    string // with the namespace
	object  map[string]any
}

func newServer(t *testing.T) *server {
	s := &server{
		kinds:  map[string]string{"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap", "inferencepools": "InferencePool", "inferenceobjectives": "InferenceObjective", "inferencemodelrewrites": "InferenceModelRewrite"},
		groups: map[string][]string{"v1": {"pods", "nodes", "configmaps"}, "inference.networking.k8s.io/v1": {"inferencepools"}}, objects: map[string]map[string]any{},
		forbidden: map[string]bool{}, events: map[string]string{}, bookmarked: map[string]int{}, asked: map[string]int{}, changed: make(chan struct{}), left: make(chan struct{}),
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.leave)
	return s
}

func (s *server) config() *rest.Config { return &rest.Config{Host: s.URL} }

// leave ends the server; come lets it answer again, at the same address.
func (s *server) leave() {
	s.mu.Lock()
	close(s.left) // a client that connects just now must not keep Close waiting
	s.mu.Unlock()
	s.CloseClientConnections()
	s.Close()
}

func (s *server) come(t *testing.T) {
	lis, err := net.Listen("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	again := httptest.NewUnstartedServer(s)
	_ = again.Listener.Close()
	again.Listener = lis
	s.mu.Lock()
	s.left = make(chan struct{})
	s.mu.Unlock()
	again.Start()
	s.Server = again
}

// with changes the server and wakes those that watch.
func (s *server) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// put creates or replaces an object; the JSON has what matters.
func (s *server) put(text string, a ...any) {
	var o map[string]any
	if err := json.Unmarshal(fmt.Appendf(nil, text, a...), &o); err != nil {
		panic(err)
	}
	s.change(o, false)
}

// remove deletes an object that was put so.
func (s *server) remove(text string, a ...any) {
	var o map[string]any
	if err := json.Unmarshal(fmt.Appendf(nil, text, a...), &o); err != nil {
		panic(err)
	}
	s.change(o, true)
}

func (s *server) change(o map[string]any, gone bool) {
	s.with(func() {
		meta := o["metadata"].(map[string]any)
		plural := ""
		for p, kind := range s.kinds {
			if kind == o["kind"] {
				plural = p
			}
		}
		path := fmt.Sprintf("%v %s %v", o["apiVersion"], plural, meta["namespace"])
		key := fmt.Sprintf("%s %v", path, meta["name"])
		s.versions++
		meta["resourceVersion"] = fmt.Sprint(s.versions)
		kind := "MODIFIED"
		if _, known := s.objects[key]; !known {
			kind = "ADDED"
		}
		s.objects[key] = o
		if gone {
			kind = "DELETED"
			delete(s.objects, key)
		}
		if s.mute {
			s.versions--
			return
		}
		s.log = append(s.log, event{s.versions, kind, path, o})
	})
}

// drop forgets the events that nobody saw, as a server does that compacted them.
func (s *server) drop() { s.with(func() { s.versions++; s.log = nil }) }

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/apis" {
		s.mu.Lock()
		stranger := s.groups["v1"] == nil
		s.mu.Unlock()
		if stranger {
			refuse(w, 404, "NotFound")
		} else {
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIGroupList", "apiVersion": "v1"})
		}
		return
	}
	path := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/"), "/")
	parts := strings.Split(path, "/")
	version, n := parts[0], 1
	if strings.HasPrefix(r.URL.Path, "/apis/") && len(parts) == 1 {
		s.group(w, path)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/apis/") {
		version, n = parts[0]+"/"+parts[1], 2
	}
	s.mu.Lock()
	plurals, served := s.groups[version]
	s.mu.Unlock()
	switch {
	case !served:
		refuse(w, 404, "NotFound")
	case len(parts) == n:
		var list []map[string]string
		for _, p := range plurals {
			list = append(list, map[string]string{"name": p})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list})
	default:
		namespace, plural := "", parts[n]
		if plural == "namespaces" {
			namespace, plural = parts[n+1], parts[n+2]
		}
		if r.Method != http.MethodGet {
			s.write(w, r, version, plural, namespace, parts)
			return
		}
		s.serve(w, r, version, plural, namespace)
	}
}

// group tells the versions of a group.
func (s *server) group(w http.ResponseWriter, group string) {
	list := []map[string]string{}
	s.mu.Lock()
	for _, v := range slices.Sorted(maps.Keys(s.groups)) {
		if g, version, ok := strings.Cut(v, "/"); ok && g == group {
			list = append(list, map[string]string{"groupVersion": v, "version": version})
		}
	}
	s.mu.Unlock()
	if len(list) == 0 {
		refuse(w, 404, "NotFound")
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": list})
}

// write takes events, and conditions of objects, as they are; conflicts come first.
func (s *server) write(w http.ResponseWriter, r *http.Request, version, plural, namespace string, parts []string) {
	body, err := io.ReadAll(r.Body)
	if err == nil && r.Header.Get("Content-Type") == "application/vnd.kubernetes.protobuf" {
		err = errors.New("want JSON")
	}
	var o map[string]any
	if err == nil {
		err = json.Unmarshal(body, &o)
	}
	if err != nil {
		refuse(w, 400, "BadRequest")
		return
	}
	verb := strings.ToLower(r.Method)
	if parts[len(parts)-1] == "status" {
		plural += "/status"
	}
	s.mu.Lock()
	forbidden, conflict := s.forbidden[verb+" "+plural], s.conflicts > 0
	if conflict {
		s.conflicts--
	}
	switch {
	case plural == "events" && verb == "post":
		about, _ := o["involvedObject"].(map[string]any)
		text := fmt.Sprintf("event %v %v %v: %v", about["kind"], about["name"], o["reason"], o["message"])
		meta, _ := o["metadata"].(map[string]any)
		s.events[fmt.Sprint(meta["name"])] = text
		s.writes = append(s.writes, text)
	case plural == "events": // is counted up
		s.writes = append(s.writes, s.events[parts[len(parts)-1]])
	default:
		s.writes = append(s.writes, fmt.Sprintf("%s %s %s", verb, plural, parts[len(parts)-2]))
	}
	var was map[string]any
	if plural != "events" {
		was = s.objects[fmt.Sprintf("%s %s %s %s", version, strings.TrimSuffix(plural, "/status"), namespace, parts[len(parts)-2])]
	}
	s.mu.Unlock()
	switch {
	case forbidden:
		refuse(w, 403, "Forbidden")
	case conflict:
		refuse(w, 409, "Conflict")
	case plural == "events":
		w.WriteHeader(201)
		_, _ = w.Write(body)
	case was == nil:
		refuse(w, 404, "NotFound")
	default:
		now := maps.Clone(was)
		now["metadata"] = maps.Clone(was["metadata"].(map[string]any))
		now["status"] = o["status"]
		s.change(now, false)
		_ = json.NewEncoder(w).Encode(now)
	}
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "said: " + reason})
}

func (s *server) serve(w http.ResponseWriter, r *http.Request, version, plural, namespace string) {
	q := r.URL.Query()
	verb := "list"
	if q.Get("watch") != "" {
		verb = "watch"
	}
	s.mu.Lock()
	s.asked[verb+" "+plural]++
	forbidden, served := s.forbidden[verb+" "+plural] || s.forbidden[verb+" "+plural+" "+namespace], slices.Contains(s.groups[version], plural)
	s.mu.Unlock()
	name, named := strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	mine := func(path string, o map[string]any) bool {
		f := strings.Fields(path)
		return f[0] == version && f[1] == plural && (namespace == "" || f[2] == namespace) && (!named || o["metadata"].(map[string]any)["name"] == name)
	}
	switch {
	case forbidden:
		refuse(w, 403, "Forbidden")
	case !served:
		refuse(w, 404, "NotFound")
	case verb == "list":
		s.mu.Lock()
		items := []any{}
		for _, key := range slices.Sorted(maps.Keys(s.objects)) {
			if o := s.objects[key]; mine(key, o) {
				items = append(items, asAsked(o))
			}
		}
		kind := s.kinds[plural] + "List"
		if plural == "nodes" {
			kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		list := map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.versions)}, "items": items}
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(list)
	case q.Get("sendInitialEvents") != "":
		refuse(w, 422, "Invalid") // as a server that does not stream lists
	default:
		from := 0
		_, _ = fmt.Sscan(q.Get("resourceVersion"), &from)
		s.stream(w, r, from, version, plural, mine)
	}
}

// asAsked is an object as it is asked for: of nodes we want the metadata alone.
func asAsked(o map[string]any) map[string]any {
	if o["kind"] == "Node" {
		o = maps.Clone(o)
		o["kind"], o["apiVersion"] = "PartialObjectMetadata", "meta.k8s.io/v1"
	}
	return o
}

// stream sends events until the kind is gone, the server is down, or the client leaves.
func (s *server) stream(w http.ResponseWriter, r *http.Request, from int, version, plural string, mine func(string, map[string]any) bool) {
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	enc := json.NewEncoder(w)
	for {
		s.mu.Lock()
		var due []event
		for _, e := range s.log {
			if e.version > from && mine(e.path, e.object) {
				due = append(due, e)
			}
		}
		served := slices.ContainsFunc(slices.Collect(maps.Values(s.groups)), func(p []string) bool { return slices.Contains(p, plural) })
		compacted := len(s.log) == 0 && from < s.versions || len(s.log) > 0 && s.log[0].version > from+1
		changed, left, now := s.changed, s.left, s.versions
		s.mu.Unlock()
		switch {
		case compacted:
			_ = enc.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}})
			return
		case !served:
			panic(http.ErrAbortHandler)
		}
		for _, e := range due {
			if enc.Encode(map[string]any{"type": e.kind, "object": asAsked(e.object)}) != nil {
				return
			}
		}
		from = now
		s.mu.Lock()
		bookmark := s.bookmark
		s.mu.Unlock()
		if bookmark {
			mark := map[string]any{"apiVersion": version, "kind": s.kinds[plural], "metadata": map[string]any{"resourceVersion": fmt.Sprint(now)}}
			if enc.Encode(map[string]any{"type": "BOOKMARK", "object": mark}) != nil {
				return
			}
		}
		w.(http.Flusher).Flush()
		if bookmark {
			s.mu.Lock()
			s.bookmarked[plural] = now
			s.mu.Unlock()
		}
		select {
		case <-changed:
		case <-left:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
	}
}

const (
	aPool = `{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePool","metadata":{"namespace":%q,"name":%q,"managedFields":[{"manager":"x"}]},` +
		`"spec":{"selector":{"matchLabels":{"app":%q}},"targetPorts":[{"number":8000}],"endpointPickerRef":{"name":"pick","port":{"number":9002}}}}`
	aPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,"uid":%q,"labels":{"app":%q}},"spec":{"nodeName":"n1","containers":[{"name":"m","image":"x"}]},` +
		`"status":{"phase":"Running","podIP":%q,"hostIP":"10.0.0.1","conditions":[{"type":"Ready","status":%q}]}}`
	anObjective = `{"apiVersion":%q,"kind":"InferenceObjective","metadata":{"namespace":"a","name":%q},"spec":{"priority":%d,%s}}`
)

// told is what a cluster said, by source; objects are the names of the last list.
type told struct {
	t             *testing.T
	c             *Cluster
	mu            sync.Mutex
	sources       map[string][]string
	objects       []*Object
	look          func() // called for each list
	failed        map[string]int
	differs, most int
	log           lines
	forgotten     []string
	judged        int // how often objects were told
	fewest        int // endpoints that were told at once
	compared      bool
	specs         []fleet.EndpointSpec // that were told last
	changed       chan struct{}
}

func (w *told) Failed(resource, verb, reason string) {
	w.note(func() { w.failed[resource+" "+verb+" "+reason]++ })
}
func (w *told) Forget(namespace string) {
	w.note(func() { w.forgotten = append(w.forgotten, namespace) })
}
func (w *told) Differs(_, _ string, n int) { w.note(func() { w.differs, w.most = n, max(w.most, n) }) }

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(b))
	return len(b), nil
}

// of are the lines that have all these words.
func (l *lines) of(words ...string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.text {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			out = append(out, line)
		}
	}
	return out
}

func (w *told) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// limit is how long a condition may take.
var limit = time.Minute

// until waits for a condition, which is checked whenever something was told, and every now and then.
func (w *told) until(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.After(limit)
	for {
		w.mu.Lock()
		done, changed := ok(), w.changed
		w.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // readiness is not told
		case <-deadline:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("waited for %s; endpoints %v, objects %v, failed %v, ready: %v", what, w.sources, w.objects, w.failed, w.c.Ready())
		}
	}
}

// endpoints reports whether exactly these are told of a namespace.
func (w *told) endpoints(namespace string, want ...string) func() bool {
	return func() bool { return slices.Equal(w.sources[Source(namespace)], want) }
}

func (w *told) object(name string) *Object {
	for _, o := range w.objects {
		if o.String() == name {
			return o
		}
	}
	return nil
}

// follow runs a cluster until the test ends.
func follow(t *testing.T, s *server, o Options) *told {
	t.Helper()
	return followBy(t, s, o, func(w *told) func(context.Context, []*Object) []Verdict { return w.judge })
}

// followBy is follow with a judge of objects.
func followBy(t *testing.T, s *server, o Options, judge func(*told) func(context.Context, []*Object) []Verdict) *told {
	t.Helper()
	w := &told{t: t, sources: map[string][]string{}, failed: map[string]int{}, changed: make(chan struct{})}
	o.Config, o.Metrics, o.Log = s.config(), w, slog.New(slog.NewTextHandler(&w.log, nil))
	o.Endpoints = w.take
	o.Objects = judge(w)
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.c = c
	run(t, c.Run)
	return w
}
