// SPDX-License-Identifier: Apache-2.0

// Package trial offers a gateway more than its engines can do, and reports who got what.
package trial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Source is a tenant that sends requests at a rate of its own, whatever becomes of them.
type Source struct {
	Class     string // for people: premium, standard, best effort
	Tenant    string
	Objective string  // its InferenceObjective, none when empty
	Rate      float64 // requests a second
	Later     float64 // the rate of the second half, Rate when 0
	Words     int     // of each prompt; no two prompts are alike
	Tokens    int     // of each answer
}

// Sent is a request and what became of it. Times are from the start of the load.
type Sent struct {
	Source         *Source
	ID             string
	At, First, End time.Duration // First is 0 when no token came
	Status         int           // 0 when there was no answer
	Reason         string        // x-llm-d-request-dropped-reason
	Whole          bool          // the answer came to its end
	Text           string        // of an error
	Echo           string        // x-request-id of the answer

	Logged Line // what the gateway's log has of it
}

// Served reports whether the answer came whole between two times.
func (s *Sent) Served(from, to time.Duration) bool { return s.Whole && s.End >= from && s.End < to }

// Line is a request's line in the gateway's log.
type Line struct {
	Msg, ID, Tenant, End, Reason string
	Priority, Status             int
	QueueMS                      float64 `json:"queue_ms"`
	PromptTokens                 int     `json:"prompt_tokens"`
	OutputTokens                 int     `json:"output_tokens"`
}

// Lines reads the lines about requests from a gateway's log, by request.
func Lines(log string) map[string][]Line {
	out := map[string][]Line{}
	for text := range strings.Lines(log) {
		var l Line
		if json.Unmarshal([]byte(text), &l) == nil && l.Msg == "request" {
			out[l.ID] = append(out[l.ID], l)
		}
	}
	return out
}

// times are when the requests come: regular, but for a tenth more or less each, so that sources do not march in
// step. They are the same in each run.
func (s *Source) times(length time.Duration, r *rand.Rand) []time.Duration {
	var out []time.Duration
	for at := 0.0; ; {
		rate := s.Rate
		if s.Later > 0 && at >= length.Seconds()/2 {
			rate = s.Later
		}
		at += (0.9 + 0.2*r.Float64()) / rate
		if at >= length.Seconds() {
			return out
		}
		out = append(out, time.Duration(at*float64(time.Second)))
	}
}

// Offer sends the sources' requests to the gateway at addr for that long, and returns when each has its answer.
func Offer(ctx context.Context, addr string, sources []Source, length time.Duration) []*Sent {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}
	defer client.CloseIdleConnections()
	var (
		mu    sync.Mutex
		all   []*Sent
		group sync.WaitGroup
		start = time.Now()
	)
	for i := range sources {
		s, r := &sources[i], rand.New(rand.NewPCG(1, uint64(i)))
		group.Go(func() {
			for n, at := range s.times(length, r) {
				select {
				case <-ctx.Done():
					return
				case <-time.After(at - time.Since(start)):
				}
				sent := &Sent{Source: s, ID: fmt.Sprintf("%s-%d", s.Tenant, n)}
				group.Go(func() {
					sent.send(ctx, client, addr, start)
					mu.Lock()
					defer mu.Unlock()
					all = append(all, sent)
				})
			}
		})
	}
	group.Wait()
	return all
}

// send has one streamed answer.
func (s *Sent) send(ctx context.Context, client *http.Client, addr string, start time.Time) {
	var prompt strings.Builder
	for i := range s.Source.Words {
		fmt.Fprintf(&prompt, "%s.%d ", s.ID, i)
	}
	body, err := json.Marshal(map[string]any{"model": "m", "max_tokens": s.Source.Tokens, "stream": true,
		"stream_options": map[string]any{"include_usage": true},
		"messages":       []any{map[string]any{"role": "user", "content": prompt.String()}}})
	if err != nil {
		panic(err) // it always marshals
	}
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		panic(err) // the address is ours
	}
	request.Header.Set("content-type", "application/json")
	request.Header.Set("x-request-id", s.ID)
	request.Header.Set("x-llm-d-inference-fairness-id", s.Source.Tenant)
	if s.Source.Objective != "" {
		request.Header.Set("x-llm-d-inference-objective", s.Source.Objective)
	}
	s.At = time.Since(start)
	defer func() { s.End = time.Since(start) }()
	response, err := client.Do(request)
	if err != nil {
		s.Text = err.Error()
		return
	}
	defer response.Body.Close()
	s.Status, s.Reason = response.StatusCode, response.Header.Get("x-llm-d-request-dropped-reason")
	s.Echo = response.Header.Get("x-request-id")
	if s.Status != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		s.Text = string(text)
		return
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		switch {
		case err == io.EOF:
			return
		case err != nil:
			s.Text = err.Error()
			return
		case strings.HasPrefix(line, "data: [DONE]"):
			s.Whole = true
		case s.First == 0 && strings.HasPrefix(line, "data: "):
			s.First = time.Since(start)
		}
	}
}
