// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/e2e/rig"
)

var shots = flag.String("shots", "", "folder for pictures of the reports")

// TestReportInABrowser opens reports in a real browser, on a desk and on a phone, by day and by night.
func TestReportInABrowser(t *testing.T) {
	t.Run("sim", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "report.html")
		rig.Run(t, nil, rig.Penstock(t), "sim", "run", "--workload", "tenants", "--workload", "chat", "--endpoints", "4", "--duration", "1m", "--rate", "2,8",
			"--seeds", "2", "--slo", "ttft=500ms,tpot=50ms", "--compare", "round-robin,llm-d-default,penstock-default", "--html", file)
		look(t, "sim", file, 20)
	})
	t.Run("bench", func(t *testing.T) {
		engines := rig.Engines(t, 2)
		gateway := rig.Serve(t, rig.Addrs(engines)...)
		gateway.Ready(t, 2)
		file := filepath.Join(t.TempDir(), "report.html")
		rig.Run(t, nil, rig.Penstock(t), "bench", "--url", "http://"+gateway.HTTP, "--direct", "http://"+engines[0].Addr, "--model", "m",
			"--rate", "20", "--duration", "3s", "--block", "500ms", "--slo", "ttft=1s", "--html", file)
		look(t, "bench", file, 3)
	})
}

// look tries what a reader would notice at once.
func look(t *testing.T, name, file string, plots int) {
	page := rig.Browse(t, file)
	for _, screen := range []struct {
		name          string
		width, height int64
		dark          bool
	}{{"desk", 1280, 900, false}, {"night", 1280, 900, true}, {"phone", 390, 844, false}, {"small", 320, 568, true}} {
		page.Screen(t, screen.width, screen.height, screen.dark)
		if *shots != "" {
			page.Shoot(t, filepath.Join(*shots, name+"-"+screen.name+".png"))
		}
		if wide := rig.Eval[int64](t, page, `document.documentElement.scrollWidth`); wide > screen.width {
			t.Errorf("%s: the page is %d px wide and scrolls sideways", screen.name, wide)
		}
		shown := rig.Eval[int](t, page, `[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height > 40 && s.querySelector('path,circle,rect')).length`)
		if shown < plots {
			t.Errorf("%s: %d plots, want at least %d", screen.name, shown, plots)
		}
		cut := rig.Eval[[]string](t, page, `[...document.querySelectorAll('figure svg')].flatMap(s => { const b = s.getBoundingClientRect();
			return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
				return r.left < b.left-1 || r.right > b.right+1 || r.top < b.top-2 || r.bottom > b.bottom+2 || screen.width >= 390 && r.height < 9 }).map(t => s.querySelector('title').textContent + ': ' + t.textContent) })`)
		if len(cut) > 0 {
			t.Errorf("%s: texts that are cut off or too small to read:\n%s", screen.name, strings.Join(cut, "\n"))
		}
		paper := rig.Eval[string](t, page, `getComputedStyle(document.body).backgroundColor`)
		if dark := paper != "rgb(255, 255, 255)"; dark != screen.dark {
			t.Errorf("%s: the paper is %s", screen.name, paper)
		}
	}
	if trouble := page.Trouble(); len(trouble) > 0 {
		t.Errorf("the page complains or wants the network:\n%s", strings.Join(trouble, "\n"))
	}
}
