// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
)

// TestFailuresBeforeTheFirstByte: whatever an endpoint does before its answer, the client gets the
// next one's.
func TestFailuresBeforeTheFirstByte(t *testing.T) {
	cases := []struct {
		name   string
		answer func(w *wire) bool // nil: refuses connections
		last   int                // status when no endpoint is left
	}{
		{"refuses", nil, 503},
		{"resets at once", func(w *wire) bool { w.rst(); return false }, 503},
		{"closes after the request", func(w *wire) bool { return false }, 503},
		{"resets in its head", func(w *wire) bool { w.say("HTTP/1.1 200 OK\r\ncontent-"); w.rst(); return false }, 503},
		{"closes after an informational answer", func(w *wire) bool { w.say("HTTP/1.1 102 Processing\r\n\r\n"); return false }, 503},
		{"garbage", func(w *wire) bool { w.say("\x16\x03\x01 hello\r\n\r\n"); return false }, 502},
		{"switches protocols", func(w *wire) bool { w.say("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"); return false }, 502},
		{"two lengths", func(w *wire) bool {
			w.say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}")
			return false
		}, 502},
		{"unknown transfer coding", func(w *wire) bool { w.say("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}"); return false }, 502},
		{"endless head", func(w *wire) bool {
			w.say("HTTP/1.1 200 OK\r\n" + strings.Repeat("x-a: "+strings.Repeat("a", 1000)+"\r\n", 1000))
			return false
		}, 502},
	}
	for _, c := range cases {
		for _, size := range []int{2, 200_000} {
			t.Run(fmt.Sprint(c.name, " ", size), func(t *testing.T) {
				bad := dead(t)
				if c.answer != nil {
					bad = newEngine(t, c.answer).address
				}
				got := make(chan string, 1)
				good := newEngine(t, func(w *wire) bool { got <- sum(w.body); w.say(okText); return true })
				s := newScript(bad, good.address)
				_, address := door(t, s, Options{})
				client, body := newClient(t, false), strings.Repeat("x", size)
				begin := time.Now()
				res, text, err := post(t, client, address, chatPath, body)
				if err != nil || res.StatusCode != 200 || text != "{}" || <-got != sum([]byte(body)) {
					t.Fatal(res, text, err)
				}
				t.Logf("answered after %s", time.Since(begin))
				if x := s.done(t); x.retries != 1 || x.end != observe.Complete || len(x.failed) != 1 {
					t.Errorf("%d retries, end %s, failures %v", x.retries, x.end, x.failed)
				}
				s.endpoints = s.endpoints[:1]
				res, text, err = post(t, client, address, chatPath, body)
				if err != nil || res.StatusCode != c.last || res.Header.Get("Retry-After") != "1" ||
					!strings.HasPrefix(text, `{"error":{`) || strings.Contains(text, "127.0.0.1") {
					t.Error(res, text, err)
				}
				if x := s.done(t); x.end != observe.Refused || x.refused.Status != c.last {
					t.Error(x.end, x.refused)
				}
			})
		}
	}
}

// TestPoisonousRequest: one that engines break off on does not go through the whole pool, while
// those that refuse connections are not counted.
func TestPoisonousRequest(t *testing.T) {
	var reached atomic.Int64
	engines := []string{dead(t), dead(t)}
	for range 6 {
		engines = append(engines, newEngine(t, func(*wire) bool { reached.Add(1); return false }).address)
	}
	s := newScript(engines...)
	_, address := door(t, s, Options{})
	res, text, err := post(t, newClient(t, false), address, chatPath, "x")
	if err != nil || res.StatusCode != 503 {
		t.Error(res, text, err)
	}
	if n := reached.Load(); n != maxReached {
		t.Errorf("it reached %d engines, want %d", n, maxReached)
	}
	s.done(t)
}

// TestAnswerWithoutReadingAll: an endpoint may refuse a body before it has read it.
func TestAnswerWithoutReadingAll(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go func() {
		c, err := lis.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 100))
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno")
		c.Close() // with a reset, since bytes are unread
	}()
	s := newScript(lis.Addr().String())
	_, address := door(t, s, Options{})
	res, text, err := post(t, newClient(t, false), address, chatPath, strings.Repeat("x", 16<<20))
	// The reset may overtake the answer. Then nothing of it was seen, and that is the truth as well.
	if err != nil || (res.StatusCode != 400 || text != "no") && res.StatusCode != 503 {
		t.Error(res, text, err)
	}
}

// TestKeptConnectionGrewOld: engines close idle connections when they like; that is no failure.
func TestKeptConnectionGrewOld(t *testing.T) {
	e := newEngine(t, func(w *wire) bool {
		if w.seq > 1 {
			w.rst() // the request crossed our goodbye
			return false
		}
		w.say(okText)
		return true
	})
	s := newScript(e.address)
	srv, address := door(t, s, Options{})
	c := newClient(t, false)
	for range 3 {
		res, _, err := post(t, c, address, chatPath, "{}")
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		if x := s.done(t); x.retries != 0 || len(x.failed) != 0 {
			t.Errorf("counted as a failure: %v", x.failed)
		}
	}
	h := srv.pool.host(e.address)
	if len(h.idle) != 1 || !h.idle[0].live.quiet() {
		t.Fatal("no live idle connection")
	}
	e.stop()
	idle := h.idle[0]
	for idle.live.quiet() { // the end is on its way
		if len(h.idle) == 0 {
			break
		}
	}
	srv.pool.sweep(time.Now().Add(time.Second))
	if len(srv.pool.hosts) != 0 {
		t.Error("dead connections are kept")
	}
}

// TestUnaskedBytes: what an engine says without having been asked must not become the answer to
// somebody else's request.
func TestUnaskedBytes(t *testing.T) {
	told := make(chan *wire, 1)
	e := newEngine(t, func(w *wire) bool {
		if w.nth == 1 {
			w.say(okText + "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil") // with the answer
			return true
		}
		w.say(okText)
		told <- w
		return true
	})
	s := newScript(e.address)
	srv, address := door(t, s, Options{})
	c := newClient(t, false)
	ask := func() {
		t.Helper()
		if res, text, err := post(t, c, address, chatPath, "{}"); err != nil || res.StatusCode != 200 || text != "{}" {
			t.Errorf("%v %q %v", res, text, err)
		}
		s.done(t)
	}
	ask()
	ask()
	(<-told).say("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil") // after it
	for idle := srv.pool.host(e.address).idle[0]; idle.live.quiet(); {
		continue
	}
	ask()
	if e.opened != 3 {
		t.Errorf("%d connections, want a new one after each misbehaviour", e.opened)
	}
}

// TestBrokenAnswers: a client must never take a broken answer for a whole one.
func TestBrokenAnswers(t *testing.T) {
	const part = "data: {\"a\"\r\n"
	cases := []struct {
		name, path string
		answer     func(w *wire)
		want       string
		clean      bool // the engine itself ended cleanly
	}{
		{"reset after two events", chatPath, func(w *wire) { w.say(sseHead); w.event("1"); w.event("2"); <-w.flushed(); w.rst() },
			"data: 1\n\ndata: 2\n\ndata: {\"error\":{\"message\":\"the endpoint broke off its answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"stream_interrupted\"}}\n\n", false},
		{"closed without the last chunk", "/v1/completions", func(w *wire) { w.say(sseHead); w.event("1") },
			"data: 1\n\ndata: {\"error\":{\"message\":\"the endpoint broke off its answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"stream_interrupted\"}}\n\n", false},
		{"Anthropic", "/v1/messages", func(w *wire) { w.say(sseHead); w.event("1") },
			"data: 1\n\nevent: error\ndata: {\"error\":{\"message\":\"the endpoint broke off its answer\",\"type\":\"api_error\"},\"type\":\"error\"}\n\n", false},
		{"responses", "/v1/responses", func(w *wire) { w.say(sseHead); w.event("1") },
			"data: 1\n\nevent: error\ndata: {\"type\":\"error\",\"code\":\"stream_interrupted\",\"message\":\"the endpoint broke off its answer\",\"param\":null,\"error\":{\"message\":\"the endpoint broke off its answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"stream_interrupted\"}}\n\n", false},
		{"before any event", chatPath, func(w *wire) { w.say(sseHead) },
			"data: {\"error\":{\"message\":\"the endpoint broke off its answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"stream_interrupted\"}}\n\n", false},
		{"in the middle of an event", chatPath, func(w *wire) { w.say(sseHead); w.event("1"); w.say("b\r\n" + part) }, "data: 1\n\n" + part[:11], false},
		{"garbage instead of a chunk", chatPath, func(w *wire) { w.say(sseHead + "zz\r\n") },
			"data: {\"error\":{\"message\":\"the endpoint broke off its answer\",\"type\":\"server_error\",\"param\":null,\"code\":\"stream_interrupted\"}}\n\n", false},
		{"JSON with a length", chatPath, func(w *wire) {
			w.say("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"a\":")
		}, "{\"a\":", false},
		{"JSON in chunks", chatPath, func(w *wire) { w.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n") }, "{\"a\":", false},
		{"ended cleanly without the end marker", chatPath, func(w *wire) { w.say(sseHead); w.event("1"); w.say("0\r\n\r\n") }, "data: 1\n\n", true},
		{"until the connection ends", chatPath, func(w *wire) { w.say("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n") }, "data: 1\n\n", true},
	}
	for _, c := range cases {
		for _, in := range []string{"http/1.1", "h2c"} {
			t.Run(c.name+" "+in, func(t *testing.T) {
				s := newScript(newEngine(t, func(w *wire) bool { c.answer(w); return false }).address, dead(t))
				_, address := door(t, s, Options{})
				res, text, err := post(t, newClient(t, in == "h2c"), address, c.path, "{}")
				if res == nil {
					t.Fatal(err)
				}
				if text != c.want || (err == nil) != c.clean {
					t.Errorf("got  %q %v\nwant %q", text, err, c.want)
				}
				want := observe.Broken
				if c.clean {
					want = observe.Complete // whether that is normal is the core's to say
				}
				if x := s.done(t); x.end != want || x.retries != 0 || len(x.failed) == 0 != c.clean || x.ends != 1 {
					t.Errorf("end %s, %d retries, failures %v", x.end, x.retries, x.failed)
				}
			})
		}
	}
}

// flushed gives the other side time to take what was written, by asking the kernel.
func (w *wire) flushed() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for unsent(w.Conn) > 0 {
		}
	}()
	return done
}

// TestBrokenAnswerToHTTP10: without framing, only a reset tells.
func TestBrokenAnswerToHTTP10(t *testing.T) {
	s := newScript(newEngine(t, func(w *wire) bool { w.say(sseHead); w.event("1"); return false }).address)
	_, address := door(t, s, Options{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/chat/completions HTTP/1.0\r\n\r\n")
	if b, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q %v, want a reset", b, err)
	}
}

func TestClientLeaves(t *testing.T) {
	seen, left := make(chan struct{}, 8), make(chan bool, 8)
	answers := map[string]func(w *wire){
		"before the head":     func(w *wire) {},
		"after the head":      func(w *wire) { w.say(sseHead) },
		"in mid-stream":       func(w *wire) { w.say(sseHead); w.event("1") },
		"in mid-JSON":         func(w *wire) { w.say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{") },
		"before the last one": func(w *wire) { w.say(sseHead); w.event("[DONE]") },
	}
	for name, answer := range answers {
		for _, in := range []string{"http/1.1", "h2c"} {
			for _, out := range []string{"http/1.1", "h2c"} {
				t.Run(name+" "+in+" "+out, func(t *testing.T) {
					var s *script
					if out == "h2c" {
						s = newScript(h2cEngine(t, h2cLike(name, seen, left)))
						s.h2c = true
					} else {
						s = newScript(newEngine(t, func(w *wire) bool { answer(w); seen <- struct{}{}; left <- w.left(); return false }).address)
					}
					_, address := door(t, s, Options{})
					ctx, leave := context.WithCancel(context.Background())
					req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+address+chatPath, strings.NewReader("{}"))
					gone := make(chan error, 1)
					go func() {
						res, err := newClient(t, in == "h2c").Do(req)
						if err == nil {
							_, err = io.ReadAll(res.Body)
							res.Body.Close()
						}
						gone <- err
					}()
					<-seen
					begin := time.Now()
					leave()
					if !<-left {
						t.Error("the engine was not told")
					}
					if took := time.Since(begin); took > time.Second {
						t.Errorf("the engine was told after %s", took)
					}
					if err := <-gone; err == nil {
						t.Error("no error at the client")
					}
					x := s.done(t)
					if x.end != observe.ClientLeft || x.retries != 0 || x.ends != 1 {
						t.Errorf("end %s, %d retries, %d ends", x.end, x.retries, x.ends)
					}
				})
			}
		}
	}
}

// h2cLike does over h2c what the script of that name does.
func h2cLike(name string, seen chan struct{}, left chan bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		rc := http.NewResponseController(w)
		switch name {
		case "after the head":
			_ = rc.Flush()
		case "in mid-stream", "before the last one":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: 1\n\n")
			_ = rc.Flush()
		case "in mid-JSON":
			w.Header().Set("Content-Length", "9")
			fmt.Fprint(w, "{")
			_ = rc.Flush()
		}
		seen <- struct{}{}
		select {
		case <-r.Context().Done():
			left <- true
		case <-time.After(5 * time.Second):
			left <- false
		}
	}
}

func TestClientLeavesBeforeAnEndpointIsInvolved(t *testing.T) {
	for name, sent := range map[string]string{
		"while it sends":  "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"while it waits":  "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"in a bad chunk":  "POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		"without a body":  "GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n",
		"half of 200,000": "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(dead(t))
			s.hold = true
			_, address := door(t, s, Options{})
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, sent)
			conn.Close()
			if x := s.done(t); x.end != observe.ClientLeft || x.refused != nil {
				t.Errorf("%s %v", x.end, x.refused)
			}
			if s.memory.Held() != 0 {
				t.Error("memory is still held")
			}
		})
	}
}

func TestMalformedRequestBodyIsTheClientsFault(t *testing.T) {
	s := newScript(dead(t))
	_, address := door(t, s, Options{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != 400 {
		t.Error(res, err)
	}
}

func TestH2CEndpointFailsBeforeItsAnswer(t *testing.T) {
	good := h2cEngine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, sum(b))
	})
	bad := h2cEngine(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	body := strings.Repeat("x", 200_000)
	for name, first := range map[string]string{"refuses": dead(t), "resets": bad} {
		s := newScript(first, good)
		s.h2c = true
		_, address := door(t, s, Options{})
		res, text, err := post(t, newClient(t, false), address, chatPath, body)
		if err != nil || res.StatusCode != 200 || text != sum([]byte(body)) {
			t.Error(name, res, text, err)
		}
		if x := s.done(t); x.retries != 1 || x.end != observe.Complete {
			t.Error(name, x.retries, x.end)
		}
	}
}

func TestRefusalIsPassedOn(t *testing.T) {
	s := newScript(dead(t))
	s.refuse = &gateway.Refusal{Status: 429, Reason: "rejected-saturated", Type: "overloaded_error", Message: "busy", RetryAfter: 1500 * time.Millisecond}
	_, address := door(t, s, Options{})
	res, text, err := post(t, newClient(t, false), address, "/v1/messages", "{}")
	if err != nil || res.StatusCode != 429 || res.Header.Get("Retry-After") != "2" || res.Header.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-saturated" ||
		res.Header.Get("Content-Type") != "application/json" || !strings.HasPrefix(text, `{"error":{"message":"busy"`) || !strings.Contains(text, `"type":"error"`) {
		t.Error(res, text, err)
	}
}

// TestManyClientsLeaveAtAnyTime looks for races and for what is left behind.
func TestManyClientsLeaveAtAnyTime(t *testing.T) {
	e := newEngine(t, func(w *wire) bool {
		w.say(sseHead)
		for i := range 50 {
			w.event(fmt.Sprint(i))
		}
		w.say("0\r\n\r\n")
		return true
	})
	var logged atomic.Int64
	s := newScript(e.address)
	_, address := door(t, s, Options{DialTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(countWriter{&logged}, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	const n = 200
	var wg syncGroup
	for i := range n {
		wg.Go(func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
			_, _ = io.CopyN(io.Discard, conn, int64(i*i%500))
		})
	}
	wg.Wait()
	ends := map[observe.End]int{}
	for range n {
		ends[s.done(t).end]++
	}
	if ends[observe.ClientLeft]+ends[observe.Complete] != n || logged.Load() != 0 {
		t.Error(ends, logged.Load())
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(sseHead+"5\r\nhello\r\n0\r\n\r\n"), uint8(3))
	f.Add([]byte(okText), uint8(1))
	f.Add([]byte("HTTP/1.1 200 OK\nTrailer: a\nTransfer-Encoding: chunked\n\n1;x=y\na\r\n0\na: b\n\n"), uint8(200))
	f.Add([]byte("HTTP/1.0 200 OK\r\n\r\nuntil the end"), uint8(7))
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8) {
		c := &conn{Conn: &scripted{Reader: pieces{bytes.NewReader(raw), int(piece)%64 + 1}}}
		c.begin()
		defer c.release()
		h := http.Header{}
		status, err := c.head("POST", h)
		want, werr := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), &http.Request{Method: "POST"})
		if err != nil {
			return
		}
		if werr != nil {
			return // net/http is stricter in places; what we accept is held against it below
		}
		defer want.Body.Close()
		if status != want.StatusCode {
			t.Fatalf("status %d, net/http says %d", status, want.StatusCode)
		}
		if status < 200 {
			return
		}
		var got []byte
		for {
			p, err := c.next()
			got = append(got, p...)
			if err == io.EOF {
				b, werr := io.ReadAll(want.Body)
				if werr == nil && !bytes.Equal(b, got) {
					t.Fatalf("body %q, net/http says %q", got, b)
				}
				return
			}
			if err != nil {
				return
			}
		}
	})
}

// scripted is a connection that only reads.
type scripted struct {
	net.Conn
	io.Reader
}

func (s *scripted) Read(p []byte) (int, error) { return s.Reader.Read(p) }
