// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ErrService says that the rendering service did not answer, or not in time, or nonsense. It is not the request's fault.
var ErrService = errors.New("tokens: service")

// RemoteOptions are how a [Remote] asks.
type RemoteOptions struct {
	// Timeout is how long a request without media may take; 0 is 5 s.
	Timeout time.Duration
	// MediaTimeout is the same for a request with media, which the service has to fetch; 0 is 30 s.
	MediaTimeout time.Duration
	// Model is put in the place of the body's model, if it is not empty.
	Model string
	// MaxAnswer bounds an answer, in bytes; 0 is 64 MiB.
	MaxAnswer int64
	// MaxInFlight bounds the questions at one time; more are refused at once. 0 is 256.
	MaxInFlight int
	// Transport carries the questions; nil is one of HTTP/1.1 that keeps its connections.
	Transport http.RoundTripper
}

// Remote asks vLLM's own endpoints for a request's tokens: /v1/chat/completions/render and its sisters, of `vllm launch render` or
// of `vllm serve --enable-scale-out`, and /tokenize where those are missing or forbidden. It is safe for concurrent use.
//
// A service that fails three times in a row is left alone: for a second, and twice as long after each failure more, 30 s at
// most; then one question finds out. Till then the answer is [ErrService], at once.
type Remote struct {
	url     string
	o       RemoteOptions
	client  *http.Client
	places  chan struct{}
	mu      sync.Mutex
	failed  int                  // in a row
	until   time.Time            // it is left alone till then
	trying  bool                 // one question finds out
	noPaths map[string]time.Time // when paths that it has not will be asked for again
}

const (
	failuresToOpen = 3
	firstPause     = time.Second
	longestPause   = 30 * time.Second
	pathAgain      = time.Minute // a service may be replaced by one that has the path
)

// NewRemote returns a client of the service at url, such as http://127.0.0.1:8000. It does not ask anything yet.
func NewRemote(url string, o RemoteOptions) *Remote {
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.MediaTimeout == 0 {
		o.MediaTimeout = 30 * time.Second
	}
	if o.MaxAnswer == 0 {
		o.MaxAnswer = 64 << 20
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 256
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     90 * time.Second,
		}
	}
	return &Remote{url: strings.TrimSuffix(url, "/"), o: o, client: &http.Client{Transport: o.Transport},
		places: make(chan struct{}, o.MaxInFlight), noPaths: map[string]time.Time{}}
}

// renderPaths are where bodies of an API are rendered, and where they are tokenized by services that do not render.
var renderPaths = map[string][2]string{
	"chat":        {"/v1/chat/completions/render", "/tokenize"},
	"completions": {"/v1/completions/render", "/tokenize"},
	"messages":    {"/v1/messages/render", ""},
	"responses":   {"/v1/responses/render", ""},
}

// mediaWords are what bodies with media have in them.
var mediaWords = [][]byte{[]byte(`"image`), []byte(`"input_image`), []byte(`"video`), []byte(`"audio`), []byte(`"input_audio`)}

// Read appends the prompts of a body to into, as the service renders them, with the stretches that stand for media. Its
// error wraps [ErrService], [ErrBody], if the service refuses the body, or [ErrUnsupported]; into is then as it was.
func (r *Remote) Read(ctx context.Context, api string, body []byte, into *Prompts) error {
	paths, ok := renderPaths[api]
	if !ok {
		return fmt.Errorf("%w: bodies of %q have no rendering", ErrUnsupported, api)
	}
	body, err := r.dress(body)
	if err != nil {
		return err
	}
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	default:
		return fmt.Errorf("%w: %d questions are under way", ErrService, r.o.MaxInFlight)
	}
	probe, err := r.enter()
	if err != nil {
		return err
	}
	timeout := r.o.Timeout
	for _, w := range mediaWords {
		if bytes.Contains(body, w) {
			timeout = r.o.MediaTimeout
			break
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ids, starts, media := len(into.IDs), len(into.Starts), len(into.Media)
	err = r.ask(ctx, paths, body, into)
	if err != nil {
		into.IDs, into.Starts, into.Media = into.IDs[:ids], into.Starts[:starts], into.Media[:media]
	}
	r.leave(err, probe)
	return err
}

// dress adds to a body what makes the answer small, and the model. Of equal fields vLLM takes the last.
func (r *Remote) dress(body []byte) ([]byte, error) {
	inner := bytes.TrimSpace(body)
	if len(inner) < 2 || inner[0] != '{' || inner[len(inner)-1] != '}' {
		return nil, fmt.Errorf("%w: it is no object", ErrBody)
	}
	inner = bytes.TrimSpace(inner[1 : len(inner)-1])
	out := make([]byte, 0, len(inner)+len(r.o.Model)+64)
	out = append(out, `{"mm_payload":"none"`...)
	if len(inner) > 0 {
		out = append(append(out, ','), inner...)
	}
	if r.o.Model != "" {
		name, _ := json.Marshal(r.o.Model)
		out = append(append(out, `,"model":`...), name...)
	}
	return append(out, '}'), nil
}

// enter asks whether the service may be asked, and whether this is the question that finds out.
func (r *Remote) enter() (probe bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed < failuresToOpen {
		return false, nil
	}
	if r.trying || time.Now().Before(r.until) {
		return false, fmt.Errorf("%w: %s failed %d times in a row and is left alone", ErrService, r.url, r.failed)
	}
	r.trying = true
	return true, nil
}

// leave counts what became of a question. One that its asker gave up says nothing.
func (r *Remote) leave(err error, probe bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if probe {
		r.trying = false
	}
	switch {
	case !errors.Is(err, ErrService):
		r.failed = 0
	case errors.Is(err, context.Canceled):
	default:
		r.failed++
		if r.failed >= failuresToOpen {
			pause := longestPause
			if n := r.failed - failuresToOpen; n < 5 {
				pause = min(firstPause<<n, longestPause)
			}
			r.until = time.Now().Add(pause)
		}
	}
}

// ask asks the first path that the service has.
func (r *Remote) ask(ctx context.Context, paths [2]string, body []byte, into *Prompts) error {
	for i, path := range paths {
		r.mu.Lock()
		missing := path == "" || time.Now().Before(r.noPaths[path])
		r.mu.Unlock()
		if missing {
			continue
		}
		if i == 1 && !tokenizable(body) {
			break
		}
		err := r.post(ctx, path, body, i == 1, into)
		if !errors.Is(err, errNoPath) {
			return err
		}
		r.mu.Lock()
		r.noPaths[path] = time.Now().Add(pathAgain)
		r.mu.Unlock()
	}
	return fmt.Errorf("%w: %s has no %s; vLLM has it with --enable-scale-out", ErrUnsupported, r.url, paths[0])
}

// tokenizable tells whether /tokenize reads all of a body: it takes one text, or messages, and ignores what else changes a prompt.
func tokenizable(body []byte) bool {
	var b struct {
		Prompt    json.RawMessage
		Truncate  json.RawMessage `json:"truncate_prompt_tokens"`
		Documents json.RawMessage
		Effort    json.RawMessage `json:"reasoning_effort"`
		Transfer  json.RawMessage `json:"kv_transfer_params"`
	}
	return json.Unmarshal(body, &b) == nil && len(b.Truncate)+len(b.Documents)+len(b.Effort)+len(b.Transfer) == 0 && (len(b.Prompt) == 0 || b.Prompt[0] == '"')
}

var errNoPath = errors.New("no such path")

func (r *Remote) post(ctx context.Context, path string, body []byte, tokenize bool, into *Prompts) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrService, err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrService, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, r.o.MaxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrService, path, err)
	case int64(len(data)) > r.o.MaxAnswer:
		return fmt.Errorf("%w: %s: the answer is longer than %d bytes", ErrService, path, r.o.MaxAnswer)
	case res.StatusCode == http.StatusNotFound && !bytes.Contains(data, []byte("model")):
		return errNoPath // FastAPI's own answer; that of a model that is not there names it
	case res.StatusCode == http.StatusForbidden: // by vLLM 0.32 without --enable-scale-out
		return errNoPath
	case res.StatusCode == http.StatusNotImplemented:
		return fmt.Errorf("%w: %s: %s", ErrUnsupported, path, brief(data))
	case res.StatusCode >= 400 && res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusRequestTimeout:
		return fmt.Errorf("%w: %s: %s: %s", ErrBody, path, res.Status, brief(data))
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: %s: %s: %s", ErrService, path, res.Status, brief(data))
	}
	if err := rendered(data, tokenize, into); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrService, path, err)
	}
	return nil
}

// brief is the start of an answer, in one line.
func brief(data []byte) string {
	s := strings.ToValidUTF8(string(data[:min(len(data), 200)]), "")
	return strings.Join(strings.Fields(s), " ")
}

type renderedPrompt struct {
	IDs      []uint32 `json:"token_ids"`
	Tokens   []uint32 `json:"tokens"` // of /tokenize
	Features *struct {
		Hashes map[string][]string `json:"mm_hashes"`
		Places map[string][]struct {
			Offset int32 `json:"offset"`
			Length int32 `json:"length"`
		} `json:"mm_placeholders"`
	} `json:"features"`
}

// rendered appends what an answer says: one prompt, or a list of them.
func rendered(data []byte, tokenize bool, into *Prompts) error {
	var many []renderedPrompt
	if b := bytes.TrimSpace(data); len(b) > 0 && b[0] == '[' {
		if err := json.Unmarshal(b, &many); err != nil {
			return err
		}
	} else {
		many = make([]renderedPrompt, 1)
		if err := json.Unmarshal(b, &many[0]); err != nil {
			return err
		}
	}
	if len(many) == 0 {
		return errors.New("an answer without prompts")
	}
	for _, p := range many {
		if tokenize {
			p.IDs = p.Tokens
		}
		if len(p.IDs) == 0 {
			return errors.New("a prompt without tokens")
		}
		into.next()
		into.IDs = append(into.IDs, p.IDs...)
		if p.Features == nil {
			continue
		}
		for kind, hashes := range p.Features.Hashes {
			places := p.Features.Places[kind]
			if len(places) != len(hashes) {
				return fmt.Errorf("%d hashes and %d places of %s", len(hashes), len(places), kind)
			}
			for i, h := range hashes {
				at, n := places[i].Offset, places[i].Length
				if at < 0 || n <= 0 || int(at)+int(n) > len(p.IDs) {
					return fmt.Errorf("%s at %d, %d long, in a prompt of %d tokens", kind, at, n, len(p.IDs))
				}
				into.Media = append(into.Media, Item{Prompt: len(into.Starts) - 1, At: at, Len: n, Hash: h})
			}
		}
	}
	return nil
}
