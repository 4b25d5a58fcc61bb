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
	round := func(measure bool) {
		ctx, cancel := context.WithCancel(t.Context())
		before := heap()
		for range n {
			go ask(ctx)
		}
		for gate.Waiting() < n {
			time.Sleep(time.Millisecond)
		}
		each := int(heap()-before) / n
		held := int(r.Memory.Held()) / n
		if beside := each - len(body); measure && beside > 4<<10 && !raceEnabled {
			t.Errorf("%d bytes for each that waits, %d of them for a body of %d; want 4 KiB beside it at most", each, held, len(body))
		}
		cancel()
		for range n {
			x := <-done
			x.End(observe.ClientLeft)
		}
	}
	round(false) // what is there once, and for all
	round(true)
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
