// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/penstock-project/penstock/plugin"
)

// The files in testdata hold commands with a document each. load binds it as serve does, check
// as penstock check does, endpoints reads a list of endpoints, file keeps it for the next load
// or check, and seeds checks files of testdata/seeds.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no testdata", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			var kept []string // names and documents by turns
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "file":
					kept = append(kept, d.CmdArgs[0].String(), d.Input)
					return ""
				case "endpoints":
					return dumpParsed(ParseEndpoints([]byte(d.Input+"\n"), "x.yaml"))
				case "migrate":
					return migrated(t, d.Input+"\n")
				case "seeds":
					return dumpSeeds(d.CmdArgs)
				}
				o := testOptions()
				o.Experimental, o.Refuse = d.HasArg("experimental"), d.HasArg("refuse")
				if d.HasArg("pool") {
					o.Pool = &Pool{Namespace: "default", Name: d.CmdArgs[0].Vals[0], PickerRef: "epp"}
				}
				l := newLoader(o)
				l.partial = d.Cmd == "check"
				for i := 0; i+1 < len(kept); i += 2 {
					l.data(kept[i], kept[i], []byte(kept[i+1]+"\n"))
				}
				kept = nil
				if d.Input != "" {
					l.data("x.yaml", "x.yaml", []byte(d.Input+"\n"))
				}
				cfg, ps := l.finish()
				var b bytes.Buffer
				l.print(&b, ps)
				if d.HasArg("errors") {
					return b.String()
				}
				return b.String() + dump(cfg)
			})
		})
	}
}

// migrated shows what migrate changes, after having seen that it means the same and is migrated.
func migrated(t *testing.T, before string) string {
	t.Helper()
	after, ps := Migrate("x.yaml", before)
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintln(&b, p)
	}
	b.WriteString(Diff("x.yaml", before, after))
	if again, _ := Migrate("x.yaml", after); again != after {
		t.Errorf("migrated again: %s", Diff("x.yaml", after, again))
	}
	was, _ := Text("x.yaml", before, testOptions())
	is, problems := Text("x.yaml", after, testOptions())
	for _, p := range problems {
		if p.Severity == Error && was != nil || len(ps) == 0 && strings.Contains(p.Text, "deprecated") {
			t.Errorf("%s after %s", p, before)
		}
	}
	if got, want := meaning(is), meaning(was); was != nil && got != want {
		t.Errorf("%s came to mean\n%s, which meant\n%s", before, got, want)
	}
	return cmp.Or(b.String(), "nothing to do\n")
}

// meaning shows what a configuration does, by whatever words it says so.
func meaning(cfg *Config) string {
	if cfg == nil {
		return ""
	}
	var b strings.Builder
	today := func(plugins ...*Plugin) {
		for _, pl := range plugins {
			fmt.Fprintf(&b, " %s", cmp.Or(pl.entry.ReplacedBy, pl.Type))
		}
	}
	for _, p := range cfg.Pickers {
		fmt.Fprintf(&b, "picker %s %+v\n", p.Name, p.Gates)
		today(p.Handler, p.Detector)
		today(p.Parsers...)
		today(p.Producers...)
		for _, s := range p.Sources {
			today(s.Plugin)
			today(s.Extractors...)
		}
		for _, s := range p.Profiles {
			fmt.Fprintf(&b, "\n%s", s.Name)
			for _, r := range s.Plugins {
				fmt.Fprintf(&b, " %s*%g", r.Name, r.Weight)
				if by := r.Reads(plugin.PrefixMatch); by != nil {
					today(by)
				}
			}
		}
		fmt.Fprintf(&b, "\n%s %+v\n", deref(p.DataLayer), deref(p.FlowControl))
	}
	for _, o := range cfg.Objectives {
		o.Line = 0
		fmt.Fprintf(&b, "%+v\n", o)
	}
	for _, p := range cfg.Pools {
		fmt.Fprintf(&b, "%s %d %v\n", p.Name, p.PickerPort, p.Objectives)
	}
	return b.String()
}

// deref writes a value that is full of pointers.
func deref(v any) string {
	b, err := json.Marshal(v)
	return fmt.Sprint(string(b), err)
}

func dumpSeeds(args []datadriven.CmdArg) string {
	var paths []string
	for _, a := range args {
		paths = append(paths, "testdata/seeds/"+a.String())
	}
	if len(paths) == 0 {
		paths = []string{"testdata/seeds"}
	}
	var b bytes.Buffer
	status := Check(&b, paths, testOptions())
	return fmt.Sprintf("%sexit %d\n", b.String(), status)
}

func dumpParsed(f EndpointFile, ps []Problem) string {
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintf(&b, "%s (%d)\n", p, p.Severity)
	}
	dumpEntries(&b, f.Entries)
	for _, e := range f.Broken {
		fmt.Fprintf(&b, "  broken %s\n", e.id())
	}
	return b.String()
}

func dumpEntries(b *strings.Builder, entries []EndpointEntry) {
	for _, e := range entries {
		fmt.Fprintf(b, "  %s/%s %s%s", e.Namespace, e.Name, e.HostPort(), dumpLabels(e.Labels))
		if e.Metrics != "" {
			fmt.Fprintf(b, " metrics=%s", e.Metrics)
		}
		if e.Node != "" {
			fmt.Fprintf(b, " node=%s", e.Node)
		}
		b.WriteString("\n")
	}
}

func dumpLabels(m map[string]string) string {
	s := ""
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s += fmt.Sprintf(" %s=%s", k, m[k])
	}
	return s
}

// dump shows what was loaded.
func dump(cfg *Config) string {
	if cfg == nil {
		return "refused\n"
	}
	var b strings.Builder
	for _, p := range cfg.Pools {
		picker := "default"
		if p.Picker.File != "" {
			picker = fmt.Sprintf("%s:%d", p.Picker.File, p.Picker.Line)
		}
		fmt.Fprintf(&b, "pool %s/%s%s ports=%v h2c=%t ref=%s:%d open=%t picker=%s\n", p.Namespace, p.Name,
			dumpLabels(p.Selector), p.TargetPorts, p.H2C, p.PickerRef, p.PickerPort, p.FailOpen, picker)
		for _, name := range slices.Sorted(maps.Keys(p.Objectives)) {
			fmt.Fprintf(&b, "  objective %s %d\n", name, p.Objectives[name])
		}
	}
	for _, p := range cfg.Pools {
		for _, r := range p.Rewrites {
			fmt.Fprintf(&b, "rewrite in %s by %s: %q all=%t to %v\n", p.Name, r.Name, r.Models, r.All, r.Targets)
		}
	}
	for _, p := range cfg.Pickers {
		dumpPicker(&b, p)
	}
	for _, f := range cfg.Endpoints {
		fmt.Fprintf(&b, "endpoints %s\n", f.File)
		dumpEntries(&b, f.Entries)
	}
	if s := fmt.Sprintf("%+v", cfg.Penstock); s != fmt.Sprintf("%+v", newLoader(Options{}).cfg.Penstock) {
		fmt.Fprintf(&b, "penstock %+v %+v\n", cfg.Penstock.Listeners, cfg.Penstock.Limits)
		fmt.Fprintf(&b, "  trust %v header=%v\n", cfg.Penstock.Trust.CIDRs, cfg.Penstock.Trust.Header)
		if h := cfg.Penstock.Trust.Header; h != nil {
			fmt.Fprintf(&b, "  secret %s\n", h.Value)
		}
	}
	return cmp.Or(b.String(), "nothing\n")
}

// names lists plugins; those that a default added are in brackets.
func names(plugins []*Plugin) string {
	s := ""
	for _, pl := range plugins {
		if s += " "; pl.Implied {
			s += "(" + pl.Name + ")"
		} else {
			s += pl.Name
		}
	}
	return s
}

func dumpPicker(b *strings.Builder, p *Picker) {
	fmt.Fprintf(b, "picker %s/%s %s:%d handler=%s flowControl=%t\n", p.Namespace, p.Name, p.File, p.Line, p.Handler.Name, p.Gates.FlowControl)
	for _, pl := range p.Plugins {
		if pl.Implied {
			continue
		}
		state := ""
		if !pl.Active {
			state += " inactive"
		}
		if pl.Name != pl.Type {
			state += " type=" + pl.Type
		}
		fmt.Fprintf(b, "  plugin %s%s\n", pl.Name, state)
	}
	for _, s := range p.Profiles {
		fmt.Fprintf(b, "  profile %s:", s.Name)
		for _, r := range s.Plugins {
			fmt.Fprintf(b, " %s*%g", r.Name, r.Weight)
		}
		b.WriteString("\n")
	}
	if p.DiscoveryFile != nil {
		cwd, _ := os.Getwd()
		rel, _ := filepath.Rel(cwd, p.DiscoveryFile.Path)
		fmt.Fprintf(b, "  discovery %s %s watch=%t\n", p.Discovery.Name, rel, p.DiscoveryFile.WatchFile)
	}
	for _, s := range p.Sources {
		fmt.Fprintf(b, "  source %s:%s\n", s.Name, names(s.Extractors))
	}
	fmt.Fprintf(b, "  parsers%s\n", names(p.Parsers))
	fmt.Fprintf(b, "  detector %s\n", p.Detector.Name)
	for _, pl := range p.Producers {
		fmt.Fprintf(b, "  producer%s\n", names([]*Plugin{pl}))
	}
	if len(p.Screeners)+len(p.Admitters) > 0 {
		fmt.Fprintf(b, "  screeners%s, admitters%s\n", names(p.Screeners), names(p.Admitters))
	}
	for _, pl := range p.Plugins {
		for _, r := range pl.reads {
			fmt.Fprintf(b, "  %s reads %s of %s\n", pl.Name, r.data, r.by.Name)
		}
	}
	if fc := p.FlowControl; fc != nil {
		fmt.Fprintf(b, "  flow bytes=%v requests=%v ttl=%v bands=%d\n", fc.MaxBytes, fc.MaxRequests, fc.DefaultRequestTTL, len(fc.PriorityBands))
	}
}
