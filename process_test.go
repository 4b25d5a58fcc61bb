// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestLeave: readiness goes at once, doors close when the others had the time to see it.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		start := time.Now()
		var drained, shut time.Duration = -1, -1
		forget := takeLeave(ctx, 5*time.Second, func() { drained = time.Since(start) }, func() { shut = time.Since(start) })
		defer forget()
		time.Sleep(time.Minute)
		if synctest.Wait(); drained != -1 {
			t.Fatalf("drained after %v, and nobody told it to end", drained)
		}
		end()
		time.Sleep(time.Minute)
		if synctest.Wait(); drained != time.Minute || shut != time.Minute+5*time.Second {
			t.Errorf("drained after %v, shut after %v, want 1m0s and 1m5s", drained, shut)
		}
	})
}

// TestLameDuck: only in a pod are there others to wait for.
func TestLameDuck(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if got := defaults().lameDuck; got != 0 {
		t.Errorf("lame duck for %v outside of a pod, want none", got)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	if got := defaults().lameDuck; got != 5*time.Second {
		t.Errorf("lame duck for %v in a pod, want 5s", got)
	}
}
