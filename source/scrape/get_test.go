// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// answering is a peer that reads requests and answers each with the next of its answers, closing
// the connection after an empty one, and when it has no more.
func answering(t *testing.T, answers ...string) (Dialer, *int) {
	t.Helper()
	next := make(chan string, len(answers))
	for _, a := range answers {
		next <- a
	}
	close(next)
	dials := 0
	return func(context.Context, string, string) (net.Conn, error) {
		dials++
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			in := bufio.NewReader(theirs)
			for {
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				a := <-next
				if a == "" {
					return
				}
				for piece := range strings.SplitSeq(a, "|") { // each in its own write
					if _, err := io.WriteString(theirs, piece); err != nil {
						return
					}
				}
				if strings.Contains(a, "to the end") {
					return
				}
			}
		}()
		return ours, nil
	}, &dials
}

func TestGet(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
	for _, c := range []struct {
		name    string
		answers []string
		want    []string // bodies, or !fault
		dials   int
	}{
		{"keeps its connection", []string{ok, ok, ok}, []string{"hello", "hello", "hello"}, 1},
		{"in pieces", []string{"HTTP/1.1 2|00 OK\r\nContent-Le|ngth: 5\r\n\r|\nhe|llo", ok}, []string{"hello", "hello"}, 1},
		{"chunks", []string{"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3|;x=y\r\nhel\r|\n2\r\nlo\r\n0|\r\nTrailer: x\r\n\r|\n", ok}, []string{"hello", "hello"}, 1},
		{"to the end", []string{"HTTP/1.0 200 OK\r\n\r\nto the end|", ok}, []string{"to the end", "hello"}, 2},
		{"says close", []string{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", ok}, []string{"hello", "hello"}, 2},
		{"an early hint", []string{"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok}, []string{"hello"}, 1},
		{"a broken idle connection", []string{ok, "", ok}, []string{"hello", "hello"}, 2},
		{"broken twice", []string{ok, "", ""}, []string{"hello", "!reset"}, 2},
		{"status", []string{"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 3\r\n\r\nno!", ok}, []string{"!status-500", "hello"}, 1},
		{"follows nowhere", []string{"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"}, []string{"!status-302"}, 1},
		{"too large", []string{"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"}, []string{"!too-large"}, 1},
		{"too large, in chunks", []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3e6\r\n"}, []string{"!too-large"}, 1},
		{"too large, to the end", []string{"HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 1001)}, []string{"!too-large"}, 1},
		{"cut off", []string{"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nto the end"}, []string{"!reset"}, 1},
		{"no HTTP", []string{"SSH-2.0-OpenSSH_9.2\r\n\r\n"}, []string{"!malformed"}, 1},
		{"HTTP/2", []string{"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"}, []string{"!http2-only"}, 1},
		{"HTTP/2, in pieces", []string{"\x00\x00|\x00\x04\x00|\x00\x00\x00\x00"}, []string{"!http2-only"}, 1},
		{"a frame of another kind", []string{"\x00\x00\x00\x06\x00\x00\x00\x00\x00"}, []string{"!malformed"}, 1},
		{"TLS", []string{"\x15\x03\x01\x00\x02\x02\x46"}, []string{"!wants-tls"}, 1},
		{"an endless head", []string{"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 20000)}, []string{"!malformed"}, 1},
		{"compressed though not asked for", []string{"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"}, []string{"!malformed"}, 1},
		{"more than it said", []string{ok + "smuggled", ok}, []string{"hello", "hello"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			dial, dials := answering(t, c.answers...)
			w := &worker{ctx: t.Context(), timeout: 5 * time.Second, dial: dial}
			g := newGetter("10.0.0.1:8000", "/metrics", "*/*")
			defer g.close()
			for i, want := range c.want {
				body, err := g.get(w, 1000)
				got := string(body)
				if err != nil {
					got = "!" + err.Error()
				}
				if got != want {
					t.Errorf("get %d: got %q, want %q", i, got, want)
				}
			}
			if *dials != c.dials {
				t.Errorf("got %d connections, want %d", *dials, c.dials)
			}
		})
	}
}

// BenchmarkGet compares our client with the standard library's on a page of 100 KB.
func BenchmarkGet(b *testing.B) {
	page := vllmPage(70 << 10)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go cheapServer(l, page)
	url := fmt.Sprintf("http://%s/metrics", l.Addr())
	b.Run("ours", func(b *testing.B) {
		w := &worker{ctx: b.Context(), timeout: time.Second, dial: (&net.Dialer{}).DialContext}
		g := newGetter(l.Addr().String(), "/metrics", "*/*")
		defer g.close()
		b.ReportAllocs()
		b.SetBytes(int64(len(page)))
		for b.Loop() {
			body, err := g.get(w, 8<<20)
			if err != nil || len(body) != len(page) {
				b.Fatal(err)
			}
			Scan(body, Default, "", &w.page)
		}
	})
	b.Run("nethttp", func(b *testing.B) {
		tr := &http.Transport{DisableCompression: true, ReadBufferSize: 64 << 10}
		defer tr.CloseIdleConnections()
		var p Page
		buf := make([]byte, len(page))
		b.ReportAllocs()
		b.SetBytes(int64(len(page)))
		for b.Loop() {
			ctx, cancel := context.WithTimeout(b.Context(), time.Second)
			req, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
			resp, err := tr.RoundTrip(req)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, buf); err != nil {
				b.Fatal(err)
			}
			resp.Body.Close()
			cancel()
			Scan(buf, Default, "", &p)
		}
	})
}

// cheapServer answers anything with the page, at as little cost as can be.
func cheapServer(l net.Listener, page []byte) {
	answer := append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(page)), page...)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, 4096)
			for {
				if _, err := c.Read(buf); err != nil {
					return
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}
