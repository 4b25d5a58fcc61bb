// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestFront: the Service leads to us once we lead, tried again until it does, and not before. Its ports are the slice's.
func TestFront(t *testing.T) {
	var leads, selector atomic.Bool
	selector.Store(true)
	patched := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v1/namespaces/ns/services/epp":
			more := ""
			if selector.Load() {
				more = `"selector":{"app":"epp"},`
			}
			fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"epp"},"spec":{%s"ports":[{"name":"grpc-ext-proc","port":9002,"targetPort":9102,"protocol":"TCP"},{"name":"zmq","port":5557,"protocol":"TCP"}]}}`, more)
		case "PATCH /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/epp-leader6":
			b, _ := io.ReadAll(r.Body)
			patched <- r.Header.Get("Content-Type") + " " + r.URL.RawQuery + " " + string(b)
			w.Write(b)
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}))
	defer server.Close()
	var log lockedBuffer
	f := &Front{Config: &rest.Config{Host: server.URL}, Namespace: "ns", Service: "epp", Pod: "epp-1", IP: "fd00::10", Node: "n1", Leads: leads.Load, Log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	leads.Store(true)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), "it has a selector"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a Service with a selector is not told of: %s", log.String())
		}
	}
	if len(patched) > 0 {
		t.Errorf("a Service with a selector was led to us: %s", <-patched)
	}
	selector.Store(false)
	got := <-patched
	kind, body, _ := strings.Cut(got, " {")
	if want := "application/apply-patch+yaml fieldManager=penstock&force=true"; kind != want {
		t.Errorf("patched by %s, want %s", kind, want)
	}
	const want = `{"addressType":"IPv6","apiVersion":"discovery.k8s.io/v1",` +
		`"endpoints":[{"addresses":["fd00::10"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n1","targetRef":{"kind":"Pod","name":"epp-1","namespace":"ns"}}],` +
		`"kind":"EndpointSlice",` +
		`"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":"penstock.dev","kubernetes.io/service-name":"epp"},"name":"epp-leader6","namespace":"ns"},` +
		`"ports":[{"name":"grpc-ext-proc","port":9102,"protocol":"TCP"},{"name":"zmq","port":5557,"protocol":"TCP"}]}`
	var plain bytes.Buffer
	if err := json.Compact(&plain, []byte("{"+body)); err != nil || plain.String() != want {
		t.Errorf("%v: the slice is\n%s\nwant\n%s", err, plain.String(), want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFrontWithoutAddress: a pod that does not know its address says how it gets to know it.
func TestFrontWithoutAddress(t *testing.T) {
	f := &Front{Namespace: "ns", Service: "epp", Log: slog.New(slog.DiscardHandler)}
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "set POD_IP to status.podIP") {
		t.Errorf("got %v", err)
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
