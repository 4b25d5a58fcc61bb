// SPDX-License-Identifier: Apache-2.0

// Package vllm answers: how does a simulated engine look from outside? It is the HTTP face of one
// [engine.Engine], wire compatible with vLLM 0.32: the same paths, bodies, errors, events and metrics
// page. What it says is filler; when it says it is the model's doing, in real time.
package vllm

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-project/penstock/sim/engine"
)

// Version is the version of vLLM whose face this is.
const Version = "0.32.0"

// Server is one engine and its HTTP face. Requests wait until [Server.Run] drives the engine.
type Server struct {
	opts    Options
	began   time.Time
	mux     *http.ServeMux
	paths   map[string]bool // in the mux
	wake    chan struct{}   // there is work for Run
	stopped chan struct{}   // Run has ended
	ids     atomic.Uint64
	cfg     engine.Config
	events  *stream // nil when no events are published

	mu       sync.Mutex // guards what follows
	engine   *engine.Engine
	metrics  *metrics
	page     *page
	adapters []Adapter // in the order of loading
	ended    bool      // stopped is closed
	trouble  Trouble
	frozen   []byte        // the metrics page when it was frozen
	broken   chan struct{} // closed while the engine is dead
}

// New makes a server with an idle engine. It opens the sockets of Options.Events, which [Server.Run] closes.
func New(opts Options) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	cfg := opts.Engine
	cfg.Timing = cfg.Timing.Faster(opts.Speed)
	cfg.MaxLoRAs = 0
	if opts.EnableLoRA {
		cfg.MaxLoRAs = opts.MaxLoRAs
	}
	cfg.Events = nil
	s := &Server{
		opts:    opts,
		began:   time.Now(),
		wake:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
		broken:  make(chan struct{}),
		cfg:     cfg,
	}
	if opts.Events.on() {
		var err error
		if s.events, err = newStream(&opts.Events, cfg.BlockSize, opts.Seed); err != nil {
			return nil, err
		}
		s.cfg.Events = s.events
	}
	s.begin()
	s.mux, s.paths = http.NewServeMux(), map[string]bool{}
	s.routes()
	return s, nil
}

// begin makes everything as it is in a process that has just started.
func (s *Server) begin() {
	e, err := engine.New(s.cfg)
	if err != nil {
		panic(err) // the options were valid
	}
	s.engine = e
	s.adapters = append([]Adapter(nil), s.opts.LoRAModules...)
	s.metrics = newMetrics(s.opts.MaxModelLen)
	s.page = newPage(&s.opts, s.metrics, time.Now())
}

// Handler is the HTTP face.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// now is the engine's time.
func (s *Server) now() time.Duration { return time.Since(s.began) }

// maxLag bounds how much of a late wake-up is made good by the next step. A timer is always a little
// late, and without that an engine under load would be slower than its model.
const maxLag = 50 * time.Millisecond

// Run drives the engine in real time until the context ends. It is to be called once; when it
// returns, unfinished answers are broken off and new requests are refused.
func (s *Server) Run(ctx context.Context) error {
	defer s.stop()
	if s.events == nil {
		s.drive(ctx)
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.events.run(ctx) })
	s.drive(ctx)
	return g.Wait()
}

// drive is Run without the events.
func (s *Server) drive(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	at := s.now() // when the step begins, in the engine's time
	for {
		s.mu.Lock()
		e := s.engine
		took, busy := e.Begin(at)
		if s.trouble.Slow > 0 {
			took = time.Duration(float64(took) * s.trouble.Slow)
		}
		s.mu.Unlock()
		if !busy {
			select {
			case <-s.wake:
			case <-ctx.Done():
				return
			}
			at = s.now()
			continue
		}
		at += took
		timer.Reset(at - s.now())
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		if tokens := e.End(at); e == s.engine { // else it was the end of a process that is gone
			s.deliver(at, tokens)
		}
		s.mu.Unlock()
		if now := s.now(); now-at > maxLag {
			at = now
		}
	}
}

// stop breaks off what is not finished.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	close(s.stopped)
}

// deliver hands out the tokens of a step. Called with mu held.
func (s *Server) deliver(at time.Duration, tokens []engine.Token) {
	s.metrics.step(s.engine, tokens)
	for _, t := range tokens {
		a := t.Seq.Tag.(*answer)
		if t.Seq.Generated == 1 {
			if a.first {
				a.call.cached.Add(int64(t.Seq.Cached))
			}
			s.metrics.firstToken(t.Seq)
		} else {
			s.metrics.token(at - a.last)
		}
		a.last = at
		if t.Last {
			s.metrics.finished(t.Seq, a.out.reason)
		}
		a.made.Add(1)
		a.call.poke()
	}
	s.metrics.adapters(s.engine)
	if s.events != nil {
		s.events.step()
	}
}

// answer is one choice of a call.
type answer struct {
	call   *call
	seq    *engine.Seq
	prompt []uint32
	out    output
	first  bool          // of its prompt's choices: the one whose cached tokens count
	made   atomic.Int64  // tokens generated
	last   time.Duration // when the last one was
	sent   int           // tokens written to the client; the handler's own
}

// call is one HTTP request in the engine.
type call struct {
	answers []*answer
	prompt  int          // tokens, of all prompts
	cached  atomic.Int64 // of these: found in the prefix cache
	news    chan struct{}
	broken  <-chan struct{} // closed when the engine dies
	engine  *engine.Engine
}

func (c *call) poke() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// done tells whether all tokens were generated.
func (c *call) done() bool {
	for _, a := range c.answers {
		if int(a.made.Load()) < len(a.out.tokens) {
			return false
		}
	}
	return true
}

// completion is the number of tokens generated so far.
func (c *call) completion() int {
	n := 0
	for _, a := range c.answers {
		n += int(a.made.Load())
	}
	return n
}

var errStopped = errors.New("the engine has stopped")

// wait returns when there may be more tokens, or with the reason why there will be none.
func (s *Server) wait(ctx context.Context, c *call) error {
	select {
	case <-c.news:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopped:
		return errStopped
	case <-c.broken:
		panic(http.ErrAbortHandler) // as the connections of a process that died
	}
}

// submit gives a job to the engine. Whoever submits calls leave.
func (s *Server) submit(j *job) (*call, error) {
	c := &call{news: make(chan struct{}, 1)}
	for _, p := range j.prompts {
		c.prompt += len(p)
		for i := range j.n {
			sp := j.speech
			sp.seed = s.opts.Seed + sp.seed + uint64(i)<<32
			c.answers = append(c.answers, &answer{call: c, prompt: p, out: speak(p, sp), first: i == 0})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errStopped
	}
	c.broken, c.engine = s.broken, s.engine
	now := s.now()
	for i, a := range c.answers {
		seq, err := s.engine.Submit(now, engine.Request{
			Tokens:    j.prompts[i/j.n],
			MaxTokens: len(a.out.tokens),
			Output:    a.out.tokens,
			Adapter:   j.adapter,
			Salt:      j.salt,
			Tag:       a,
		})
		if err != nil {
			s.abort(c)
			return nil, err
		}
		a.seq = seq
	}
	s.metrics.submitted(j)
	s.metrics.adapters(s.engine)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return c, nil
}

// leave takes what is unfinished of a call out of the engine: at once, or when the step in progress
// ends.
func (s *Server) leave(c *call) {
	if c.done() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abort(c)
}

// abort is leave with mu held.
func (s *Server) abort(c *call) {
	now := s.now()
	for _, a := range c.answers {
		if a.seq != nil && !a.seq.Done && !a.seq.Aborted {
			c.engine.Abort(now, a.seq)
			if c.engine == s.engine {
				s.metrics.aborted()
			}
		}
	}
}
