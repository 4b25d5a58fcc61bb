// SPDX-License-Identifier: Apache-2.0

// Package load answers: how does a gateway feel to many people talking at once? It sends a
// conversation workload at a fixed rate to an OpenAI-compatible URL and says what came of it: rate,
// time to first token, errors, and per endpoint its share and how much of the prompts it had cached.
package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/request"
)

// Options say what is sent where.
type Options struct {
	// URL is where the API begins, without /v1.
	URL string
	// Model is asked for in every request.
	Model string
	// Rate is the mean number of requests per second. Arrivals are a Poisson process: they do not
	// wait for answers.
	Rate float64
	// Seed makes the same conversations arrive at the same times.
	Seed uint64
	// Out gets a summary: one line that is redrawn every second on a terminal, one line every five
	// seconds elsewhere.
	Out io.Writer
	// MaxTokens is the length of an answer, 48 if 0.
	MaxTokens int
	// MaxInFlight bounds the requests that are open at once, 1024 if 0. Arrivals beyond it are not
	// sent, and counted as skipped.
	MaxInFlight int
	// Client sends the requests; nil makes one that keeps enough connections.
	Client *http.Client
}

func (o *Options) defaults() error {
	if o.URL == "" || o.Model == "" {
		return errors.New("load: needs a URL and a model")
	}
	if !(o.Rate > 0) || o.Rate > 1e6 {
		return fmt.Errorf("load: rate must be above 0 and at most a million, is %v", o.Rate)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 48
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 1024
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return nil
}

// Run sends the workload until the context ends, and then writes a last summary. It fails only for
// options that make no sense; what goes wrong with requests is counted.
func Run(ctx context.Context, o Options) error {
	if err := o.defaults(); err != nil {
		return err
	}
	client := o.Client
	if client == nil {
		transport := NewTransport(o.MaxInFlight, nil, false)
		defer transport.CloseIdleConnections()
		client = &http.Client{Transport: transport}
	}
	r := &runner{
		opts:   o,
		client: Client{URL: strings.TrimRight(o.URL, "/"), API: request.Chat, HTTP: client},
		talk:   newTalk(o.Seed, o.Rate),
		meter:  NewMeter(time.Now()),
		slots:  make(chan struct{}, o.MaxInFlight),
	}
	s := &Screen{Out: o.Out, Terminal: IsTerminal(o.Out)}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.run(ctx, r.meter) })
	r.arrive(ctx)
	r.wg.Wait()
	wg.Wait()
	s.last(r.meter.total())
	return nil
}

// IsTerminal tells whether lines can be redrawn.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// runner sends requests as they arrive.
type runner struct {
	opts   Options
	client Client
	meter  *Meter
	slots  chan struct{}
	wg     sync.WaitGroup

	mu   sync.Mutex
	talk *talk
}

// arrive starts requests at random times until the context ends. The next arrival counts from the
// last one and not from now, so that a late timer does not lower the rate.
func (r *runner) arrive(ctx context.Context) {
	rng := rand.New(rand.NewPCG(r.opts.Seed, 1))
	next := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		next = next.Add(time.Duration(rng.ExpFloat64() / r.opts.Rate * float64(time.Second)))
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case r.slots <- struct{}{}:
			r.mu.Lock()
			c := r.talk.next()
			r.mu.Unlock()
			r.wg.Go(func() {
				r.turn(ctx, c)
				<-r.slots
			})
		default:
			r.meter.Skip(time.Now())
		}
	}
}

// turn sends the next turn of a conversation and puts it back with the answer.
func (r *runner) turn(ctx context.Context, c *conversation) {
	r.meter.Begin()
	got := Borrow()
	defer got.Return()
	r.client.Send(ctx, r.ask(c.messages), got)
	if ctx.Err() != nil && got.Fault != "" {
		r.meter.Cancel() // we left, nobody failed
		return
	}
	r.meter.End(got, got.Sent)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.talk.done(c, got.Text, got.Fault == "")
}

// ask is a streamed chat request.
func (r *runner) ask(messages []message) Ask {
	body, err := json.Marshal(map[string]any{
		"model": r.opts.Model, "messages": messages, "max_tokens": r.opts.MaxTokens, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic(err) // our own types
	}
	return Ask{
		Body:   func() io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) },
		Length: int64(len(body)), Text: true,
	}
}
