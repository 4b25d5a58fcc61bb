// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
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

// kill ends the picker as a crash does, and waits until Envoy has noticed and answers with want: a
// request or two that were on their way are refused in both modes.
func kill(t *testing.T, g *rig.Gateway, want int) {
	t.Helper()
	g.Signal(syscall.SIGKILL)
	g.Wait(t)
	rig.Eventually(t, fmt.Sprintf("status %d without a picker", want), func() error {
		if a := rig.Ask(t, g.HTTP, "is anyone there"); a.Status != want {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
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

// TestEnvoyDrain restarts the picker. It ends only after the streams that are open, unbroken, and
// what is asked while there is none waits for its successor.
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
		c, err := net.Dial("tcp", gateway.Picker)
		if err != nil {
			return nil
		}
		c.Close()
		return errors.New("it still listens")
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
	var requests sync.WaitGroup
	for i := range 20 {
		requests.Go(func() {
			if a := rig.Ask(t, gateway.HTTP, fmt.Sprintf("request %d", i)); a.Status != http.StatusOK {
				t.Errorf("asked during the restart: %+v", a)
			}
		})
	}
	gateway.Restart(t)
	requests.Wait()
}

// TestEnvoyPickerKilled kills the picker while clients stream, in both failure modes. In both, an
// answer that passes through the picker breaks (it never ends as if it were whole), and
// service is back soon after the picker is. In between FailClose refuses and FailOpen serves.
func TestEnvoyPickerKilled(t *testing.T) {
	for _, mode := range []string{"FailClose", "FailOpen"} {
		t.Run(mode, func(t *testing.T) {
			engines := rig.Engines(t, 3)
			var flags []string
			want := http.StatusServiceUnavailable
			if mode == "FailOpen" {
				flags = rig.FailOpen(rig.Addrs(engines)...)
				want = http.StatusOK
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
			kill(t, gateway, want)
			for _, release := range releases {
				release()
			}
			for i, s := range streams {
				if err := s.Rest(); err == nil {
					t.Errorf("stream %d ended as if it were whole: who passed it on?", i)
				}
			}
			var requests sync.WaitGroup
			for i := range 30 {
				requests.Go(func() {
					a := rig.Ask(t, gateway.HTTP, fmt.Sprintf("%d while the picker is dead", i))
					if a.Status != want {
						t.Errorf("without a picker: %+v, want %d", a, want)
					}
					if want != http.StatusOK && !strings.HasPrefix(a.Body, `{"error":{"message":"`) {
						t.Errorf("an SDK cannot read this error: %+v", a)
					}
				})
			}
			requests.Wait()
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
	kill(t, gateway, http.StatusOK)
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
			want := http.StatusServiceUnavailable
			if mode == "FailOpen" {
				flags = rig.FailOpen(rig.Addrs(engines)...)
				want = http.StatusOK
			}
			gateway, _ := rig.EPP(t, flags, rig.Addrs(engines)...)
			gateway.Ready(t, 2)
			served(t, gateway, engines)
			lure := func(want int) {
				t.Helper()
				var requests sync.WaitGroup
				for _, name := range []string{"x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint", "x-prefiller-host-port"} {
					for _, value := range [][]string{{trap}, {trap, trap}, {trap + "," + engines[0].Addr}} {
						requests.Go(func() {
							a := rig.Post(t, gateway.HTTP, strings.NewReader(rig.Body("hello", false)), http.Header{name: value})
							if want != 0 && a.Status != want {
								t.Errorf("%s: %q: %+v, want %d", name, value, a, want)
							}
						})
					}
				}
				requests.Wait()
			}
			lure(http.StatusOK)
			gateway.Signal(syscall.SIGKILL)
			gateway.Wait(t)
			lure(0) // whatever they are answered while Envoy finds out
			kill(t, gateway, want)
			lure(want)
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
