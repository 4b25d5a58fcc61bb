// SPDX-License-Identifier: Apache-2.0

// Package vllm has two real vLLM engines, on CPU and with a tiny model, behind both doors.
package vllm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// slots is how many requests an engine runs at once; more wait in its queue.
const slots = 2

// blocks is how many blocks an engine's cache has: the tests that fill it want it small, and the longest request has to fit.
const blocks = 280

// engine is a vLLM that publishes what it has in its cache.
type engine struct {
	addr           string
	events, replay string // the ports that it publishes on, and answers what was missed; or the address that it dials
	block          int
	model          string // its folder
	*rig.Process
}

var (
	modelOnce   sync.Once
	modelFolder string
)

// model is the folder of the tiny model, with an adapter of it in adapter/.
func model(t *testing.T) string {
	t.Helper()
	modelOnce.Do(func() {
		folder, err := os.MkdirTemp("", "tiny")
		if err != nil {
			t.Fatal(err)
		}
		python := filepath.Join(rig.Tool(t, "install-vllm.sh"), "venv", "bin", "python")
		rig.Run(t, nil, python, filepath.Join(rig.Root(), "e2e", "vllm", "tiny_model.py"), folder)
		modelFolder = folder
	})
	return modelFolder
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(modelFolder)
	os.Exit(code)
}

// vllm starts engines with the model "tiny" and its adapter "ad", whose events are to be had at ports of their own.
func vllm(t *testing.T, n int) []*engine {
	t.Helper()
	var engines []*engine
	for range n {
		e := &engine{addr: rig.Addr(t), events: rig.Port(rig.Addr(t)), replay: rig.Port(rig.Addr(t)), block: 32}
		e.start(t)
		engines = append(engines, e)
	}
	for _, e := range engines {
		e.ready(t)
	}
	return engines
}

// start starts the engine, again when it was killed.
func (e *engine) start(t *testing.T) {
	t.Helper()
	e.model = model(t)
	home := rig.Tool(t, "install-vllm.sh")
	env := []string{
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", // nothing leaves the machine
		"VLLM_CPU_KVCACHE_SPACE=1",         // GiB
		"VLLM_CPU_OMP_THREADS_BIND=nobind", // the engines share the cores
		"VLLM_SERVER_DEV_MODE=1",           // which has /reset_prefix_cache
	}
	sockets := fmt.Sprintf(`"endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s"`, e.events, e.replay)
	if e.replay == "" {
		sockets = fmt.Sprintf(`"endpoint":%q`, e.events)
	}
	e.Process = rig.StartIn(t, t.TempDir(), "vllm-"+rig.Port(e.addr), env,
		filepath.Join(home, "venv", "bin", "vllm"), "serve", e.model,
		"--load-format", "dummy", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", rig.Port(e.addr),
		"--max-model-len", "8192", "--max-num-seqs", fmt.Sprint(slots), "--enforce-eager",
		"--block-size", fmt.Sprint(e.block), "--num-gpu-blocks-override", fmt.Sprint(blocks), "--enable-prompt-tokens-details",
		"--enable-lora", "--max-lora-rank", "8", "--lora-modules", "ad="+filepath.Join(e.model, "adapter"),
		"--enable-scale-out", // which lets it render
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes",
		"--kv-events-config", `{"enable_kv_cache_events":true,"publisher":"zmq",`+sockets+`,"topic":"kv@`+e.addr+`@tiny"}`)
}

// ready waits until the engine answers.
func (e *engine) ready(t *testing.T) {
	t.Helper()
	rig.Within(t, 10*time.Minute, "vLLM to start", func() error {
		if !e.Alive() {
			t.Fatal("vLLM ended")
		}
		_, err := rig.Get("http://" + e.addr + "/health")
		return err
	})
}

// addrs returns the engines' addresses.
func addrs(engines []*engine) []string {
	var list []string
	for _, e := range engines {
		list = append(list, e.addr)
	}
	return list
}

// read returns one metric of each engine, as the engine itself tells it.
func read(t *testing.T, engines []string, name string) []float64 {
	t.Helper()
	var values []float64
	for _, e := range engines {
		v, err := rig.Metric(e, name)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
	}
	return values
}

// rise returns by how much a metric of each engine grew.
func rise(before, after []float64) []float64 {
	grown := make([]float64, len(after))
	for i := range after {
		grown[i] = after[i] - before[i]
	}
	return grown
}

// endless is a request that keeps an engine busy for a minute, unless its client leaves.
func endless(prompt string) string {
	b, _ := json.Marshal(map[string]any{"model": "tiny", "max_tokens": 7000, "ignore_eos": true, "stream": true,
		"messages": []any{map[string]string{"role": "user", "content": prompt}}})
	return string(b)
}

// TestVLLM is the main job on the real thing.
func TestVLLM(t *testing.T) {
	engines := vllm(t, 2)
	t.Run("proxy", func(t *testing.T) {
		check(t, rig.Serve(t, addrs(engines)...), addrs(engines))
	})
	t.Run("envoy", func(t *testing.T) {
		gateway, _ := rig.EPP(t, nil, addrs(engines)...)
		check(t, gateway, addrs(engines))
	})
	t.Run("precise", func(t *testing.T) { precise(t, engines) })
}

func check(t *testing.T, gateway *rig.Gateway, engines []string) {
	gateway.Ready(t, 2)
	rig.Eventually(t, "the gateway to serve", func() error {
		_, err := rig.Get("http://" + gateway.HTTP + "/v1/models")
		return err
	})

	for _, client := range rig.Clients {
		t.Run(client.Language, func(t *testing.T) {
			hits := read(t, engines, "vllm:prefix_cache_hits_total")
			rig.CheckTurns(t, client.Chat(t, "http://"+gateway.HTTP, 4), 4)
			if grown := rise(hits, read(t, engines, "vllm:prefix_cache_hits_total")); grown[0]+grown[1] < 4*2*1000 {
				t.Errorf("vLLM counts %v tokens found in its prefix caches, want most of 8 prompts of 1,500", grown)
			}
		})
	}

	t.Run("anthropic", func(t *testing.T) {
		for _, turn := range rig.Messages(t, "http://"+gateway.HTTP, "tiny") {
			if turn.CompletionTokens < 1 || turn.Text == "" {
				t.Errorf("got %+v", turn)
			}
		}
	})

	// What the engines count says where each turn went.
	t.Run("conversation", func(t *testing.T) {
		prompt := "the " + gateway.HTTP + " conversation " + strings.Repeat("about rivers ", 400)
		home := -1
		for turn := range 3 {
			requests, hits := read(t, engines, "vllm:request_success_total"), read(t, engines, "vllm:prefix_cache_hits_total")
			body := strings.Replace(rig.Body(prompt, true), `"model":"m"`, `"model":"tiny"`, 1)
			if err := rig.OpenBody(t, gateway.HTTP, body).Rest(); err != nil {
				t.Fatal(err)
			}
			var at int
			rig.Eventually(t, "the engine to count the request", func() error {
				grown := rise(requests, read(t, engines, "vllm:request_success_total"))
				if grown[0]+grown[1] != 1 {
					return fmt.Errorf("requests: %v", grown)
				}
				at = int(grown[1])
				return nil
			})
			found := rise(hits, read(t, engines, "vllm:prefix_cache_hits_total"))
			switch {
			case turn == 0:
				home = at
			case at != home:
				t.Errorf("turn %d went to engine %d, the first to %d", turn+1, at, home)
			case found[home] < 500:
				t.Errorf("turn %d found %v tokens in the cache", turn+1, found)
			}
			prompt += " and then, on the other bank,"
		}
	})

	// An engine whose queue others have filled gets nothing: only its own metrics say so.
	t.Run("load", func(t *testing.T) {
		var load []*rig.Stream
		for i := range slots {
			load = append(load, rig.OpenBody(t, engines[0], endless(fmt.Sprintf("load %s %d", gateway.HTTP, i))))
		}
		ctx, leave := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		defer waiting.Wait()
		defer leave()
		for range 6 {
			request, err := http.NewRequestWithContext(ctx, "POST", "http://"+engines[0]+"/v1/chat/completions", strings.NewReader(endless("wait")))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			waiting.Go(func() {
				if response, err := http.DefaultClient.Do(request); err == nil {
					io.Copy(io.Discard, response.Body) // until we leave
					response.Body.Close()
				}
			})
		}
		rig.Eventually(t, "a queue", func() error {
			if n := read(t, engines, "vllm:num_requests_waiting"); n[0] != 6 {
				return fmt.Errorf("waiting: %v", n)
			}
			return nil
		})
		rig.Eventually(t, "the gateway to see the queue", func() error {
			v, err := rig.Metric(gateway.Metrics, "llm_d_epp_average_queue_size")
			if err == nil && v < 3 {
				err = fmt.Errorf("llm_d_epp_average_queue_size is %v", v)
			}
			return err
		})
		requests := read(t, engines, "vllm:request_success_total")
		for i := range 10 {
			body := strings.Replace(rig.Body(fmt.Sprintf("short %d", i), false), `"model":"m"`, `"model":"tiny"`, 1)
			if a := rig.Post(t, gateway.HTTP, strings.NewReader(body), nil); a.Status != http.StatusOK {
				t.Fatalf("%+v", a)
			}
		}
		rig.Eventually(t, "the idle engine to have served all", func() error {
			if grown := rise(requests, read(t, engines, "vllm:request_success_total")); grown[0] != 0 || grown[1] != 10 {
				return fmt.Errorf("requests: %v", grown)
			}
			return nil
		})
		for _, s := range load {
			s.Leave()
		}
	})
	idle(t, engines, rig.Patience)

	t.Run("client leaves", func(t *testing.T) {
		s := rig.OpenBody(t, gateway.HTTP, endless("leave "+gateway.HTTP))
		if running := read(t, engines, "vllm:num_requests_running"); running[0]+running[1] != 1 {
			t.Fatalf("running: %v, want one", running)
		}
		s.Leave()
		idle(t, engines, 10*time.Second)
	})
}

// idle waits until no engine has anything to do.
func idle(t *testing.T, engines []string, limit time.Duration) {
	t.Helper()
	rig.Within(t, limit, "the engines to be idle", func() error {
		running, waiting := read(t, engines, "vllm:num_requests_running"), read(t, engines, "vllm:num_requests_waiting")
		if running[0]+running[1]+waiting[0]+waiting[1] != 0 {
			return fmt.Errorf("running %v, waiting %v", running, waiting)
		}
		return nil
	})
}
