// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/sim/engine"
)

// Endpoint is one engine of a fleet.
type Endpoint struct {
	Kind   string
	Labels map[string]string
	Config engine.Config
}

// Most is how many endpoints a fleet may have.
const Most = 4096

// Find is the kind of that name.
func Find(name string) (Kind, bool) {
	for _, k := range Kinds {
		if strings.EqualFold(k.Name, name) {
			return k, true
		}
	}
	return Kind{}, false
}

// Names are the kinds' names.
func Names() []string {
	names := make([]string, len(Kinds))
	for i, k := range Kinds {
		names[i] = k.Name
	}
	return names
}

// List writes the kinds, for people.
func List(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KIND\tKV TOKENS\tSTEP\tPREFILL/S\tPER SEQ\tPER 1k KV\tPER 1M PAIRS\tBATCH\tWHAT")
	for _, k := range Kinds {
		c, t := &k.Config, &k.Config.Timing
		fmt.Fprintf(w, "%s\t%d\t%v\t%.0f\t%v\t%v\t%v\t%d seqs, %d tokens\t%s\n", k.Name, c.NumBlocks*c.BlockSize, t.Base, 1e9/float64(t.PerPrefillToken),
			t.PerSeq.Round(time.Microsecond), 1000*t.PerKVToken, t.PerMPairs.Round(time.Microsecond), c.MaxNumSeqs, c.MaxNumBatchedTokens, k.Doc)
	}
	fmt.Fprintln(w)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "Without --fleet, endpoints are of kind %s. What these are from:\n", Default)
	for _, a := range Accelerators {
		fmt.Fprintf(out, "  %-5s %s\n", a.Name, a.Source)
	}
	for _, m := range Models {
		fmt.Fprintf(out, "  %-5s %s\n", m.Name, m.Source)
	}
	for _, s := range Shares {
		fmt.Fprintf(out, "  - %s\n", s)
	}
	return nil
}

// Fleet reads a fleet: a number of the default kind ("8"), kinds with their numbers ("4xH100-70B-TP4,4xL4-8B"), or a YAML
// file, which is a list of groups:
//
//   - kind: H100-70B-TP4
//     count: 4
//     labels: {zone: a}
//     overrides: {num-blocks: 20000, max-num-seqs: 128, speed: 0.5}
func Fleet(spec string) ([]Endpoint, error) {
	if _, err := strconv.Atoi(spec); err == nil {
		return Count(spec)
	}
	if _, ok := Find(spec); !ok {
		if strings.HasSuffix(spec, ".yaml") || strings.HasSuffix(spec, ".yml") || !strings.ContainsAny(spec, "x,") {
			return fromFile(spec)
		}
	}
	var list []Endpoint
	for part := range strings.SplitSeq(spec, ",") {
		part = strings.TrimSpace(part)
		number, name, ok := strings.Cut(part, "x")
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			n, name = 1, part
		}
		k, known := Find(name)
		switch {
		case !known:
			return nil, fmt.Errorf("%q: no kind is named %q: want NUMBERxKIND with a kind of %s", part, name, strings.Join(Names(), ", "))
		case n < 1 || n > Most:
			return nil, fmt.Errorf("%q: want 1 to %d endpoints", part, Most)
		}
		list = append(list, several(k, n)...)
	}
	return bounded(list)
}

// Count is a fleet of the default kind.
func Count(spec string) ([]Endpoint, error) {
	n, err := strconv.Atoi(spec)
	if err != nil || n < 1 || n > Most {
		return nil, fmt.Errorf("%s: want 1 to %d endpoints", spec, Most)
	}
	k, _ := Find(Default)
	return several(k, n), nil
}

func several(k Kind, n int) []Endpoint {
	list := make([]Endpoint, n)
	for i := range list {
		list[i] = Endpoint{Kind: k.Name, Config: k.Config}
	}
	return list
}

func bounded(list []Endpoint) ([]Endpoint, error) {
	if len(list) < 1 || len(list) > Most {
		return nil, fmt.Errorf("%d endpoints: want 1 to %d", len(list), Most)
	}
	return list, nil
}

// group is an entry of a fleet's file.
type group struct {
	Kind      string            `yaml:"kind"`
	Count     int               `yaml:"count"`
	Labels    map[string]string `yaml:"labels"`
	Overrides overrides         `yaml:"overrides"`
}

// overrides are constants that differ from the kind's; 0 is as the kind has it. Times are such as 50us.
type overrides struct {
	BlockSize           int           `yaml:"block-size"`
	NumBlocks           int           `yaml:"num-blocks"`
	MaxNumSeqs          int           `yaml:"max-num-seqs"`
	MaxNumBatchedTokens int           `yaml:"max-num-batched-tokens"`
	MaxLoRAs            int           `yaml:"max-loras"`
	StepTime            time.Duration `yaml:"step-time"`
	PrefillTime         time.Duration `yaml:"prefill-time-per-token"`
	SeqTime             time.Duration `yaml:"time-per-seq"`
	KVTime              time.Duration `yaml:"time-per-kv-token"`
	PairTime            time.Duration `yaml:"time-per-million-pairs"`
	// Speed divides all times.
	Speed float64 `yaml:"speed"`
}

// largest is what a fleet's file may have, in bytes.
const largest = 1 << 20

func fromFile(path string) ([]Endpoint, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && filepath.Ext(path) == "" {
		return nil, fmt.Errorf("%q: want a number, NUMBERxKIND with a kind of %s, or a YAML file", path, strings.Join(Names(), ", "))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, largest+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > largest:
		return nil, fmt.Errorf("%s: want at most %d bytes", path, largest)
	}
	return File(path, text)
}

// File reads a fleet's file.
func File(path string, text []byte) ([]Endpoint, error) {
	var nodes []yaml.Node
	if err := yaml.Unmarshal(text, &nodes); err != nil {
		return nil, fmt.Errorf("%s: want a list of {kind, count, labels, overrides}: %w", path, err)
	}
	var list []Endpoint
	for i := range nodes {
		n := &nodes[i]
		wrong := func(format string, a ...any) ([]Endpoint, error) {
			return nil, fmt.Errorf("%s:%d: %s", path, n.Line, fmt.Sprintf(format, a...))
		}
		g := group{Count: 1}
		if err := strict(n, &g); err != nil {
			return wrong("%v", err)
		}
		k, ok := Find(g.Kind)
		switch {
		case !ok:
			return wrong("no kind is named %q: want %s", g.Kind, strings.Join(Names(), ", "))
		case g.Count < 1 || g.Count > Most:
			return wrong("count: %d: want 1 to %d", g.Count, Most)
		}
		if err := g.Overrides.apply(&k.Config); err != nil {
			return wrong("overrides: %v", err)
		}
		some := several(k, g.Count)
		for j := range some {
			some[j].Labels = g.Labels
		}
		if list = append(list, some...); len(list) > Most {
			return wrong("more than %d endpoints", Most)
		}
	}
	out, err := bounded(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// strict decodes without fields that nobody knows.
func strict(n *yaml.Node, into any) error {
	text, err := yaml.Marshal(n)
	if err != nil {
		return err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var wrong *yaml.TypeError
	if err := d.Decode(into); errors.As(err, &wrong) && len(wrong.Errors) > 0 {
		_, what, _ := strings.Cut(wrong.Errors[0], ": ") // the line is the copy's
		return errors.New(strings.Replace(what, " not found in type kind.group", " is not known", 1))
	} else if err != nil {
		return err
	}
	return nil
}

func (o *overrides) apply(c *engine.Config) error {
	set := func(to *int, v int) {
		if v != 0 {
			*to = v
		}
	}
	set(&c.BlockSize, o.BlockSize)
	set(&c.NumBlocks, o.NumBlocks)
	set(&c.MaxNumSeqs, o.MaxNumSeqs)
	set(&c.MaxNumBatchedTokens, o.MaxNumBatchedTokens)
	set(&c.MaxLoRAs, o.MaxLoRAs)
	last := func(to *time.Duration, v time.Duration) {
		if v != 0 {
			*to = v
		}
	}
	last(&c.Timing.Base, o.StepTime)
	last(&c.Timing.PerPrefillToken, o.PrefillTime)
	last(&c.Timing.PerSeq, o.SeqTime)
	last(&c.Timing.PerKVToken, o.KVTime)
	last(&c.Timing.PerMPairs, o.PairTime)
	switch {
	case o.Speed < 0 || o.Speed > 1000:
		return fmt.Errorf("speed: %g: want a factor above 0, to 1000", o.Speed)
	case o.Speed > 0:
		c.Timing = c.Timing.Faster(o.Speed)
	}
	return c.Validate()
}
