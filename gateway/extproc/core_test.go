// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/flow"
	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
	"github.com/penstock-project/penstock/sched"
	"github.com/penstock-project/penstock/sched/policy"
)

// core is a gateway over two endpoints, with the door before it.
type core struct {
	*gateway.Gateway
	access bytes.Buffer
	client *rig
}

func newCore(t *testing.T) *core {
	t.Helper()
	store := fleet.NewStore()
	pool := fleet.ID{Namespace: "default", Name: "p"}
	store.SetPools([]fleet.PoolSpec{{ID: pool}})
	store.SetEndpoints("test", []fleet.EndpointSpec{
		{ID: fleet.ID{Namespace: "default", Name: "a"}, Address: "10.0.0.1:8000"},
		{ID: fleet.ID{Namespace: "default", Name: "b"}, Address: "[fd00::10]:8000"},
	})
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c := &core{}
	observer := observe.New(observe.Options{Store: store, Log: log, Access: &c.access})
	c.Gateway = gateway.New(gateway.Options{Store: store, Log: log, Observer: observer, Memory: request.NewMemory(8 << 20), MaxBody: 4 << 20, Stale: 2 * time.Second, Seed: 1})
	c.SetLanes(gateway.Lanes{pool: {Gate: flow.NewLegacy(), Plan: (&sched.Plan{
		Producers: []sched.Named[sched.Producer]{{Name: "prefix", Plugin: policy.Producers["approx-prefix-cache-producer"]()}},
		Handler:   policy.Handlers["single-profile-handler"](),
		Profiles: []*sched.Profile{{
			Name: "default", Endpoints: 1,
			Scorers: []sched.Weighted{{Named: sched.Named[sched.Scorer]{Name: "prefix-cache-scorer", Plugin: policy.Scorers["prefix-cache-scorer"]()}, Weight: 3}},
			Picker:  sched.Named[sched.Picker]{Name: "max-score-picker", Plugin: policy.Pickers["max-score-picker"]()},
		}},
	}).Ready()}})
	s := New(c.Gateway, Options{Door: &gateway.Door{Name: "extproc"}, Drain: 10 * time.Second, Log: log})
	lis := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lis) }()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	c.client = &rig{t: t, client: newClient(conn)}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		conn.Close()
		if c.Open() != 0 || c.Memory.Held() != 0 {
			t.Errorf("%d exchanges and %d bytes are left", c.Open(), c.Memory.Held())
		}
		for _, e := range store.Load().Pools[0].Endpoints {
			if e.Load.Requests() != 0 || e.Load.Tokens() != 0 {
				t.Errorf("%s still has %d requests and %d tokens", e.Address, e.Load.Requests(), e.Load.Tokens())
			}
		}
		if err := observer.Flush(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// The door before the real core: a conversation sticks, a body comes back as it was, usage is
// read from the passing answer, and control headers of nobody in particular are removed.
func TestRealCore(t *testing.T) {
	c := newCore(t)
	var home string
	for turn := range 3 {
		body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 60_000+10*turn) + `"}]}`)
		call := c.client.open()
		call.send(reqHeadersMsg(false, ":method", "POST", ":path", "/v1/chat/completions", "x-request-id", fmt.Sprint("r", turn), "x-llm-d-inference-objective", "gold", destinationKey, "1.2.3.4:5"))
		call.send(chunks(body, 50_000, turn == 1)...)
		m := call.recv()
		destination := m.GetDynamicMetadata().GetFields()[namespace].GetStructValue().GetFields()[destinationKey].GetStringValue()
		_, removed := wantDecision(t, m, m.GetRequestHeaders().GetResponse(), destination)
		if !strings.Contains(strings.Join(removed, " "), "x-llm-d-inference-objective") || !strings.Contains(strings.Join(removed, " "), destinationKey) {
			t.Errorf("removed %q", removed)
		}
		if home == "" {
			home = destination
		}
		if destination != home {
			t.Errorf("turn %d went to %q, not to %q", turn, destination, home)
		}
		if got := call.body(reqBody, -1); !bytes.Equal(got, body) {
			t.Error("the body differs")
		}
		answer(call, 200, []byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1,\"total_tokens\":8}}\n\ndata: [DONE]\n\n"), 50)
		call.finish()
	}
	// BL-10: any spelling of an address, and BL-04: no more than the limit.
	for _, subset := range []string{"fd00::10", "[fd00::10]:8000", "FD00:0:0:0:0:0:0:10"} {
		call := c.client.open()
		m := reqHeadersMsg(true, ":method", "GET", ":path", "/v1/models")
		m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetNamespace: {Fields: map[string]*structpb.Value{
			subsetKey: structpb.NewStringValue("10.9.9.9, " + subset)}}}}
		call.send(m)
		r := call.recv()
		wantDecision(t, r, r.GetRequestHeaders().GetResponse(), "[fd00::10]:8000")
		call.finish()
	}
	call := c.client.open()
	call.send(reqHeadersMsg(false))
	go func() {
		for b := text(1 << 20); call.stream.Send(reqBodyMsg(b, false)) == nil; {
		}
	}()
	if i := call.recv().GetImmediateResponse(); i.GetStatus().GetCode() != 413 || !strings.Contains(string(i.GetBody()), fmt.Sprint(4<<20)) {
		t.Errorf("got %v", i)
	}
	call.clean()
}
