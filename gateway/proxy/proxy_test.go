// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/gateway"
	"github.com/penstock-project/penstock/observe"
)

// pieces gives a body in pieces of n bytes, without saying how long it is.
type pieces struct {
	io.Reader
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.n)]) }

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func TestBodiesArriveByteForByte(t *testing.T) {
	sizes := []int{0, 1, 4096, 4097, 32768, 32769, 131073, 1 << 20, 8 << 20}
	for _, in := range []string{"http/1.1", "h2c"} {
		for _, out := range []string{"http/1.1", "h2c"} {
			t.Run(in+" to "+out, func(t *testing.T) {
				var s *script
				if out == "h2c" {
					s = newScript(h2cEngine(t, func(w http.ResponseWriter, r *http.Request) {
						b, _ := io.ReadAll(r.Body)
						fmt.Fprint(w, sum(b))
					}))
					s.h2c = true
				} else {
					s = newScript(newEngine(t, func(w *wire) bool {
						w.say("HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n" + sum(w.body))
						return true
					}).address)
				}
				_, address := door(t, s, Options{})
				c := newClient(t, in == "h2c")
				for _, size := range sizes {
					body := make([]byte, size)
					for i := range body {
						body[i] = byte(i*7 + i>>8)
					}
					for _, piece := range []int{0, 64 << 10, 1} {
						if piece == 1 && (size > 131073 || size > 4097 && in+out != "http/1.1http/1.1") {
							continue
						}
						var r io.Reader = strings.NewReader(string(body))
						if piece > 0 {
							r = pieces{r, piece}
						}
						res, err := c.Post("http://"+address+chatPath, "application/json", r)
						if err != nil {
							t.Fatal(err)
						}
						got, _ := io.ReadAll(res.Body)
						res.Body.Close()
						if string(got) != sum(body) {
							t.Errorf("%d bytes in pieces of %d: changed on the way: %d %s", size, piece, res.StatusCode, got)
						}
						if x := s.done(t); x.end != observe.Complete || x.passed.String() != string(got) {
							t.Errorf("%d bytes: end %s, told %q", size, x.end, x.passed.String())
						}
					}
				}
				if held := s.memory.Held(); held != 0 {
					t.Errorf("%d bytes of body memory still held", held)
				}
			})
		}
	}
}

func TestRequestHead(t *testing.T) {
	got := make(chan *http.Request, 1)
	e := newEngine(t, func(w *wire) bool {
		got <- w.req
		w.say(okText)
		return true
	})
	s := newScript(e.address)
	s.set = []gateway.Header{{Name: "x-request-id", Value: "made"}, {Name: "x-evil", Value: "a\r\nb: c"}}
	s.remove = []string{"x-llm-d-prefill-endpoint"}
	_, address := door(t, s, Options{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/x%2Fy?q=1&r=%20 HTTP/1.1\r\nHost: models.example\r\nContent-Length: 2\r\nConnection: x-mine, keep-alive\r\nX-Mine: 1\r\n"+
		"Keep-Alive: 5\r\nTE: trailers, gzip\r\nUpgrade: h2c\r\nProxy-Authorization: x\r\nX-Forwarded-For: 10.0.0.1\r\nX-Request-ID: theirs bad\r\n"+
		"X-LLM-D-Prefill-Endpoint: 10.0.0.9:1\r\nX-GATEWAY-destination-endpoint: 169.254.169.254:80\r\nX-Keep: a\r\nX-Keep: b\r\nAccept-Encoding: br\r\n\r\n{}")
	if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
		t.Fatal(err)
	}
	r := <-got
	want := http.Header{
		"Content-Length": {"2"}, "X-Request-Id": {"made"}, "X-Keep": {"a", "b"}, "Accept-Encoding": {"br"}, "Te": {"trailers"},
		"X-Forwarded-For": {"10.0.0.1, 127.0.0.1"}, "X-Gateway-Destination-Endpoint": {e.address},
	}
	if fmt.Sprint(r.Header) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", r.Header, want)
	}
	if r.Host != "models.example" || r.RequestURI != "/v1/x%2Fy?q=1&r=%20" {
		t.Errorf("host %q, target %q", r.Host, r.RequestURI)
	}
}

func TestAnswerHead(t *testing.T) {
	e := newEngine(t, func(w *wire) bool {
		w.say("HTTP/1.1 418 Teapot\r\ndate: Tue, 15 Nov 1994 08:12:31 GMT\r\nserver: uvicorn\r\nconnection: x-mine\r\nx-mine: 1\r\nkeep-alive: timeout=5\r\n" +
			"set-cookie: a=1\r\nset-cookie: b=2\r\ncontent-type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
		return true
	})
	s := newScript(e.address)
	_, address := door(t, s, Options{ShowEndpoint: true})
	res, body, err := post(t, newClient(t, false), address, chatPath, "{}")
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Date": {"Tue, 15 Nov 1994 08:12:31 GMT"}, "Server": {"uvicorn"}, "Set-Cookie": {"a=1", "b=2"}, "Content-Type": {"text/plain"},
		"Content-Length": {"5"}, "X-Request-Id": {"id-1"}, "X-Penstock-Endpoint": {e.address}}
	if res.StatusCode != 418 || body != "hello" || fmt.Sprint(res.Header) != fmt.Sprint(want) {
		t.Errorf("got  %d %q %v\nwant %v", res.StatusCode, body, res.Header, want)
	}
}

func TestMethodsWithoutBody(t *testing.T) {
	seen := make(chan string, 1)
	e := newEngine(t, func(w *wire) bool {
		seen <- fmt.Sprint(w.req.Method, " ", w.req.RequestURI, " ", w.req.Header["Content-Length"], w.req.TransferEncoding)
		switch w.req.Method {
		case "HEAD":
			w.say("HTTP/1.1 200 OK\r\ncontent-length: 70\r\n\r\n")
		case "DELETE":
			w.say("HTTP/1.1 204 No Content\r\n\r\n")
		default:
			w.say(okText)
		}
		return true
	})
	s := newScript(e.address)
	_, address := door(t, s, Options{})
	for _, h2 := range []bool{false, true} {
		c := newClient(t, h2)
		for method, want := range map[string]int{"GET": 200, "HEAD": 200, "OPTIONS": 200, "DELETE": 204} {
			req, _ := http.NewRequest(method, "http://"+address+"/some/path", nil)
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(method, err)
			}
			res.Body.Close()
			if got := <-seen; res.StatusCode != want || got != method+" /some/path [] []" {
				t.Errorf("%s: %d, engine saw %q", method, res.StatusCode, got)
			}
			if method == "HEAD" && res.ContentLength != 70 {
				t.Errorf("HEAD: content-length %d", res.ContentLength)
			}
			if x := s.done(t); x.end != observe.Complete {
				t.Errorf("%s: %s", method, x.end)
			}
		}
	}
	if e.opened != 1 {
		t.Errorf("%d connections to the engine for 8 requests one after the other", e.opened)
	}
}

func TestTrailersBothWays(t *testing.T) {
	for _, out := range []string{"http/1.1", "h2c"} {
		for _, in := range []string{"http/1.1", "h2c"} {
			t.Run(in+" to "+out, func(t *testing.T) {
				seen := make(chan string, 1)
				var s *script
				if out == "h2c" {
					s = newScript(h2cEngine(t, func(w http.ResponseWriter, r *http.Request) {
						b, _ := io.ReadAll(r.Body)
						seen <- string(b) + r.Trailer.Get("X-Sum")
						w.Header().Set("Trailer", "X-Told")
						io.WriteString(w, "hello")
						w.Header().Set("X-Told", "1")
						w.Header().Set(http.TrailerPrefix+"X-Untold", "2")
					}))
					s.h2c = true
				} else {
					s = newScript(newEngine(t, func(w *wire) bool {
						seen <- string(w.body) + w.req.Trailer.Get("X-Sum")
						w.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-told\r\n\r\n5\r\nhello\r\n0\r\nx-told: 1\r\nx-untold: 2\r\n\r\n")
						return true
					}).address)
				}
				_, address := door(t, s, Options{})
				req, _ := http.NewRequest("POST", "http://"+address+chatPath, pieces{strings.NewReader("body"), 3})
				req.Trailer = http.Header{"X-Sum": {"+"}}
				res, err := newClient(t, in == "h2c").Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				b, err := io.ReadAll(res.Body)
				if got := <-seen; got != "body+" {
					t.Errorf("engine saw %q", got)
				}
				if string(b) != "hello" || err != nil || res.Trailer.Get("X-Told") != "1" || res.Trailer.Get("X-Untold") != "2" {
					t.Errorf("client saw %q, %v, trailers %v", b, err, res.Trailer)
				}
			})
		}
	}
}

func TestInformationalAnswersAndExpect(t *testing.T) {
	e := newEngine(t, func(w *wire) bool {
		if w.req.Header.Get("Expect") != "" {
			t.Error("expect went on to the engine")
		}
		w.say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + okText)
		return true
	})
	s := newScript(e.address)
	_, address := door(t, s, Options{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	br := bufio.NewReader(conn)
	want := func(line string) {
		t.Helper()
		if got, _ := br.ReadString('\n'); strings.TrimSpace(got) != line {
			t.Fatalf("got %q, want %q", got, line)
		}
	}
	want("HTTP/1.1 100 Continue")
	want("")
	fmt.Fprint(conn, "{}")
	want("HTTP/1.1 103 Early Hints")
	want("Link: </a>")
	want("")
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 200 || res.Header.Get("Link") != "" {
		t.Fatal(res, err)
	}
}

func TestEventsGoOnAtOnce(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		got := make(chan struct{})
		e := newEngine(t, func(w *wire) bool {
			w.say(sseHead)
			<-got
			for i := range 20 {
				w.event(fmt.Sprint(i))
				<-got // the next one is not sent before the client has this one
			}
			w.say("0\r\n\r\n")
			return true
		})
		s := newScript(e.address)
		_, address := door(t, s, Options{})
		res, err := newClient(t, h2).Post("http://"+address+chatPath, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		got <- struct{}{} // the head came before any event
		br := bufio.NewReader(res.Body)
		for i := range 20 {
			line, err := br.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("%q %v", line, err)
			}
			_, _ = br.ReadString('\n')
			got <- struct{}{}
		}
		if _, err := br.ReadByte(); err != io.EOF {
			t.Error(err)
		}
		res.Body.Close()
		if x := s.done(t); x.end != observe.Complete {
			t.Error(x.end)
		}
	}
}

func TestModels(t *testing.T) {
	s := newScript()
	_, address := door(t, s, Options{})
	c := newClient(t, false)
	get := func(path string) (int, string) {
		res, err := c.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	if st, b := get("/v1/models"); st != 200 || b != `{"data":[],"object":"list"}` {
		t.Errorf("nothing there: %d %s", st, b)
	}
	s.models = []string{"a", "org/b"}
	if st, b := get("/v1/models"); st != 200 || !strings.Contains(b, `"id":"a","object":"model"`) || !strings.Contains(b, `"id":"org/b"`) {
		t.Errorf("list: %d %s", st, b)
	}
	if st, b := get("/v1/models/org/b"); st != 200 || !strings.HasPrefix(b, `{"id":"org/b","object":"model"`) {
		t.Errorf("one: %d %s", st, b)
	}
	if st, b := get("/v1/models/zzz"); st != 404 || !strings.Contains(b, `"model_not_found"`) {
		t.Errorf("unknown: %d %s", st, b)
	}
	s.models = nil
	s.endpoints = newScript(newEngine(t, func(w *wire) bool { w.say(okText); return true }).address).endpoints
	if st, b := get("/v1/models"); st != 200 || b != "{}" {
		t.Errorf("not told yet: %d %s, want the endpoint's own answer", st, b)
	}
}

func TestTunnelsAreRefused(t *testing.T) {
	s := newScript(newEngine(t, func(w *wire) bool { w.say(okText); return true }).address)
	_, address := door(t, s, Options{})
	for _, head := range []string{
		"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n",
		"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, head)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 501 {
			t.Errorf("%.20s: %v %v", head, res, err)
		}
		conn.Close()
	}
}

func TestOverTheLimitIsToldToAClientThatSendsFirst(t *testing.T) {
	s := newScript(dead(t))
	s.max = 1 << 20
	_, address := door(t, s, Options{})
	for _, piece := range []int{0, 64 << 10} {
		var r io.Reader = strings.NewReader(strings.Repeat("x", 1<<20+1))
		if piece > 0 {
			r = pieces{r, piece}
		}
		res, err := newClient(t, false).Post("http://"+address+chatPath, "", r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 413 || !strings.Contains(string(b), "1048576") {
			t.Errorf("%d %s", res.StatusCode, b)
		}
	}
}

func TestPanicIsContained(t *testing.T) {
	s := newScript(dead(t))
	s.panics = true
	var logged atomic.Int64
	_, address := door(t, s, Options{Log: counting(&logged)})
	res, body, err := post(t, newClient(t, false), address, chatPath, "{}")
	if err != nil || res.StatusCode != 500 || !strings.Contains(body, "internal error") || strings.Contains(body, "a mistake") {
		t.Error(res, body, err)
	}
	if x := s.done(t); x.ends != 1 || logged.Load() != 1 {
		t.Errorf("ended %d times, %d log lines", x.ends, logged.Load())
	}
}

func TestSlowClientHoldsTheEngineBack(t *testing.T) {
	sent, leave := make(chan int64, 1), make(chan struct{})
	e := newEngine(t, func(w *wire) bool {
		w.say(sseHead)
		var n int64
		chunk := strings.Repeat("x", 1<<16)
		for {
			_ = w.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			k, err := fmt.Fprintf(w, "10000\r\n%s\r\n", chunk)
			if n += int64(k); err != nil {
				sent <- n
				<-leave
				return false
			}
		}
	})
	s := newScript(e.address)
	_, address := door(t, s, Options{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	if n := <-sent; n > 64<<20 { // what two socket buffers may grow to
		t.Errorf("engine could send %d bytes to a client that reads none", n)
	}
	conn.Close()
	if x := s.done(t); x.end != observe.ClientLeft {
		t.Error(x.end)
	}
	close(leave)
}

func TestDrainLetsStreamsFinish(t *testing.T) {
	going, finish := make(chan struct{}), make(chan struct{})
	e := newEngine(t, func(w *wire) bool {
		w.say(sseHead)
		w.event("1")
		close(going)
		<-finish
		w.event("2")
		w.say("0\r\n\r\n")
		return true
	})
	s := newScript(e.address)
	srv := newServer(s, Options{})
	lis, _ := net.Listen("tcp", "127.0.0.1:0")
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- srv.Run(ctx, lis) }()
	c := newClient(t, false)
	res, err := c.Post("http://"+lis.Addr().String()+chatPath, "", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	<-going
	stop()
	for { // until nobody is let in any more
		if conn, err := net.Dial("tcp", lis.Addr().String()); err != nil {
			break
		} else {
			conn.Close()
		}
	}
	close(finish)
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || string(b) != "data: 1\n\ndata: 2\n\n" {
		t.Errorf("%q %v", b, err)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestDrainCutsOffWhatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemnet()
		engineSide := m.listen("e:1")
		var wg syncGroup
		wg.Go(func() {
			c, err := engineSide.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			w := &wire{Conn: c, br: bufio.NewReader(c)}
			if _, err := http.ReadRequest(w.br); err != nil {
				t.Error(err)
			}
			w.say(sseHead)
			w.event("1")
			_, _ = w.br.ReadByte() // never ends by itself
		})
		s := newScript("e:1")
		srv := newServer(s, Options{Drain: 20 * time.Second, Dial: m.dial})
		lis := m.listen("d:1")
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- srv.Run(ctx, lis) }()
		conn, _ := m.dial(t.Context(), "", "d:1")
		fmt.Fprint(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		br := bufio.NewReader(conn)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		stop()
		b, err := io.ReadAll(res.Body)
		if err != io.ErrUnexpectedEOF || !strings.HasPrefix(string(b), "data: 1\n\ndata: {\"error\":") || strings.Contains(string(b), "[DONE]") {
			t.Errorf("%q %v", b, err)
		}
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("cut off after %s", took)
		}
		conn.Close()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if x := <-s.ended; x.end != observe.Broken || !slices.Contains(x.failed, errStopping) {
			t.Error(x.end, x.failed)
		}
		engineSide.Close()
		wg.Wait()
	})
}

func TestStalledBodyTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemnet()
		s := newScript("e:1")
		srv := newServer(s, Options{Dial: m.dial})
		lis := m.listen("d:1")
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- srv.Run(ctx, lis) }()
		conn, _ := m.dial(t.Context(), "", "d:1")
		fmt.Fprint(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
		for range 4 { // progress, however slow
			<-time.After(25 * time.Second)
			fmt.Fprint(conn, "x")
		}
		begin := time.Now()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 408 || !res.Close {
			t.Fatal(res, err)
		}
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("timed out after %s without progress", took)
		}
		if x := <-s.ended; x.end != observe.Refused || x.refused.Status != 408 || s.memory.Held() != 0 {
			t.Error(x.end, x.refused)
		}
		conn.Close()
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}
