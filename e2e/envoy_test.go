// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// served asks until the gateway answers 200, and then forgets what the engines saw.
func served(t *testing.T, g *rig.Gateway, engines []*rig.Engine) {
	t.Helper()
	rig.Eventually(t, "the picker to be asked and to answer", func() error {
		if a := rig.Ask(t, g.HTTP, "warm up"); a.Status != http.StatusOK {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	for _, e := range engines {
		e.Forget()
	}
}

// TestEnvoySDKs is TestDev behind Envoy: the shipped configuration, TLS, engine processes.
func TestEnvoySDKs(t *testing.T) {
	engines := rig.Sims(t, 4, "m")
	gateway, _ := rig.EPP(t, nil, engines...)
	gateway.Ready(t, 4)
	served(t, gateway, nil)
	for _, client := range rig.Clients {
		t.Run(client.Language, func(t *testing.T) {
			rig.CheckTurns(t, client.Chat(t, "http://"+gateway.HTTP, 8), 8)
		})
	}
	used := 0
	for _, e := range engines {
		if n, err := rig.Metric(e, "vllm:request_success_total"); err != nil {
			t.Error(err)
		} else if n > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("24 conversations were all served by one engine")
	}
}

// TestEnvoyBodies sends long prompts, with a length and in chunks: they arrive byte for byte.
func TestEnvoyBodies(t *testing.T) {
	engines := rig.Engines(t, 2)
	gateway, _ := rig.EPP(t, []string{"--plaintext"}, rig.Addrs(engines)...)
	gateway.Ready(t, 2)
	served(t, gateway, engines)
	for _, size := range []int{1 << 20, 8 << 20} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d MiB, chunked %v", size>>20, chunked), func(t *testing.T) {
				body := strings.Replace(rig.Body("PROMPT", false), "PROMPT", strings.Repeat(`héllo \u00e9 `, size/14), 1)
				var reader io.Reader = strings.NewReader(body)
				if chunked {
					reader = io.MultiReader(reader) // of unknown length
				}
				if a := rig.Post(t, gateway.HTTP, reader, nil); a.Status != http.StatusOK {
					t.Fatalf("%d bytes: %+v", len(body), a)
				}
				seen := append(engines[0].Seen(), engines[1].Seen()...)
				sum := sha256.Sum256([]byte(body))
				if len(seen) != 1 || seen[0].SHA256 != hex.EncodeToString(sum[:]) {
					t.Errorf("sent %d bytes, the engines got %+v", len(body), seen)
				}
				for _, e := range engines {
					e.Forget()
				}
			})
		}
	}
}

// TestEnvoyDrain restarts the picker: it lets go of the streams that are open only when they have
// ended, and its successor at the same address is asked next.
func TestEnvoyDrain(t *testing.T) {
	engines := rig.Engines(t, 2)
	gateway, _ := rig.EPP(t, nil, rig.Addrs(engines)...)
	gateway.Ready(t, 2)
	served(t, gateway, engines)
	releases := []func(){engines[0].Hold(), engines[1].Hold()}
	var streams []*rig.Stream
	for i := range 20 {
		streams = append(streams, rig.Open(t, gateway.HTTP, fmt.Sprintf("stream %d", i)))
	}
	gateway.Signal(syscall.SIGTERM)
	rig.Eventually(t, "the picker to take no more", func() error {
		if a := rig.Ask(t, gateway.HTTP, "after"); a.Status == http.StatusOK {
			return fmt.Errorf("a request was still served")
		}
		return nil
	})
	for _, release := range releases {
		release()
	}
	for i, s := range streams {
		if err := s.Rest(); err != nil {
			t.Errorf("stream %d broke: %v", i, err)
		}
	}
	if code := gateway.Wait(t); code != 0 {
		t.Errorf("SIGTERM ended the picker with code %d", code)
	}
	gateway.Restart(t)
	served(t, gateway, engines)
}

// TestEnvoyPickerKilled kills the picker while clients stream, in both failure modes. In both, an
// answer that passes through the picker breaks (it never ends as if it were whole), and
// service is back soon after the picker is. In between FailClose refuses and FailOpen serves.
func TestEnvoyPickerKilled(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			engines := rig.Engines(t, 3)
			var flags []string
			if mode == "FailOpen" {
				flags = rig.FailOpen(rig.Addrs(engines)...)
			}
			gateway, _ := rig.EPP(t, flags, rig.Addrs(engines)...)
			gateway.Ready(t, 3)
			served(t, gateway, engines)

			var releases []func()
			for _, e := range engines {
				releases = append(releases, e.Hold())
			}
			var streams []*rig.Stream
			for i := range 6 {
				streams = append(streams, rig.Open(t, gateway.HTTP, fmt.Sprintf("stream %d", i)))
			}
			stop, traffic, answers := make(chan struct{}), sync.WaitGroup{}, make(chan rig.Answer, 100000)
			for i := range 4 {
				traffic.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
							answers <- rig.Ask(t, gateway.HTTP, fmt.Sprintf("client %d, request %d", i, n))
						}
					}
				})
			}
			gateway.Signal(syscall.SIGKILL)
			gateway.Wait(t)
			for _, release := range releases {
				release()
			}
			for i, s := range streams {
				if err := s.Rest(); err == nil {
					t.Logf("stream %d survived", i)
				}
			}
			want := http.StatusServiceUnavailable
			if mode == "FailOpen" {
				want = http.StatusOK
			}
			rig.Eventually(t, fmt.Sprintf("status %d without a picker", want), func() error {
				if a := rig.Ask(t, gateway.HTTP, "while the picker is dead"); a.Status != want {
					return fmt.Errorf("%+v", a)
				}
				return nil
			})
			for i := range 30 {
				if a := rig.Ask(t, gateway.HTTP, fmt.Sprintf("%d while the picker is dead", i)); a.Status != want {
					t.Errorf("without a picker: %+v, want %d", a, want)
				}
			}
			gateway.Restart(t)
			served(t, gateway, engines)
			close(stop)
			traffic.Wait()
			close(answers)
			count := map[string]int{}
			for a := range answers {
				switch {
				case a.Broken != nil:
					count["broken: "+a.Broken.Error()]++
				case a.Status == http.StatusOK && strings.Count(a.Body, "word") != rig.Events:
					t.Errorf("half an answer: %+v", a)
				default:
					count[fmt.Sprint(a.Status)]++
				}
			}
			t.Logf("the traffic's answers: %v", count)
			for status := range count {
				if status != "200" && status != "500" && status != "503" {
					t.Errorf("the traffic got %v", count)
				}
			}
		})
	}
}

// TestEnvoyFallback loses the picker and an endpoint: FailOpen serves from the endpoints left.
func TestEnvoyFallback(t *testing.T) {
	engines := rig.Engines(t, 3)
	gateway, _ := rig.EPP(t, rig.FailOpen(rig.Addrs(engines)...), rig.Addrs(engines)...)
	gateway.Ready(t, 3)
	served(t, gateway, engines)
	gateway.Signal(syscall.SIGKILL)
	gateway.Wait(t)
	engines[1].Stop()
	for i := range 30 {
		if a := rig.Ask(t, gateway.HTTP, fmt.Sprintf("request %d", i)); a.Status != http.StatusOK {
			t.Errorf("request %d: %+v", i, a)
		}
	}
	if len(engines[0].Seen()) == 0 || len(engines[2].Seen()) == 0 {
		t.Errorf("the endpoints that were left got %d and %d requests", len(engines[0].Seen()), len(engines[2].Seen()))
	}
}

// TestEnvoyDestination names a destination as a client, with a picker and without: nobody dials it.
func TestEnvoyDestination(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			trap := rig.Trap(t)
			engines := rig.Engines(t, 2)
			var flags []string
			if mode == "FailOpen" {
				flags = rig.FailOpen(rig.Addrs(engines)...)
			}
			gateway, _ := rig.EPP(t, flags, rig.Addrs(engines)...)
			gateway.Ready(t, 2)
			served(t, gateway, engines)
			lure := func(want int) {
				t.Helper()
				for _, name := range []string{"x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint", "x-prefiller-host-port"} {
					for _, value := range [][]string{{trap}, {trap, trap}, {trap + "," + engines[0].Addr}} {
						a := rig.Post(t, gateway.HTTP, bytes.NewBufferString(rig.Body("hello", false)), http.Header{name: value})
						if a.Status != want {
							t.Errorf("%s: %q: %+v, want %d", name, value, a, want)
						}
					}
				}
			}
			lure(http.StatusOK)
			gateway.Signal(syscall.SIGKILL)
			gateway.Wait(t)
			if mode == "FailOpen" {
				lure(http.StatusOK)
			} else {
				lure(http.StatusServiceUnavailable)
			}
			for _, e := range engines {
				for _, s := range e.Seen() {
					if got := s.Header.Get("x-prefiller-host-port"); got != "" {
						t.Errorf("an engine was told to use %s", got)
					}
				}
			}
		})
	}
}
