// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// liveness is the health service that speaks of the process alone; all others are readiness.
const liveness = "liveness"

// watchEvery is how often a watcher's status is looked at.
const watchEvery = 250 * time.Millisecond

// health implements grpc.health.v1 as the Endpoint Picker Protocol wants it: "liveness" is served
// as long as we answer at all; "readiness", "", the name of the ext_proc service, and whatever
// else charts ask for, while ready says so.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready func() bool
}

func (h *health) status(service string) *grpc_health_v1.HealthCheckResponse {
	s := grpc_health_v1.HealthCheckResponse_SERVING
	if service != liveness && !h.ready() {
		s = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}
}

// Check implements grpc_health_v1.HealthServer.
func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return h.status(r.GetService()), nil
}

// List implements grpc_health_v1.HealthServer.
func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	r := &grpc_health_v1.HealthListResponse{Statuses: map[string]*grpc_health_v1.HealthCheckResponse{}}
	for _, service := range []string{"", liveness, "readiness", Service} {
		r.Statuses[service] = h.status(service)
	}
	return r, nil
}

// Watch implements grpc_health_v1.HealthServer.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := grpc_health_v1.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(r.GetService()); now.Status != last {
			if err := stream.Send(now); err != nil {
				return err
			}
			last = now.Status
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// RunHealth serves grpc.health.v1 in plaintext until ctx ends. It should outlast the door, whose
// draining it tells: pass its Ready.
func RunHealth(ctx context.Context, lis net.Listener, ready func() bool) error {
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, &health{ready: ready})
	return serve(ctx, g, lis, 0)
}
