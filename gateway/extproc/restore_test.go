// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

const (
	answerJSON = `{"model":"target","choices":[{"message":{"content":"\"model\":\"target\" é"}}]}`
	wantJSON   = `{"model":"the model's name","choices":[{"message":{"content":"\"model\":\"target\" é"}}]}`
)

// answering begins a call whose answer is to get the name back for the target, up to the answer's head.
// It gives the change of that head.
func answering(t *testing.T, mode filterv3.ProcessingMode_BodySendMode, length int) (*rig, *call, []string) {
	t.Helper()
	f := newFake(0)
	r := newRig(t, f, Options{})
	c := r.open()
	h := reqHeadersMsg(true)
	h.ProtocolConfig = modes(filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, mode)
	c.send(h)
	c.recv()
	x := <-f.began
	x.restore = new(request.Restorer)
	x.restore.Reset(request.Chat, false, "target", "the model's name")
	head := respHeadersMsg(200, "application/json", false)
	head.GetResponseHeaders().Headers.Headers = append(head.GetResponseHeaders().Headers.Headers, headerMap([]string{"content-length", fmt.Sprint(length)}).Headers...)
	c.send(head)
	return r, c, c.recv().GetResponseHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders()
}

// apply does to a piece what a reply says.
func apply(t *testing.T, m *extprocv3.ProcessingResponse, piece string) string {
	t.Helper()
	if m.GetResponseBody() == nil {
		t.Fatalf("got %v", m)
	}
	change := m.GetResponseBody().GetResponse().GetBodyMutation()
	switch {
	case change.GetStreamedResponse() != nil:
		return string(change.GetStreamedResponse().GetBody())
	case change.GetClearBody():
		return ""
	case change != nil:
		return string(change.GetBody())
	}
	return piece
}

// An answer is restored in every mode in which it is seen, wherever it is cut, and its length is right or
// not told.
func TestRestoredAnswers(t *testing.T) {
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, filterv3.ProcessingMode_STREAMED} {
		for _, size := range []int{1, 5, 13, 17, len(answerJSON)} {
			r, c, removed := answering(t, mode, len(answerJSON))
			if !slices.Equal(removed, []string{"content-length"}) {
				t.Errorf("%s: removes %v", mode, removed)
			}
			var got strings.Builder
			for piece := range slices.Chunk([]byte(answerJSON), size) {
				c.send(respBodyMsg(piece, false))
				got.WriteString(apply(t, c.recv(), string(piece)))
			}
			c.send(respBodyMsg(nil, true))
			m := c.recv()
			got.WriteString(apply(t, m, ""))
			if got.String() != wantJSON {
				t.Errorf("%s by %d: got %s", mode, size, got.String())
			}
			c.finish()
			if x := r.wantEnd(observe.Complete); string(x.passed) != answerJSON {
				t.Errorf("the gateway was told %s", x.passed)
			}
		}
	}
	for mode, length := range map[filterv3.ProcessingMode_BodySendMode]string{
		filterv3.ProcessingMode_BUFFERED: fmt.Sprint(len(wantJSON)), filterv3.ProcessingMode_BUFFERED_PARTIAL: "",
	} {
		r, c, removed := answering(t, mode, len(answerJSON))
		if want := length == ""; slices.Equal(removed, []string{"content-length"}) != want {
			t.Errorf("%s: removes %v", mode, removed)
		}
		c.send(respBodyMsg([]byte(answerJSON), true))
		m := c.recv()
		told := ""
		for _, h := range m.GetResponseBody().GetResponse().GetHeaderMutation().GetSetHeaders() {
			told += h.Header.Key + string(h.Header.RawValue)
		}
		if got := apply(t, m, answerJSON); got != wantJSON || strings.TrimPrefix(told, "content-length") != length {
			t.Errorf("%s: got %s, with %q", mode, got, told)
		}
		c.finish()
		r.wantEnd(observe.Complete)
	}
}

// What was kept back of an answer that breaks off in the name comes before the trailers.
func TestRestoredBeforeTrailers(t *testing.T) {
	r, c, _ := answering(t, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, 100)
	c.send(respBodyMsg([]byte(`{"model":"tar`), false), respTrailersMsg())
	got := apply(t, c.recv(), "") + apply(t, c.recv(), "")
	if got != `{"model":"tar` {
		t.Errorf("got %s", got)
	}
	if c.recv().GetResponseTrailers() == nil {
		t.Error("want trailers")
	}
	c.finish()
	r.wantEnd(observe.Complete)
}

// An answer in which nothing is to be restored gets the replies that it always got.
func TestNothingRestored(t *testing.T) {
	r, c, _ := answering(t, filterv3.ProcessingMode_STREAMED, 2)
	c.send(respBodyMsg([]byte("{}"), true))
	if m := c.recv(); m.GetResponseBody() == nil || m.GetResponseBody().Response != nil {
		t.Errorf("got %v", m)
	}
	c.finish()
	r.wantEnd(observe.Complete)
}
