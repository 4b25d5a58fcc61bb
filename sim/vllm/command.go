// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Command is `penstock sim engine [MODEL] [flags]`: it listens, prints one line with its address and
// serves until the context ends.
func Command(ctx context.Context, args []string, stdout, _ io.Writer) error {
	opts := DefaultOptions()
	fs := pflag.NewFlagSet("sim engine", pflag.ContinueOnError)
	fs.SetOutput(stdout)
	fs.SortFlags = false
	fs.Usage = func() {
		_, _ = fmt.Fprintf(stdout, "A simulated engine with vLLM's API.\n\nUsage: penstock sim engine [MODEL] [flags]\n\n%s", fs.FlagUsages())
	}
	opts.Flags(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	switch {
	case fs.NArg() > 1:
		return fmt.Errorf("unexpected argument %q", fs.Arg(1))
	case fs.NArg() == 1 && !fs.Changed("served-model-name"):
		opts.Models = []string{fs.Arg(0)}
	}
	s, err := New(opts)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port)))
	if err != nil {
		if s.events != nil {
			s.events.shut()
		}
		return err
	}
	_, _ = fmt.Fprintf(stdout, "engine %s listens on http://%s\n", opts.Models[0], l.Addr())
	if events, replays := s.EventAddrs(); events != nil {
		_, _ = fmt.Fprintf(stdout, "KV events on tcp://%s", events)
		if replays != nil {
			_, _ = fmt.Fprintf(stdout, ", replays on tcp://%s", replays)
		}
		_, _ = fmt.Fprintln(stdout)
	}
	return s.Serve(ctx, l)
}

// Serve drives the engine and serves its face on a listener, which it closes, until the context ends.
// Running answers then have ShutdownSeconds to end; what is left is broken off.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	run, halt := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan error, 1)
	go func() { ran <- s.Run(run) }()
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	var err error
	select {
	case err = <-served:
		served <- err
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(s.opts.ShutdownSeconds)*time.Second)
		_ = srv.Shutdown(grace) // what it leaves is closed below
		cancel()
		err = http.ErrServerClosed
	}
	halt()
	<-ran
	// Whoever waited for a token has been told; give these handlers the moment they need to return.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	_ = srv.Shutdown(last)
	cancel()
	_ = srv.Close()
	<-served
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
