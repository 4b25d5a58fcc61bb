// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// result is what came of one request.
type result struct {
	endpoint   string        // who answered, as the gateway says it
	fault      string        // "" or what went wrong, in a word: a closed set, fit for counting
	ttft       time.Duration // to the first token
	took       time.Duration
	prompt     int // tokens
	cached     int // of these
	completion int
	text       string
}

// event is what we read of a streamed event.
type event struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// maxEvent is the longest event in bytes that we read.
const maxEvent = 1 << 20

// send sends one streamed chat request and reads the answer.
func (r *runner) send(ctx context.Context, messages []message) (got result) {
	body, err := json.Marshal(map[string]any{
		"model": r.opts.Model, "messages": messages, "max_tokens": r.opts.MaxTokens, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic(err) // our own types
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(r.opts.URL, "/")+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		got.fault = "bad URL"
		return got
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	defer func() { got.took = time.Since(began) }()
	resp, err := r.client.Do(req)
	if err != nil {
		got.fault = faultOf(err)
		return got
	}
	defer func() { _ = resp.Body.Close() }()
	got.endpoint = resp.Header.Get("X-Penstock-Endpoint")
	if resp.StatusCode != http.StatusOK {
		got.fault = strconv.Itoa(resp.StatusCode)
		if reason := resp.Header.Get("X-Llm-D-Request-Dropped-Reason"); reason != "" && len(reason) < 64 {
			got.fault += " " + reason
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection is used again
		return got
	}
	got.read(resp.Body, began)
	return got
}

// read reads a stream to its end.
func (got *result) read(body io.Reader, began time.Time) {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	var text strings.Builder
	defer func() { got.text = text.String() }()
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			_, _ = io.CopyN(io.Discard, body, 4096)
			return
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil || len(e.Error) > 0 {
			got.fault = "bad event"
			return
		}
		for _, c := range e.Choices {
			if c.Delta.Content != "" && got.ttft == 0 {
				got.ttft = time.Since(began)
			}
			text.WriteString(c.Delta.Content)
		}
		if e.Usage != nil {
			got.prompt, got.completion = e.Usage.Prompt, e.Usage.Completion
			if e.Usage.Details != nil {
				got.cached = e.Usage.Details.Cached
			}
		}
	}
	got.fault = "broken stream" // no [DONE]
}

// faultOf names a transport's error.
func faultOf(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "no answer"
}
