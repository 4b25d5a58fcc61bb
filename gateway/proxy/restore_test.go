// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// restoring makes a script whose answers give the name back for the target.
func restoring(s *script, sse bool) *script {
	r := new(request.Restorer)
	s.restore = func() *request.Restorer { return r }
	r.Reset(request.Chat, sse, "target", "the model's name")
	return s
}

const (
	answerJSON = `{"id":"x","model":"target","choices":[{"message":{"content":"\"model\":\"target\" é"}}]}`
	wantJSON   = `{"id":"x","model":"the model's name","choices":[{"message":{"content":"\"model\":\"target\" é"}}]}`
)

// An answer that gets longer than its head says is whole for every client, of whatever protocol, from
// whatever endpoint, and wherever it was cut.
func TestRestoredAnswers(t *testing.T) {
	long := strings.Replace(answerJSON, "é", strings.Repeat("é", 5000), 1)
	for _, answer := range []string{answerJSON, long} {
		want := strings.Replace(answer, `"model":"target"`, `"model":"the model's name"`, 1)
		sized := fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", len(answer), answer)
		chunked := "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
		for rest := answer; rest != ""; {
			n := min(7, len(rest))
			chunked += fmt.Sprintf("%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		for name, text := range map[string]string{"sized": sized, "chunked": chunked + "0\r\n\r\n"} {
			for _, client := range []string{"http/1.1", "h2c"} {
				s := restoring(newScript(newEngine(t, func(w *wire) bool { w.say(text); return true }).address), false)
				_, address := door(t, s, Options{})
				res, got, err := post(t, newClient(t, client == "h2c"), address, chatPath, "{}")
				if err != nil || got != want || res.ContentLength >= 0 && res.ContentLength != int64(len(want)) {
					t.Errorf("%s, %s: got %.200q, length %d, %v", name, client, got, res.ContentLength, err)
				}
				if x := s.done(t); x.end != observe.Complete || x.passed.String() != answer {
					t.Errorf("%s, %s: ended %s, and was told %.200q", name, client, x.end, x.passed.String())
				}
			}
		}
		t.Run("http/1.0", func(t *testing.T) {
			s := restoring(newScript(newEngine(t, func(w *wire) bool { w.say(sized); return true }).address), false)
			_, address := door(t, s, Options{})
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprint(conn, "POST /v1/chat/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}")
			b, err := io.ReadAll(conn)
			if _, got, _ := strings.Cut(string(b), "\r\n\r\n"); err != nil || got != want {
				t.Errorf("got %.300q, %v", b, err)
			}
		})
	}
}

// From an endpoint that speaks h2c, with its length told.
func TestRestoredFromH2C(t *testing.T) {
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		w.Header().Set("content-length", fmt.Sprint(len(answerJSON)))
		_, _ = io.WriteString(w, answerJSON)
	}))
	engine.Config.Protocols = new(http.Protocols)
	engine.Config.Protocols.SetUnencryptedHTTP2(true)
	engine.Start()
	defer engine.Close()
	for _, client := range []string{"http/1.1", "h2c"} {
		s := restoring(newScript(engine.Listener.Addr().String()), false)
		s.h2c = true
		_, address := door(t, s, Options{})
		_, got, err := post(t, newClient(t, client == "h2c"), address, chatPath, "{}")
		if err != nil || got != wantJSON {
			t.Errorf("%s: got %q, %v", client, got, err)
		}
		s.done(t)
	}
}

// Events go on at once with what is to be seen of them, also when one breaks off in the name.
func TestRestoredStream(t *testing.T) {
	seen := make(chan struct{})
	s := restoring(newScript(newEngine(t, func(w *wire) bool {
		w.say(sseHead)
		w.event(`{"model":"target","n":1}`)
		<-seen
		w.event(`{"model":"target","n":2}`)
		w.say("12\r\ndata: {\"model\":\"ta\r\n")
		return false
	}).address), true)
	_, address := door(t, s, Options{})
	res, err := newClient(t, false).Post("http://"+address+chatPath, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	const first = "data: {\"model\":\"the model's name\",\"n\":1}\n\n"
	b := make([]byte, len(first))
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != first {
		t.Fatalf("got %q, %v", b, err)
	}
	close(seen)
	rest, err := io.ReadAll(res.Body)
	if want := "data: {\"model\":\"the model's name\",\"n\":2}\n\ndata: {\"model\":\"ta"; err == nil || string(rest) != want {
		t.Errorf("got %q, %v; want %q and an error", rest, err, want)
	}
	if x := s.done(t); x.end != observe.Broken {
		t.Errorf("ended %s", x.end)
	}
}

// What is not restored is written as it came, from the very memory that it was read into.
func TestNothingRestoredIsNotCopied(t *testing.T) {
	event := []byte("data: {\"model\":\"m\"}\n\n")
	var same int
	w := &capture{write: func(p []byte) {
		if &p[0] == &event[0] && len(p) == len(event) {
			same++
		}
	}}
	src := &repeated{p: event, n: 200}
	s := stream{c: &call{w: w, x: &told{s: newScript()}}, sse: true}
	s.copy(src)
	if same != 200 {
		t.Errorf("%d of 200 pieces were passed on as they are", same)
	}
}

// capture is a writer of answers that shows what is written.
type capture struct {
	http.ResponseWriter
	write func([]byte)
}

func (c *capture) Write(p []byte) (int, error) {
	c.write(p)
	return len(p), nil
}

// repeated is a source of n equal pieces.
type repeated struct {
	p []byte
	n int
}

func (s *repeated) next() ([]byte, error) {
	if s.n == 0 {
		return nil, io.EOF
	}
	s.n--
	return s.p, nil
}

func (s *repeated) pending() bool       { return false }
func (s *repeated) ending() http.Header { return nil }
