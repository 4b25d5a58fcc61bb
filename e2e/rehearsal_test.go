// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestRehearsalIsTrue plays the same work twice: in real time, by penstock bench through the real proxy on engines that are
// processes, and in virtual time. The same requests find the same tokens cached, and times to first token agree within a
// tenth. A machine that is busy with other things makes what is real slower, never faster, and nothing makes what is virtual
// slower; so it is tried a few times, and one quiet run is enough.
func TestRehearsalIsTrue(t *testing.T) {
	const (
		engines = 3
		tries   = 4
		within  = 0.10
		work    = "groups?groups=6&prefix=800~0.5&own=500~0.5&output=30~0.5"
	)
	for try := range tries {
		seed := strconv.Itoa(1 + try)
		played := []string{"--workload", work, "--rate", "5", "--seed", seed, "--warmup", "2s"}
		addrs := rig.Sims(t, engines, "m", "--step-base=20ms", "--prefill-token-time=400us", "--seq-time=500us", "--kv-token-time=500ns", "--num-gpu-blocks-override=2100")
		gateway := rig.Serve(t, addrs...)
		gateway.Ready(t, engines)
		dir := t.TempDir()
		fleet := filepath.Join(dir, "fleet.yaml")
		group := fmt.Sprintf("- {kind: laptop, count: %d, overrides: {step-time: 20ms, prefill-time-per-token: 400us, time-per-seq: 500us, time-per-kv-token: 500ns, num-blocks: 2100}}\n", engines)
		if err := os.WriteFile(fleet, []byte(group), 0o600); err != nil {
			t.Fatal(err)
		}
		real := measure(t, filepath.Join(dir, "real.json"), append([]string{"bench", "--url", "http://" + gateway.HTTP, "--model", "m", "--duration", "25s"}, played...)...)
		virtual := measure(t, filepath.Join(dir, "virtual.json"), append([]string{"sim", "run", "--fleet", fleet, "--config", filepath.Join(gateway.Dir, "picker.yaml"), "--duration", "27s"}, played...)...)
		if real.Requests != virtual.Requests || real.Completed != real.Requests || virtual.Completed != virtual.Requests {
			t.Fatalf("%d of %d requests were answered, and %d of %d in virtual time", real.Completed, real.Requests, virtual.Completed, virtual.Requests)
		}
		worst := 0.0
		for _, q := range []struct {
			name          string
			real, virtual float64
		}{
			{"mean TTFT", real.TTFT.Mean, virtual.TTFT.Mean}, {"median TTFT", real.TTFT.P50, virtual.TTFT.P50}, {"p90 of TTFT", real.TTFT.P90, virtual.TTFT.P90},
			{"median TPOT", real.TPOT.P50, virtual.TPOT.P50}, {"hit rate", real.Hit, virtual.Hit},
		} {
			off := q.real/q.virtual - 1
			t.Logf("seed %s: %-11s %8.4g in real time, %8.4g in virtual: %+.1f %%", seed, q.name, q.real, q.virtual, 100*off)
			worst = max(worst, math.Abs(off))
		}
		if worst <= within {
			return
		}
		gateway.Signal(syscall.SIGTERM)
	}
	t.Errorf("no run of %d agrees within %g %%", tries, 100*within)
}

// measured is what is read of a report's only run.
type measured struct {
	Requests, Completed int
	Hit                 float64 `json:"hit_rate"`
	TTFT                dist    `json:"ttft_ms"`
	TPOT                dist    `json:"tpot_ms"`
}

type dist struct{ Mean, P50, P90 float64 }

func measure(t *testing.T, report string, args ...string) measured {
	t.Helper()
	rig.Run(t, nil, append(append([]string{rig.Penstock(t)}, args...), "--json", report)...)
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Runs []measured }
	if err := json.Unmarshal(text, &r); err != nil || len(r.Runs) != 1 {
		t.Fatalf("%s: %d runs, %v", report, len(r.Runs), err)
	}
	return r.Runs[0]
}

// TestFitFindsTheConstants measures a simulated engine whose constants are known. As above, a busy machine makes it slower.
func TestFitFindsTheConstants(t *testing.T) {
	want := map[string]time.Duration{"step-time": 20 * time.Millisecond, "prefill-time-per-token": 300 * time.Microsecond, "time-per-seq": 2 * time.Millisecond}
	addr := rig.Sims(t, 1, "m", "--step-base=20ms", "--prefill-token-time=300us", "--seq-time=2ms", "--kv-token-time=200ns")[0]
	for range 4 {
		text := rig.Run(t, nil, rig.Penstock(t), "sim", "fit", "--url", addr, "--prompts", "64,512,1024,2048", "--seqs", "1,4,12", "--tries", "2")
		off := 0.0
		for name, d := range want {
			m := regexp.MustCompile(name + `: (\S+)`).FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("no %s in\n%s", name, text)
			}
			got, err := time.ParseDuration(m[1])
			if err != nil {
				t.Fatal(err)
			}
			off = max(off, math.Abs(float64(got)/float64(d)-1))
		}
		t.Logf("%.1f %% off\n%s", 100*off, text)
		if off < 0.1 && strings.Contains(text, "num-blocks: 8192") {
			return
		}
	}
	t.Error("no fit of four is within a tenth")
}
