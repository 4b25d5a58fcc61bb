// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// The caller's cap on output bounds what a request counts for, on every path and under every name it has; the body
// goes on as it came.
func TestCapsOnOutputBoundTheLoad(t *testing.T) {
	prompt := strings.Repeat("word ", 800) // 1,000 tokens; 1.5 times as much output unless a cap says less
	for _, c := range []struct {
		path, body string
		output     int64
	}{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + prompt + `"}],"max_tokens":100,"max_completion_tokens":90,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true},"n":1,"logprobs":true}`, 90},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + prompt + `"}],"max_tokens":100}`, 100},
		{"/v1/completions", `{"model":"m","prompt":"` + prompt + `","max_tokens":80,"stream":true}`, 80},
		{"/v1/responses", `{"model":"m","input":"` + prompt + `","max_output_tokens":70}`, 70},
		{"/inference/v1/generate", `{"model":"m","token_ids":[` + strings.TrimSuffix(strings.Repeat("1,", 1000), ",") + `],"sampling_params":{"max_tokens":60}}`, 60},
		{"/v1/completions", `{"model":"m","prompt":"` + prompt + `"}`, 1500},
	} {
		r := newRig(t, 1, slog.LevelInfo)
		r.with(func(p *sched.Plan) {
			load := policy.Producers["inflight-load-producer"]().(*policy.InflightLoadProducer)
			load.AddEstimatedOutputTokens = true
			p.Producers = append(p.Producers, sched.Named[sched.Producer]{Name: "inflight-load-producer", Plugin: load})
		})
		x := r.Begin(&r.door, Head{Method: "POST", Path: c.path, Headers: headers{}, Peer: netip.MustParseAddr("192.0.2.1")})
		x.Write([]byte(c.body))
		p, ref := x.Place(context.Background())
		if ref != nil {
			t.Fatal(ref)
		}
		if p.Body != nil {
			t.Errorf("%s: the body was changed", c.path)
		}
		got := r.endpoints()[0].Load.Tokens() - int64(x.out.EstimatedTokens)
		if tolerance := int64(30); got < c.output-tolerance*c.output/1000 || got > c.output+tolerance {
			t.Errorf("%s %.40s: %d tokens of output counted, want %d", c.path, c.body[len(c.body)-40:], got, c.output)
		}
		x.End(observe.Complete)
	}
}
