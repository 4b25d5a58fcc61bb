// SPDX-License-Identifier: Apache-2.0

// Package e2e drives the built binary with the real parts that users bring: SDKs, Envoy, vLLM.
package e2e

import (
	"syscall"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestDev is a newcomer's first minutes: `penstock dev`, then the SDK of their language.
func TestDev(t *testing.T) {
	addr := rig.Addr(t)
	dev := rig.Start(t, "dev", rig.Penstock(t), "dev", "--engines", "4", "--listen", addr).Listening(t, addr)
	rig.Eventually(t, "models to be served", func() error {
		_, err := rig.Get("http://" + addr + "/v1/models")
		return err
	})
	for _, client := range rig.Clients {
		t.Run(client.Language, func(t *testing.T) {
			turns := client.Chat(t, "http://"+addr, 8)
			rig.CheckTurns(t, turns, 8)
			if homes := rig.Homes(turns); len(homes) < 2 || homes[0] == "" {
				t.Errorf("8 conversations were all served by %q", homes)
			}
		})
	}
	dev.Signal(syscall.SIGINT)
	if code := dev.Wait(t); code != 0 {
		t.Errorf("Ctrl-C ended it with code %d", code)
	}
}

// TestAnthropic calls an engine that speaks Anthropic's API, through the proxy.
func TestAnthropic(t *testing.T) {
	engine := rig.NewEngine(t, "m")
	gateway := rig.Serve(t, engine.Addr)
	gateway.Ready(t, 1)
	for _, turn := range rig.Messages(t, "http://"+gateway.HTTP, "m") {
		if turn.Finish != "end_turn" || turn.CompletionTokens != rig.Events || turn.Text == "" {
			t.Errorf("got %+v", turn)
		}
	}
}
