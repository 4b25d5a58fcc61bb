// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxBody is the largest request body in bytes.
const maxBody = 64 << 20

// apiError is an error as a client of vLLM sees it.
type apiError struct {
	status        int
	kind, message string
	param         string
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// routes fills the mux.
func (s *Server) routes() {
	s.route("GET /v1/models", s.getModels)
	s.route("POST /v1/completions", s.face(completionsFace))
	s.route("POST /v1/chat/completions", s.face(chatFace))
	s.route("POST /v1/messages", s.face(messagesFace))
	s.route("POST /v1/messages/count_tokens", s.countTokens)
	s.route("POST /v1/responses", s.face(responsesFace))
	s.route("POST /v1/embeddings", s.embeddings)
	s.route("POST /inference/v1/generate", s.face(generateFace))
	s.route("POST /v1/completions/render", s.rendered(completionsFace, true))
	s.route("POST /v1/chat/completions/render", s.rendered(chatFace, false))
	s.route("POST /v1/messages/render", s.rendered(messagesFace, false))
	s.route("POST /v1/responses/render", s.rendered(responsesFace, false))
	s.route("POST /tokenize", s.tokenize)
	s.route("POST /detokenize", s.detokenize)
	s.route("GET /metrics", s.getMetrics)
	s.route("GET /health", s.health)
	s.route("GET /ping", s.health)
	s.route("POST /ping", s.health)
	s.route("GET /version", func(w http.ResponseWriter, _ *http.Request) int {
		return reply(w, http.StatusOK, map[string]string{"version": Version})
	})
	s.route("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) int {
		s.mu.Lock()
		ok := s.engine.ResetPrefixCache()
		s.mu.Unlock()
		return reply(w, http.StatusOK, map[string]bool{"success": ok})
	})
	if s.opts.EnableLoRA {
		s.route("POST /v1/load_lora_adapter", s.loadAdapter)
		s.route("POST /v1/unload_lora_adapter", s.unloadAdapter)
	}
	for path := range s.paths {
		s.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			reply(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	})
}

// route serves a path and counts its answers. The function returns the status it wrote.
func (s *Server) route(pattern string, f func(http.ResponseWriter, *http.Request) int) {
	method, path, _ := strings.Cut(pattern, " ")
	s.paths[path] = true
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		began := s.now()
		w.Header().Set("Server", "uvicorn")
		status := f(w, r)
		s.mu.Lock()
		s.metrics.served(method, path, status, s.now()-began)
		s.mu.Unlock()
	})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) int {
	status := http.StatusOK
	select {
	case <-s.stopped:
		status = http.StatusServiceUnavailable
	default:
	}
	w.WriteHeader(status)
	return status
}

// reply writes a JSON body.
func reply(w http.ResponseWriter, status int, v any) int {
	b := appendJSON(nil, v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
	return status
}

// appendJSON appends one of our own values as JSON, with < and > as they are.
func appendJSON(b []byte, v any) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// classify turns whatever went wrong into what a client is told.
func classify(err error) *apiError {
	var known *apiError
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &tooBig):
		return &apiError{http.StatusRequestEntityTooLarge, "BadRequestError", err.Error(), ""}
	case errors.Is(err, errStopped):
		return &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", err.Error(), ""}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &apiError{statusClientLeft, "ClientClosedRequest", err.Error(), ""}
	}
	return &apiError{http.StatusBadRequest, "BadRequestError", err.Error(), ""}
}

// fail writes an error in OpenAI's form.
func fail(w http.ResponseWriter, err error) int {
	e := classify(err)
	if e.status == statusClientLeft {
		return e.status // nobody would read it
	}
	info := errorInfo{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		info.Param = &e.param
	}
	return reply(w, e.status, map[string]errorInfo{"error": info})
}

// errorInfo is OpenAI's error, in vLLM's order.
type errorInfo struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// statusClientLeft is the status, nginx's, under which a request counts whose client has left.
const statusClientLeft = 499

// decode reads a JSON body.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		return &apiError{http.StatusBadRequest, "BadRequestError", "Unsupported Media Type: Only 'application/json' is allowed", ""}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	return unmarshal(body, v)
}

// unmarshal is decode of a body that was read.
func unmarshal(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		var known *apiError
		if errors.As(err, &known) {
			return known
		}
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) && typ.Field != "" {
			field := typ.Field[strings.LastIndexByte(typ.Field, '.')+1:]
			return badRequest(field, "%s: Input should be a valid %s, not %s", field, typ.Type, typ.Value)
		}
		return badRequest("", "JSON decode error: %v", err)
	}
	return nil
}

// model finds out which adapter a request is for; none is the base model.
func (s *Server) model(name string) (canonical, adapter string, err error) {
	if name == "" {
		return s.opts.Models[0], "", nil
	}
	for _, m := range s.opts.Models {
		if m == name {
			return s.opts.Models[0], "", nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.adapters {
		if a.Name == name {
			return name, name, nil
		}
	}
	return "", "", &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.",
		name, strings.Join(s.opts.Models, ", ")), "model"}
}

// id makes a request id, with the caller's own in it if there is one.
func (s *Server) id(prefix string, r *http.Request) string {
	if own := r.Header.Get("X-Request-Id"); own != "" && len(own) <= 128 {
		return prefix + own
	}
	n := s.ids.Add(1)
	return fmt.Sprintf("%s%016x%016x", prefix, mix(n^uint64(s.began.UnixNano())), mix(n))
}

// sampling is what the bodies of all generating paths share.
type sampling struct {
	Model         string         `json:"model"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	N             *int           `json:"n"`
	Stop          stringList     `json:"stop"`
	IncludeStop   bool           `json:"include_stop_str_in_output"`
	Seed          *int64         `json:"seed"`
	MaxTokens     *int           `json:"max_tokens"`
	CacheSalt     string         `json:"cache_salt"`
}

type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats"`
}

// stringList is a string or a list of strings.
type stringList []string

func (l *stringList) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		if one != "" || b[0] == '"' {
			*l = []string{one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// job is a request as the engine needs it, and what its answer must look like.
type job struct {
	asked         *sampling
	id, model     string
	created       int64
	prompts       [][]uint32
	n             int // choices per prompt
	speech        speech
	adapter, salt string
	stream        bool
	usage         bool // the stream ends with an event that has the usage
	continuous    bool // every event has it
}

// job checks what all paths share. most is the limit on the answer that the body gave, nil if none;
// usual is the length of an answer that nobody limited.
func (s *Server) job(p *sampling, most *int, usual int, prompts ...[]uint32) (*job, error) {
	j := &job{asked: p, created: time.Now().Unix(), prompts: prompts, n: 1, salt: p.CacheSalt, stream: p.Stream}
	var err error
	if j.model, j.adapter, err = s.model(p.Model); err != nil {
		return nil, err
	}
	if p.N != nil {
		j.n = *p.N
	}
	if j.n < 1 || j.n > 128 {
		return nil, badRequest("n", "n must be 1 to 128, got %d.", j.n)
	}
	if p.StreamOptions != nil {
		if !p.Stream {
			return nil, badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
		}
		j.usage = p.StreamOptions.IncludeUsage
		j.continuous = j.usage && p.StreamOptions.ContinuousUsage
	}
	for _, stop := range p.Stop {
		if stop == "" {
			return nil, badRequest("stop", "stop cannot contain an empty string.")
		}
	}
	longest := 0
	for _, t := range prompts {
		if len(t) == 0 {
			return nil, errNoPrompt
		}
		longest = max(longest, len(t))
	}
	room := s.opts.MaxModelLen - longest
	if room < 1 {
		return nil, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, "+
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", s.opts.MaxModelLen, longest)
	}
	j.speech = speech{max: min(usual, room), natural: true, stops: p.Stop, includeStop: p.IncludeStop}
	if most != nil {
		if *most < 1 {
			return nil, badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *most)
		}
		if *most > room {
			return nil, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens and "+
				"your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number "+
				"of requested output tokens.", s.opts.MaxModelLen, *most, longest, *most+longest)
		}
		j.speech.max, j.speech.natural = *most, false
	}
	if p.Seed != nil {
		j.speech.seed = mix(uint64(*p.Seed))
	}
	return j, nil
}
