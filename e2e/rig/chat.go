// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// Turn is one answer, as a client library handed it to its user.
type Turn struct {
	Conversation, Turn int
	Model              string // that the answer says, in every event
	Text, Finish       string
	Events             int
	Usage              bool
	PromptTokens       int64 `json:"prompt_tokens"`
	CompletionTokens   int64 `json:"completion_tokens"`
	CachedTokens       int64 `json:"cached_tokens"`
	Endpoint           string
}

// A Client has conversations of three turns (plain, streamed with usage, streamed without) by way
// of the gateway at base.
type Client func(t testing.TB, base string, conversations int) []Turn

// Clients are the OpenAI SDKs by language.
var Clients = []struct {
	Language string
	Chat     Client
}{
	{"python", func(t testing.TB, base string, conversations int) []Turn {
		return script(t, filepath.Join("venv", "bin", "python"), "chat.py", base, fmt.Sprint(conversations))
	}},
	{"node", func(t testing.TB, base string, conversations int) []Turn {
		return script(t, "node", "chat.cjs", base, fmt.Sprint(conversations))
	}},
	{"go", goClient},
}

// Messages has one plain and one streamed answer from Anthropic's Python SDK.
func Messages(t testing.TB, base, model string) []Turn {
	t.Helper()
	return script(t, filepath.Join("venv", "bin", "python"), "messages.py", base, model)
}

// script runs one of e2e/clients and reads its lines.
func script(t testing.TB, program, name string, args ...string) []Turn {
	t.Helper()
	sdks := Tool(t, "install-sdks.sh")
	if strings.Contains(program, "/") {
		program = filepath.Join(sdks, program)
	}
	argv := append([]string{program, filepath.Join(Root(), "e2e", "clients", name)}, args...)
	out := json.NewDecoder(strings.NewReader(Run(t, []string{"NODE_PATH=" + filepath.Join(sdks, "node_modules")}, argv...)))
	var turns []Turn
	for {
		var turn Turn
		if err := out.Decode(&turn); errors.Is(err, io.EOF) {
			return turns
		} else if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, turn)
	}
}

func goClient(t testing.TB, base string, conversations int) []Turn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := openai.NewClient(option.WithBaseURL(base+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	models, err := client.Models.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var turns []Turn
	for c := range conversations {
		messages := []openai.ChatCompletionMessageParamUnion{
			openai.UserMessage(fmt.Sprintf("go %s %d: ", base, c) + strings.Repeat(fmt.Sprintf("word%d ", c), 500)),
		}
		for i := range 3 {
			ask := openai.ChatCompletionNewParams{Model: models.Data[0].ID, Messages: messages,
				MaxTokens: openai.Int(16), Temperature: openai.Float(0)}
			turn := Turn{Conversation: c, Turn: i + 1}
			var usage openai.CompletionUsage
			var response *http.Response
			if i == 0 {
				answer, err := client.Chat.Completions.New(ctx, ask, option.WithResponseInto(&response))
				if err != nil {
					t.Fatal(err)
				}
				usage = answer.Usage
				turn.Model, turn.Events = answer.Model, 1
				turn.Text, turn.Finish = answer.Choices[0].Message.Content, answer.Choices[0].FinishReason
			} else {
				ask.StreamOptions.IncludeUsage = openai.Bool(i == 1)
				stream := client.Chat.Completions.NewStreaming(ctx, ask, option.WithResponseInto(&response))
				for stream.Next() {
					turn.Events++
					event := stream.Current()
					if turn.Events > 1 && turn.Model != event.Model {
						t.Errorf("event %d says %q, those before %q", turn.Events, event.Model, turn.Model)
					}
					turn.Model = event.Model
					if event.Usage.TotalTokens > 0 {
						usage = event.Usage
					}
					for _, choice := range event.Choices {
						turn.Text += choice.Delta.Content
						if choice.FinishReason != "" {
							turn.Finish = choice.FinishReason
						}
					}
				}
				if err := stream.Err(); err != nil {
					t.Fatal(err)
				}
			}
			turn.Usage = usage.TotalTokens > 0
			turn.PromptTokens, turn.CompletionTokens = usage.PromptTokens, usage.CompletionTokens
			turn.CachedTokens = usage.PromptTokensDetails.CachedTokens
			turn.Endpoint = response.Header.Get("x-penstock-endpoint")
			turns = append(turns, turn)
			messages = append(messages, openai.AssistantMessage(turn.Text), openai.UserMessage(fmt.Sprintf("go on with %d", i+1)))
		}
	}
	return turns
}

// CheckTurns holds the answers to what a user expects: each is whole, and the engine found the
// first turn's prompt in its cache when it got the second, so it is the same engine.
func CheckTurns(t testing.TB, turns []Turn, conversations int) {
	t.Helper()
	if len(turns) != 3*conversations {
		t.Fatalf("%d answers, want %d", len(turns), 3*conversations)
	}
	first := map[int]Turn{}
	for _, turn := range turns {
		streamed, usage := turn.Turn > 1, turn.Turn < 3
		switch {
		case turn.Finish != "stop" && turn.Finish != "length":
			t.Errorf("finish reason %q: %+v", turn.Finish, turn)
		case turn.Usage != usage:
			t.Errorf("usage told: %v, want %v: %+v", turn.Usage, usage, turn)
		case usage && (turn.CompletionTokens < 1 || turn.CompletionTokens > 16):
			t.Errorf("%d tokens, want 1 to 16: %+v", turn.CompletionTokens, turn)
		case streamed && turn.Events < 2:
			t.Errorf("a stream of %d events: %+v", turn.Events, turn)
		case turn.Turn == 1:
			first[turn.Conversation] = turn
			if turn.CachedTokens > turn.PromptTokens/2 {
				t.Errorf("a new conversation was already in a cache: %+v", turn)
			}
		case turn.Endpoint != first[turn.Conversation].Endpoint:
			t.Errorf("the conversation moved from %s: %+v", first[turn.Conversation].Endpoint, turn)
		case turn.Turn == 2 && turn.CachedTokens < first[turn.Conversation].PromptTokens/2:
			t.Errorf("turn 2 found %d tokens in the cache, want most of %d: %+v", turn.CachedTokens, first[turn.Conversation].PromptTokens, turn)
		}
	}
}

// Homes returns the endpoints that served the turns.
func Homes(turns []Turn) []string {
	var homes []string
	for _, turn := range turns {
		homes = append(homes, turn.Endpoint)
	}
	slices.Sort(homes)
	return slices.Compact(homes)
}

// Body is a chat request for the model "m".
func Body(prompt string, stream bool) string {
	b, _ := json.Marshal(map[string]any{"model": "m", "max_tokens": 16, "stream": stream,
		"messages": []any{map[string]string{"role": "user", "content": prompt}}})
	return string(b)
}

// Answer is what an HTTP client got. Broken says how the answer was cut off, when it was.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	Broken error
}

// Post sends a chat request to the gateway at addr and reads the answer to its end.
func Post(t testing.TB, addr string, body io.Reader, header http.Header) Answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		request.Header[name] = values
	}
	client := &http.Client{Timeout: 2 * Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return Answer{Broken: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, string(text), err}
}

// Ask is Post of one prompt.
func Ask(t testing.TB, addr, prompt string) Answer {
	t.Helper()
	return Post(t, addr, strings.NewReader(Body(prompt, false)), nil)
}

// Whole reports why a streamed answer is not complete, nil when it is.
func (a Answer) Whole() error {
	switch {
	case a.Broken != nil:
		return a.Broken
	case a.Status != http.StatusOK:
		return fmt.Errorf("status %d: %s", a.Status, a.Body)
	case strings.Count(a.Body, `"content"`) != Events || !strings.Contains(a.Body, "data: [DONE]"):
		return fmt.Errorf("not all events came: %s", a.Body)
	}
	return nil
}

// Stream is an answer that is still coming.
type Stream struct {
	response *http.Response
	cancel   context.CancelFunc
	lines    *bufio.Reader
}

// Open starts a streamed chat and returns once the first event has come.
func Open(t testing.TB, addr, prompt string) *Stream {
	t.Helper()
	return OpenBody(t, addr, Body(prompt, true))
}

// OpenBody is Open with a body of one's own.
func OpenBody(t testing.TB, addr, body string) *Stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	s := &Stream{response, cancel, bufio.NewReader(response.Body)}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d: %s", response.StatusCode, text)
	}
	if line, err := s.lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatalf("the first event is %q, %v", line, err)
	}
	return s
}

// Engine is the address of the engine that answers.
func (s *Stream) Engine() string { return s.response.Header.Get("X-Engine") }

// Rest reads to the end. It returns nil for an answer with its end marker and a clean end.
func (s *Stream) Rest() error {
	defer s.response.Body.Close()
	text, err := io.ReadAll(s.lines)
	switch {
	case err != nil:
		return err
	case !strings.Contains(string(text), "data: [DONE]"):
		return fmt.Errorf("a clean end without [DONE]: %s", text)
	}
	return nil
}

// Leave closes the connection as a client does that has seen enough.
func (s *Stream) Leave() { s.cancel() }

// Get reads a page.
func Get(url string) (string, error) {
	client := &http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(text), err
}
