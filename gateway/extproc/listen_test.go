// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"testing"
)

// TestListen serves a core that decides nothing, for a load client of another process:
// PENSTOCK_LISTEN=127.0.0.1:19002 go test -run Listen.
func TestListen(t *testing.T) {
	addr := os.Getenv("PENSTOCK_LISTEN")
	if addr == "" {
		t.Skip("PENSTOCK_LISTEN is not set")
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(0)
	f.quiet = true
	go http.ListenAndServe("127.0.0.1:19099", nil)
	t.Fatal(newServer(Options{}, f.begin).Run(t.Context(), lis))
}
