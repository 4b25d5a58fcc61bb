// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/sim/report"
	"github.com/penstock-project/penstock/sim/work"
)

// TestQoS: the figures that are checked in are those of the suite, and it would be noticed if fairness were lost or gained:
// those of one policy taken for another's are worse, or better, where light tenants are concerned.
func TestQoS(t *testing.T) {
	rows, err := readSuite("docs/qos.md")
	if err != nil {
		t.Fatal(err)
	}
	suite := work.Suites["qos"]
	if want := len(suite.Workloads) * len(suite.Compare); len(rows) != want {
		t.Errorf("%d rows, want %d: run make qos-update", len(rows), want)
	}
	var fcfs, fair report.Suite
	for _, r := range rows {
		if !slices.Contains(suite.Workloads, r.Workload) || !slices.Contains(suite.Compare, r.Policy) || r.Seeds != suite.Seeds {
			t.Errorf("%s with %s of %d seeds is not in the suite: run make qos-update", r.Workload, r.Policy, r.Seeds)
		}
		switch policy := r.Policy; policy {
		case "penstock-default+fcfs":
			r.Policy = "one"
			fcfs = append(fcfs, r)
		case "penstock-default+vtc-cached":
			r.Policy = "one"
			fair = append(fair, r)
		}
	}
	var said bytes.Buffer
	if err := held(report.Compare(fair, fair), "table", &said); err != nil || said.Len() > 0 {
		t.Errorf("the same is %v: %s", err, &said)
	}
	if err := held(report.Compare(fair, fcfs), "table", &said); err == nil || !strings.Contains(err.Error(), "worse than table in ") {
		t.Errorf("fcfs is no worse: %v", err)
	}
	for _, workload := range []string{"qos-aggressor", "qos-idle-burst", "qos-heavy"} {
		if !strings.Contains(said.String(), workload+", rate 1, one: light tenants' TTFT p99, ms is worse: before ") {
			t.Errorf("%s with fcfs is no worse for light tenants:\n%s", workload, &said)
		}
	}
	said.Reset()
	_ = held(report.Compare(fcfs, fair), "table", &said)
	if !strings.Contains(said.String(), "qos-aggressor, rate 1, one: Jain is better: before ") {
		t.Errorf("vtc-cached is no fairer:\n%s", &said)
	}
}
