// SPDX-License-Identifier: Apache-2.0

package work

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-project/penstock/observe"
)

// What a gateway writes is what we read: here its own writer makes the log.
func TestGatewayLog(t *testing.T) {
	var log bytes.Buffer
	o := observe.New(observe.Options{Access: &log})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, out := range []observe.Outcome{
		{Start: begin.Add(time.Second), Duration: time.Second, PromptTokens: 70, OutputTokens: 7, Cached: 64, RequestBytes: 300, Labels: observe.Labels{Model: "m", Tenant: "a \"quoted\" tenant", Priority: 3}, Endpoint: "e", Status: 200},
		{Start: begin, Duration: 10 * time.Second, PromptTokens: 50, OutputTokens: 20, Cached: 0, RequestBytes: 200, Labels: observe.Labels{Model: "adapter"}, Endpoint: "e", Status: 200},
		{Start: begin.Add(3 * time.Second), Duration: time.Millisecond, PromptTokens: -1, OutputTokens: -1, Cached: -1, RequestBytes: 400, Labels: observe.Labels{Model: "m"}, Status: 429, Reason: "rejected-saturated"},
	} {
		o.Done(&out)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "gateway.log")
	if err := os.WriteFile(file, append([]byte(`{"time":"2026-01-02T03:04:04Z","level":"INFO","msg":"serving"}`+"\n"), log.Bytes()...), 0o600); err != nil {
		t.Fatal(err)
	}
	calls := play(t, start(t, "trace:"+file, 1, 0), usual, nil)
	if len(calls) != 3 {
		t.Fatalf("%d calls of:\n%s", len(calls), log.String())
	}
	for i, want := range []struct {
		at            time.Duration
		in, out, prio int
		tenant, model string
	}{
		{0, 50, 20, 0, "", "adapter"},
		{time.Second, 70, 7, 3, `a "quoted" tenant`, ""},
		{3 * time.Second, 100, 13, 0, "", ""}, // 400 bytes, and an answer as the others in the mean
	} {
		got := calls[i]
		tokens := 0
		for _, s := range got.prompt {
			tokens += int(s.Tokens)
		}
		if got.At != want.at || tokens != want.in || got.Output != want.out || got.Priority != want.prio || got.Tenant != want.tenant || got.Model != want.model {
			t.Errorf("call %d: got %+v, want %+v", i, got.Request, want)
		}
	}
}
