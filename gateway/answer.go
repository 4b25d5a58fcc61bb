// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/request"
)

// Answer is told the head of the answer, and returns headers to add to it. From here on the request goes
// nowhere else, so that its body is let go: an open stream costs little memory whatever its prompt was.
func (x *Exchange) Answer(status int, h Headers) []Header {
	x.out.Status = status
	var added []Header
	if x.order != nil {
		added = x.answered(status)
		x.order[0] = x.order[x.at] // the others would be kept as they are now
		clear(x.order[1:])
		x.order, x.at = x.order[:1], 0
	}
	x.release()
	x.watch(h)
	return added
}

// Unreached tells that the answer is the proxy's own, since it could not connect to the endpoint, or was hung up on.
// It comes before Answer.
func (x *Exchange) Unreached(reason string) { x.unreached = reason }

// answered judges the endpoint by its status, and collects what plugins add to the answer's head.
func (x *Exchange) answered(status int) (added []Header) {
	e, now := x.order[x.at], time.Now()
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		cause := fmt.Sprintf("it answered %d", status)
		if x.unreached != "" {
			cause = "the proxy could not reach it: " + x.unreached
		}
		x.failed(now, x.unreached != "", cause)
	default:
		if e.Load.Heal(now) {
			x.g.Log.Info("endpoint healed", slog.String("endpoint", e.ID.String()), slog.String("address", e.Address))
		}
	}
	if x.cycle != nil && x.lane.Plan.Answers() {
		x.lane.Plan.Answered(x.cycle, e, func(name, value string) {
			added = slices.DeleteFunc(added, func(h Header) bool { return h.Name == name }) // two may say the same
			added = append(added, Header{Name: name, Value: value})
		})
	}
	if x.trusted && x.head.Headers.Get(decisionHeader) != "" {
		if line := x.brief(); line != "" {
			added = append(added, Header{Name: decisionHeader, Value: line})
		}
	}
	return added
}

// watch prepares for reading the answer as it passes.
func (x *Exchange) watch(h Headers) {
	if e := h.Get("content-encoding"); e != "" && e != "identity" {
		return // passed on as it is; what it says is not ours to read
	}
	x.sse = strings.HasPrefix(strings.ToLower(h.Get("content-type")), "text/event-stream")
	x.out.Stream = x.out.Stream || x.sse
	if x.answer == nil {
		x.answer = answers.Get().(*request.Answer)
	}
	x.answer.Reset(x.api, x.sse)
	x.restores(h)
}

// Pass is told a piece of the answer's body as it goes by; p is not kept.
func (x *Exchange) Pass(p []byte) {
	x.out.ResponseBytes += int64(len(p))
	if x.answer == nil || len(p) == 0 {
		return
	}
	start := time.Now()
	x.answer.Feed(p)
	now := time.Now()
	x.out.Answering += now.Sub(start)
	if x.answer.Output || !x.sse {
		if x.sse {
			x.hold.Begun(now)
			x.hold.Wrote(now, int64(x.answer.Events))
			if x.out.Last == 0 {
				x.ticket.Eased()
			}
		}
		last := x.out.Last
		x.out.Last = start.Sub(x.out.Start)
		if last == 0 {
			x.out.TTFT = x.out.Last
		} else if x.sse {
			x.out.Gaps.Add(x.out.Last - last)
		}
	}
}

// judge holds the end of an answer for or against its endpoint.
func (x *Exchange) judge(end observe.End) {
	switch answered := x.order != nil && x.out.Status != 0 && x.out.Status < 500; {
	case answered && end == observe.Broken && !x.g.Draining():
		x.failed(time.Now(), false, cmp.Or(x.out.Message, "the answer broke off"))
	case answered && end == observe.Complete:
		x.order[x.at].Load.Well(time.Now(), x.g.Health())
	}
}

// grade compares what was predicted of the endpoint's cache with what its engine reported.
func (x *Exchange) grade() {
	served := x.order != nil && x.out.Status >= 200 && x.out.Status < 300
	if served && x.out.Address == x.order[x.at].Address && x.facts.Single() {
		x.order[x.at].Load.Graded(int64(x.out.PredictedCached), int64(x.out.Cached), int64(x.out.PromptTokens))
	}
	x.settle(served && x.out.Address == x.order[x.at].Address) // what another served says nothing of this one
}

// work is what the request really brought, as far as the engine told, in tokens of uncached prompt and of
// output; below 0 for unknown.
func (x *Exchange) work() (uncached, output int64) {
	uncached, output = -1, int64(x.out.OutputTokens)
	if x.out.PromptTokens >= 0 {
		uncached = int64(x.out.PromptTokens - max(0, x.out.Cached))
	}
	return uncached, output
}
