// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// A request that waits costs its body and at most 4 KiB of memory beside it.
func TestMemoryOfAWait(t *testing.T) {
	const n = 2000
	r := newRig(t, 1, slog.LevelWarn)
	r.Gateway.Memory = request.NewMemory(1 << 30)
	gate := r.queued(nil)
	r.Lanes()[fleet.ID{Namespace: "default", Name: "p"}].Queues = true
	first, _, _ := r.place(t, nil, chat("x"))
	done := make(chan *Exchange, n)
	h := headers{"x-request-id": "id", "content-type": "application/json"}
	body := chat(strings.Repeat("word ", 1600))
	ask := func(ctx context.Context) {
		x := r.begin(h)
		x.Write([]byte(body))
		_, ref := x.Place(ctx)
		x.Refuse(ref)
		done <- x
	}
	round := func() (beside int) {
		ctx, cancel := context.WithCancel(t.Context())
		before := heap()
		for range n {
			go ask(ctx)
		}
		for gate.Waiting() < n {
			time.Sleep(time.Millisecond)
		}
		beside = int(heap()-before)/n - len(body)
		cancel()
		for range n {
			x := <-done
			x.End(observe.ClientLeft)
		}
		return beside
	}
	round() // what is there once, and for all
	// Stacks that grow and memory that waits to be collected come and go: the least of a few rounds is what it takes.
	least := round()
	for range 2 {
		least = min(least, max(round(), 0))
	}
	if least > 4<<10 && !raceEnabled {
		t.Errorf("%d bytes beside the body for each that waits, want 4 KiB at most", least)
	}
	first.End(observe.Complete)
}

// heap is the memory in use, without stacks.
func heap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
