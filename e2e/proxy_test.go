// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestProxySpreads opens four streams at once: no two on one of four idle endpoints.
func TestProxySpreads(t *testing.T) {
	engines := rig.Engines(t, 4)
	gateway := rig.Serve(t, rig.Addrs(engines)...)
	gateway.Ready(t, 4)
	homes := map[string]int{}
	var streams []*rig.Stream
	for _, e := range engines {
		defer e.Hold()()
	}
	for i := range 4 {
		s := rig.Open(t, gateway.HTTP, fmt.Sprintf("conversation %d: ", i)+strings.Repeat(fmt.Sprintf("word%d ", i), 500))
		streams = append(streams, s)
		homes[s.Engine()]++
	}
	if len(homes) != 4 {
		t.Errorf("4 streams on %d of 4 endpoints: %v", len(homes), homes)
	}
	for _, s := range streams {
		s.Leave()
	}
}

// TestProxyEngineDies kills one of four engines, idle and in mid-stream, and brings it back.
func TestProxyEngineDies(t *testing.T) {
	engines := rig.Engines(t, 4)
	gateway := rig.Serve(t, rig.Addrs(engines)...)
	gateway.Ready(t, 4)

	release := engines[2].Hold()
	var stream *rig.Stream
	for i := 0; stream == nil; i++ { // until one of them is on engine 2
		if s := rig.Open(t, gateway.HTTP, fmt.Sprintf("stream %d", i)); s.Engine() == engines[2].Addr {
			stream = s
		} else if err := s.Rest(); err != nil {
			t.Fatal(err)
		}
	}
	engines[2].Stop()
	if err := stream.Rest(); err == nil {
		t.Error("the answer of a dead engine ended as if it were whole")
	}
	release()
	for i := range 60 {
		if a := rig.Ask(t, gateway.HTTP, fmt.Sprintf("request %d", i)); a.Status != http.StatusOK {
			t.Errorf("request %d with one endpoint dead: %+v", i, a)
		}
	}

	engines[2].Forget()
	engines[2].Start(t)
	n := 0
	rig.Within(t, 10*time.Second, "the healed endpoint to be used again", func() error {
		n++
		if a := rig.Ask(t, gateway.HTTP, fmt.Sprintf("healed? %d", n)); a.Status != http.StatusOK {
			t.Fatalf("request %d: %+v", n, a)
		}
		if len(engines[2].Seen()) == 0 {
			return fmt.Errorf("none of %d requests went there", n)
		}
		return nil
	})
}

// TestProxyReload edits the manifests of a running gateway: a good edit is taken, a bad one changes
// nothing and is reported.
func TestProxyReload(t *testing.T) {
	engines := rig.Engines(t, 2)
	gateway := rig.Serve(t, engines[0].Addr)
	gateway.Ready(t, 1)

	gateway.Endpoints(t, engines[1].Addr)
	rig.Eventually(t, "the second endpoint to be used instead of the first", func() error {
		a := rig.Ask(t, gateway.HTTP, "hello")
		if a.Status != http.StatusOK || a.Header.Get("X-Engine") != engines[1].Addr {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	gateway.Write(t, "picker.yaml", strings.ReplaceAll(gateway.PickerConfig(), "queue-scorer", "queue-scorrer"))
	rig.Eventually(t, "the log to name what is wrong", func() error {
		if log := gateway.Log(); !strings.Contains(log, "queue-scorrer") {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
	if a := rig.Ask(t, gateway.HTTP, "hello"); a.Status != http.StatusOK || a.Header.Get("X-Engine") != engines[1].Addr {
		t.Errorf("a bad edit changed what is served: %+v", a)
	}
	gateway.Write(t, "picker.yaml", gateway.PickerConfig())
	gateway.Endpoints(t, rig.Addrs(engines)...)
	gateway.Ready(t, 2)
}

// TestProxyClientLeaves closes a client's connection in mid-stream: the engine stops its work.
func TestProxyClientLeaves(t *testing.T) {
	engine := rig.NewEngine(t, "m")
	gateway := rig.Serve(t, engine.Addr)
	gateway.Ready(t, 1)
	release := engine.Hold()
	defer release()
	rig.Open(t, gateway.HTTP, "hello").Leave()
	rig.Within(t, 10*time.Second, "the engine to see the client leave", func() error {
		if seen := engine.Seen(); !seen[0].Left() {
			return fmt.Errorf("it works on")
		}
		return nil
	})
}

// TestProxyDrain ends the gateway with streams open: they are finished first.
func TestProxyDrain(t *testing.T) {
	engine := rig.NewEngine(t, "m")
	gateway := rig.Serve(t, engine.Addr)
	gateway.Ready(t, 1)
	release := engine.Hold()
	var streams []*rig.Stream
	for i := range 20 {
		streams = append(streams, rig.Open(t, gateway.HTTP, fmt.Sprintf("stream %d", i)))
	}
	gateway.Signal(syscall.SIGTERM)
	rig.Eventually(t, "the gateway to take no more", func() error {
		if a := rig.Ask(t, gateway.HTTP, "after"); a.Status == http.StatusOK {
			return fmt.Errorf("a request was still served")
		}
		return nil
	})
	release()
	for i, s := range streams {
		if err := s.Rest(); err != nil {
			t.Errorf("stream %d broke: %v", i, err)
		}
	}
	if code := gateway.Wait(t); code != 0 {
		t.Errorf("SIGTERM ended it with code %d", code)
	}
}
