// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestPassingOnDoesNotAllocate holds the way of an event from an endpoint's socket to the client's.
func TestPassingOnDoesNotAllocate(t *testing.T) {
	event := []byte("e\r\ndata: {\"a\":1}\n\r\n6\r\ntoken\n\r\n")
	c := &conn{Conn: &scripted{Reader: endless{event}}, mode: size}
	c.begin()
	c.mode = size
	defer c.release()
	allocs := testing.AllocsPerRun(1000, func() {
		if p, err := c.next(); err != nil || !bytes.HasPrefix(p, []byte("data: {\"a\":1}\ntoken\n")) {
			t.Fatalf("%q %v", p, err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for a piece", allocs)
	}
}

// endless gives the same bytes in every read.
type endless struct{ p []byte }

func (e endless) Read(b []byte) (int, error) { return copy(b, e.p), nil }

// BenchmarkOverhead is a streamed chat of eight events, straight to the engine and through the
// door. The core is a script; client, door and engine share the process.
func BenchmarkOverhead(b *testing.B) {
	var answer strings.Builder
	answer.WriteString(sseHead)
	for i := range 8 {
		e := fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token %d\"}}]}\n\n", i)
		fmt.Fprintf(&answer, "%x\r\n%s\r\n", len(e), e)
	}
	answer.WriteString("0\r\n\r\n")
	e := newEngine(b, func(w *wire) bool { w.say(answer.String()); return true })
	s := newScript(e.address)
	go func() {
		for range s.ended { //nolint:revive // nobody looks at these
		}
	}()
	b.Cleanup(func() { close(s.ended) })
	_, address := door(b, s, Options{})
	for _, size := range []int{1 << 10, 64 << 10, 800 << 10} {
		for _, way := range []struct{ name, address string }{{"direct", e.address}, {"door", address}} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, way.name), func(b *testing.B) { ask(b, way.address, size) })
		}
	}
}

func ask(b *testing.B, address string, size int) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size))
	br := bufio.NewReader(conn)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 200 {
			b.Fatal(res, err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			b.Fatal(err)
		}
	}
}
