// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/e2e/rig"
)

// TestRehearsalIsTrue plays the same work twice: in real time, by penstock bench through the real proxy on engines that are
// processes, and in virtual time. The same requests find the same tokens cached, whatever else the machine does. Times are
// never shorter than rehearsed; how much longer they may be is told apart from the machine only where bench was on time
// itself. TestRehearsal, at the root, compares them on any machine, to a few per cent.
func TestRehearsalIsTrue(t *testing.T) {
	const (
		engines = 3
		within  = 0.10
		onTime  = 3 // ms that nine in ten requests were sent late at most
	)
	played := []string{"--workload", "groups?groups=6&prefix=800~0.5&own=500~0.5&output=30~0.5", "--rate", "4", "--warmup", "2s"}
	addrs := rig.Sims(t, engines, "m", "--step-base=20ms", "--prefill-token-time=400us", "--seq-time=500us", "--kv-token-time=500ns", "--num-gpu-blocks-override=2100")
	gateway := rig.Serve(t, addrs...)
	gateway.Ready(t, engines)
	dir := t.TempDir()
	fleet := filepath.Join(dir, "fleet.yaml")
	group := fmt.Sprintf("- {kind: laptop, count: %d, overrides: {step-time: 20ms, prefill-time-per-token: 400us, time-per-seq: 500us, time-per-kv-token: 500ns, num-blocks: 2100}}\n", engines)
	if err := os.WriteFile(fleet, []byte(group), 0o600); err != nil {
		t.Fatal(err)
	}
	real := measure(t, filepath.Join(dir, "real.json"), append([]string{"bench", "--url", "http://" + gateway.HTTP, "--model", "m", "--api", "completions", "--duration", "30s"}, played...)...)
	virtual := measure(t, filepath.Join(dir, "virtual.json"), append([]string{"sim", "run", "--fleet", fleet, "--config", filepath.Join(gateway.Dir, "picker.yaml"), "--duration", "32s"}, played...)...)
	if real.Requests != virtual.Requests || real.Completed != real.Requests || virtual.Completed != virtual.Requests {
		t.Fatalf("%d of %d requests were answered, and %d of %d in virtual time", real.Completed, real.Requests, virtual.Completed, virtual.Requests)
	}
	late := real.Client.Late.P90
	t.Logf("%d requests, nine in ten sent at most %.2f ms late", real.Requests, late)
	for _, q := range []struct {
		name          string
		real, virtual float64
	}{
		{"mean TTFT", real.TTFT.Mean, virtual.TTFT.Mean}, {"median TTFT", real.TTFT.P50, virtual.TTFT.P50}, {"p90 of TTFT", real.TTFT.P90, virtual.TTFT.P90},
		{"hit rate", real.Hit, virtual.Hit},
	} {
		off := q.real/q.virtual - 1
		t.Logf("%-11s %8.4g in real time, %8.4g in virtual: %+.1f %%", q.name, q.real, q.virtual, 100*off)
		if off < -within || off > within && (q.name == "hit rate" || late < onTime) {
			t.Errorf("%s: %.1f %% off", q.name, 100*off)
		}
	}
}

// measured is what is read of a report's only run.
type measured struct {
	Requests, Completed int
	Client              struct {
		Late dist `json:"late_ms"`
	}
	Hit  float64 `json:"hit_rate"`
	TTFT dist    `json:"ttft_ms"`
	TPOT dist    `json:"tpot_ms"`
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

// TestFitFindsTheConstants measures an engine that is a process, and rehearses on what was found. What a busy machine adds to
// its times is found with them; TestFitOfAnEngine, at the root, wants the constants back to a few per cent.
func TestFitFindsTheConstants(t *testing.T) {
	want := map[string]time.Duration{"step-time": 20 * time.Millisecond, "prefill-time-per-token": 300 * time.Microsecond}
	addr := rig.Sims(t, 1, "m", "--step-base=20ms", "--prefill-token-time=300us", "--seq-time=2ms", "--kv-token-time=200ns")[0]
	fleet := filepath.Join(t.TempDir(), "fleet.yaml")
	rig.Run(t, nil, rig.Penstock(t), "sim", "fit", "--url", addr, "--prompts", "64,512,1024,2048", "--seqs", "1,4,12", "--tries", "2", "--count", "3", "--out", fleet)
	text, err := os.ReadFile(fleet)
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range want {
		m := regexp.MustCompile(name + `: (\S+)`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in\n%s", name, text)
		}
		if got, err := time.ParseDuration(string(m[1])); err != nil || got < d/2 {
			t.Errorf("%s: got %v, want %v or more, as the machine is busy; %v", name, got, d, err)
		}
	}
	if !strings.Contains(string(text), "num-blocks: 8192") {
		t.Errorf("the size of its cache is not in\n%s", text)
	}
	if x := measure(t, filepath.Join(t.TempDir(), "run.json"), "sim", "run", "--fleet", fleet, "--workload", "plain?rate=3&for=30s", "--compare", "penstock-default"); x.Completed == 0 {
		t.Errorf("%d of %d requests were answered by what was found", x.Completed, x.Requests)
	}
}
