// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// maxIdle is how many idle connections are kept for each endpoint.
const maxIdle = 1024

// pool keeps idle connections by address. Only addresses that a placement named get here.
type pool struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	limit time.Duration // how long a connection may be idle

	closed atomic.Bool

	mu    sync.Mutex
	hosts map[string]*host
}

// host holds the idle connections to one address, newest last.
type host struct {
	address string
	mu      sync.Mutex
	idle    []*conn
	gone    bool // no longer in the pool's map
}

func newPool(o *Options) *pool {
	dial := o.Dial
	if dial == nil {
		d := &net.Dialer{Timeout: o.DialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
		dial = d.DialContext
	}
	return &pool{dial: dial, limit: o.EndpointIdle, hosts: map[string]*host{}}
}

func (p *pool) host(address string) *host {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[address]
	if h == nil {
		h = &host{address: address}
		p.hosts[address] = h
	}
	return h
}

// get returns a connection: an idle one unless fresh is asked for, or else a new one.
func (p *pool) get(ctx context.Context, address string, fresh bool) (*conn, error) {
	h := p.host(address)
	if fresh {
		h.drop()
	} else if c := h.take(time.Now(), p.limit); c != nil {
		return c, nil
	}
	nc, err := p.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: nc, home: h, live: livenessOf(nc)}, nil
}

// take pops the idle connection that was used last and closes those that died meanwhile.
func (h *host) take(now time.Time, limit time.Duration) *conn {
	for {
		h.mu.Lock()
		n := len(h.idle)
		if n == 0 {
			h.mu.Unlock()
			return nil
		}
		c := h.idle[n-1]
		h.idle[n-1] = nil
		h.idle = h.idle[:n-1]
		h.mu.Unlock()
		if c.fit(now, limit) {
			return c
		}
		c.Close()
	}
}

// fit reports whether an idle connection may serve again. One on which something came in may not:
// it would be taken for the answer to the next request.
func (c *conn) fit(now time.Time, limit time.Duration) bool {
	return now.Sub(c.used) < limit && c.live.quiet()
}

// put keeps the connection for others.
func (p *pool) put(c *conn) {
	c.used, c.reused = time.Now(), true
	h := c.home
	h.mu.Lock()
	for h.gone {
		h.mu.Unlock()
		h = p.host(h.address)
		c.home = h
		h.mu.Lock()
	}
	full := len(h.idle) >= maxIdle || p.closed.Load()
	if !full {
		h.idle = append(h.idle, c)
	}
	h.mu.Unlock()
	if full {
		c.Close()
	}
}

// drop closes all idle connections: one of them turned out to be dead.
func (h *host) drop() {
	h.mu.Lock()
	idle := h.idle
	h.idle = nil
	h.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
}

// sweep closes connections that died or were idle for too long, and forgets addresses
// without any.
func (p *pool) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, h := range p.hosts {
		h.mu.Lock()
		keep := h.idle[:0]
		for _, c := range h.idle {
			if c.fit(now, p.limit) {
				keep = append(keep, c)
			} else {
				c.Close()
			}
		}
		clear(h.idle[len(keep):])
		h.idle = keep
		if len(keep) == 0 {
			h.gone = true
			delete(p.hosts, address)
		}
		h.mu.Unlock()
	}
}

// close closes what is idle, and what becomes idle from now on.
func (p *pool) close() {
	p.closed.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hosts {
		h.drop()
	}
}
