// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// probe is a readiness probe as a manifest has it.
type probe struct {
	HTTPGet *struct {
		Path string
		Port json.RawMessage // a number, or the name of a port
	}
	GRPC *struct {
		Port    int
		Service string
	}
	PeriodSeconds, FailureThreshold, TimeoutSeconds int
}

// probing is how a container's probe has gone so far.
type probing struct {
	next   time.Time
	ready  bool
	misses int
}

// look probes when that is due and returns whether the container is ready. It looks often until it first is, so that tests
// need not wait, and then as the manifest says.
func (s *probing) look(ctx context.Context, c container, ip string) bool {
	p := c.ReadinessProbe
	if p == nil {
		return true
	}
	if time.Now().Before(s.next) {
		return s.ready
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(1, p.TimeoutSeconds))*time.Second)
	defer cancel()
	var err error
	switch {
	case p.HTTPGet != nil:
		port := strings.Trim(string(p.HTTPGet.Port), `"`)
		for _, named := range c.Ports {
			if named.Name == port {
				port = strconv.Itoa(named.ContainerPort)
			}
		}
		err = get(ctx, "http://"+net.JoinHostPort(ip, port)+p.HTTPGet.Path)
	case p.GRPC != nil:
		err = Health(ctx, net.JoinHostPort(ip, strconv.Itoa(p.GRPC.Port)), p.GRPC.Service)
	}
	if err == nil {
		s.ready, s.misses = true, 0
	} else if s.misses++; s.misses >= cmp.Or(p.FailureThreshold, 3) {
		s.ready = false
	}
	s.next = time.Now().Add(200 * time.Millisecond)
	if s.ready {
		s.next = time.Now().Add(time.Duration(cmp.Or(p.PeriodSeconds, 10)) * time.Second)
	}
	return s.ready
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode >= 400 {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// Health asks a gRPC health service, in plain HTTP/2, and returns nil when it says that the service is serving.
func Health(ctx context.Context, addr, service string) error {
	message := append([]byte{0, 0, 0, 0, byte(len(service) + 2), 0x0a, byte(len(service))}, service...) // field 1, a string
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/grpc.health.v1.Health/Check", bytes.NewReader(message))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return err
	}
	if !bytes.HasSuffix(answer, []byte{0x08, 1}) { // field 1, SERVING
		return fmt.Errorf("health of %q at %s: %x %s", service, addr, answer, response.Trailer.Get("Grpc-Message"))
	}
	return nil
}
