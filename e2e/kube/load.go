// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// Outcome is how one streamed request ended.
type Outcome struct {
	Start       time.Time
	First, Took time.Duration // to the first event, to the end
	Status      int           // 0 when there was no answer
	Events      int           // of the answer
	Endpoint    string        // that answered
	Err         error         // why the answer is not whole
}

// Load is traffic that goes on until it is stopped. Each client sends its next request when the answer to the last has
// come to its end, and nobody tries again: every outcome counts.
type Load struct {
	cancel  context.CancelFunc
	clients sync.WaitGroup

	mu       sync.Mutex
	outcomes []Outcome
}

// Traffic starts clients that stream answers of some tokens from the gateway at addr, with these headers.
func Traffic(t testing.TB, addr string, clients, tokens int, header http.Header) *Load {
	return TrafficFor(t, addr, "m", clients, tokens, header)
}

// TrafficFor is Traffic for a model.
func TrafficFor(t testing.TB, addr, model string, clients, tokens int, header http.Header) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel}
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	for i := range clients {
		l.clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				body := tokensOf(rig.Body(fmt.Sprintf("client %d, request %d", i, n), true), tokens)
				o := stream(transport, addr, strings.Replace(body, `"model":"m"`, `"model":"`+model+`"`, 1), header)
				l.mu.Lock()
				l.outcomes = append(l.outcomes, o)
				l.mu.Unlock()
				wait(ctx, 100*time.Millisecond) // the clients share two cores with the cluster
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		l.clients.Wait()
	})
	return l
}

// Once is a load of one request.
func Once(t testing.TB, addr string, tokens int, header http.Header) *Load {
	l := &Load{cancel: func() {}}
	l.clients.Go(func() {
		o := stream(&http.Transport{DisableKeepAlives: true}, addr, tokensOf(rig.Body("alone", true), tokens), header)
		l.mu.Lock()
		l.outcomes = append(l.outcomes, o)
		l.mu.Unlock()
	})
	t.Cleanup(l.clients.Wait)
	return l
}

// tokensOf is a body that asks for so many.
func tokensOf(body string, tokens int) string {
	return strings.Replace(body, `"max_tokens":16`, fmt.Sprintf(`"max_tokens":%d`, tokens), 1)
}

// sent counts the requests by the address that they were sent to.
var sent sync.Map

// sentTo is how many requests were sent to an address.
func sentTo(addr string) int64 {
	if n, ok := sent.Load(addr); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

// stream sends one request and reads its answer to the end. A request has two minutes.
func stream(transport http.RoundTripper, addr, body string, header http.Header) (o Outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	count, _ := sent.LoadOrStore(addr, new(atomic.Int64))
	count.(*atomic.Int64).Add(1)
	o.Start = time.Now()
	defer func() { o.Took = time.Since(o.Start) }()
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		o.Err = err
		return o
	}
	maps.Copy(request.Header, header)
	request.Header.Set("Content-Type", "application/json")
	response, err := transport.RoundTrip(request)
	if err != nil {
		o.Err = err
		return o
	}
	defer response.Body.Close()
	o.Status, o.Endpoint = response.StatusCode, response.Header.Get("x-penstock-endpoint")
	if o.Status != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		o.Err = fmt.Errorf("%d: %s", o.Status, text)
		return o
	}
	done := false
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if o.First == 0 {
			o.First = time.Since(o.Start)
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			o.Events++
		}
		done = done || strings.HasPrefix(lines.Text(), "data: [DONE]")
	}
	if o.Err = lines.Err(); o.Err == nil && !done {
		o.Err = errors.New("a clean end without [DONE]")
	}
	return o
}

// Ask sends one streamed request.
func Ask(addr, prompt string) Outcome {
	return stream(&http.Transport{DisableKeepAlives: true}, addr, rig.Body(prompt, true), nil)
}

// Outcomes returns what has ended so far.
func (l *Load) Outcomes() Outcomes {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.outcomes)
}

// More waits until n more requests have ended.
func (l *Load) More(t testing.TB, n int) {
	t.Helper()
	want := len(l.Outcomes()) + n
	rig.Eventually(t, fmt.Sprintf("%d more answers", n), func() error {
		if got := len(l.Outcomes()); got < want {
			return fmt.Errorf("%d are missing", want-got)
		}
		return nil
	})
}

// Stop ends the traffic and returns all outcomes; answers that are open are read to their end.
func (l *Load) Stop() Outcomes {
	l.cancel()
	l.clients.Wait()
	return l.Outcomes()
}

// Outcomes are those of a load.
type Outcomes []Outcome

// Since returns those of requests that began at a time or later.
func (all Outcomes) Since(at time.Time) Outcomes {
	return slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return o.Start.Before(at) })
}

// Lost returns those that did not get a whole answer.
func (all Outcomes) Lost() Outcomes {
	return slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool { return o.Err == nil })
}

// Endpoints counts the answers by who gave them.
func (all Outcomes) Endpoints() map[string]int {
	count := map[string]int{}
	for _, o := range all {
		count[o.Endpoint]++
	}
	return count
}

// Longest is the longest time to the first event.
func (all Outcomes) Longest() time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.MaxFunc(all, func(a, b Outcome) int { return cmp.Compare(a.First, b.First) }).First
}

// String counts the outcomes by their kind.
func (all Outcomes) String() string {
	kinds, firsts := map[string]int{}, []string(nil)
	for _, o := range all.Lost() {
		text := o.Err.Error()
		if o.Status == http.StatusOK {
			text = "broke off: " + text
		}
		if kinds[text] == 0 {
			firsts = append(firsts, fmt.Sprintf("\n  first at %s, after %v: %s", o.Start.UTC().Format("15:04:05.000"), o.Took.Round(time.Millisecond), text))
		}
		kinds[text]++
	}
	out := fmt.Sprintf("%d requests, %d lost, longest wait %v", len(all), len(all.Lost()), all.Longest().Round(time.Millisecond))
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		out += fmt.Sprintf("\n  %d × %s", kinds[kind], kind)
	}
	return out + strings.Join(firsts, "")
}
