// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

type syncGroup = sync.WaitGroup

// memnet is a network in memory, for tests with a false clock.
type memnet struct {
	mu   sync.Mutex
	open map[string]*memListener
}

func newMemnet() *memnet { return &memnet{open: map[string]*memListener{}} }

func (m *memnet) listen(address string) *memListener {
	l := &memListener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	m.mu.Lock()
	m.open[address] = l
	m.mu.Unlock()
	return l
}

func (m *memnet) dial(ctx context.Context, _, address string) (net.Conn, error) {
	m.mu.Lock()
	l := m.open[address]
	m.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memListener struct {
	address string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return memAddr(l.address) }

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

// counting is a log that counts its lines.
func counting(n *atomic.Int64) *slog.Logger {
	return slog.New(slog.NewTextHandler(countWriter{n}, nil))
}

type countWriter struct{ n *atomic.Int64 }

func (w countWriter) Write(p []byte) (int, error) {
	w.n.Add(1)
	return len(p), nil
}
