// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxEndpoints bounds a file with a list of endpoints.
const maxEndpoints = 1 << 20

// EndpointFile is one file's list of endpoints.
type EndpointFile struct {
	// File is an absolute path, Name how the operator wrote it.
	File, Name string
	Entries    []EndpointEntry
	// Broken are entries that were [Skipped] though their names could be read; only Namespace, Name and
	// Line are set.
	Broken []EndpointEntry
}

// EndpointEntry is one endpoint of a list in llm-d's file-discovery format, or a port of a pod.
type EndpointEntry struct {
	Namespace, Name string
	// Address is an IPv4 or IPv6 address without brackets in its canonical spelling, or a host name.
	Address string
	Port    int
	// Metrics is where its metrics page is, host:port; empty for the address itself.
	Metrics string
	// Pod is the name of the pod whose port it is, Node the address of the pod's machine; both empty
	// for what is no pod.
	Pod, Node string
	Labels    map[string]string
	Line      int
}

// Anywhere reports whether pools of any namespace may have it: it names none, or "default", and is no
// pod, which belongs to its own.
func (e EndpointEntry) Anywhere() bool { return e.Namespace == "default" && e.Pod == "" }

func (e EndpointEntry) id() string { return e.Namespace + "/" + e.Name }

// HostPort is the address to dial, IPv6 in brackets.
func (e EndpointEntry) HostPort() string { return net.JoinHostPort(e.Address, strconv.Itoa(e.Port)) }

// ParseEndpoints reads a list of endpoints in llm-d's file-discovery format. What is wrong with
// one entry is [Skipped]: the others are returned. Of two entries with one name the last wins.
// An empty document is an empty list.
func ParseEndpoints(data []byte, file string) (EndpointFile, []Problem) {
	f, failed := EndpointFile{File: file, Name: file}, EndpointFile{File: file, Name: file}
	var ps []Problem
	report := func(p Problem) { ps = append(ps, p) }
	if len(data) > maxEndpoints {
		report(tooManyEndpoints(file))
		return failed, ps
	}
	for _, root := range parse(data, file, report) {
		if field(root, "endpoints") == nil {
			report(Problem{Severity: Error, File: file, Line: root.Line, Text: "want a list under endpoints, got " + got(root)})
			continue
		}
		f.add(endpoints(root, file, report))
	}
	if Failed(ps) {
		return failed, ps
	}
	return f, ps
}

func (f *EndpointFile) add(o EndpointFile) {
	f.Entries = append(f.Entries, o.Entries...)
	f.Broken = append(f.Broken, o.Broken...)
}

func tooManyEndpoints(file string) Problem {
	return Problem{Severity: Error, File: file, Text: fmt.Sprintf("is larger than %d MiB", maxEndpoints>>20)}
}

func readEndpoints(d *document) {
	if d.size > maxEndpoints {
		d.report(tooManyEndpoints(d.file))
		return
	}
	d.endpointFile().add(endpoints(d.root, d.file, d.report))
}

// endpointFile is what the document's file tells of endpoints.
func (d *document) endpointFile() *EndpointFile {
	i := slices.IndexFunc(d.cfg.Endpoints, func(f EndpointFile) bool { return f.File == d.abs })
	if i < 0 {
		i = len(d.cfg.Endpoints)
		d.cfg.Endpoints = append(d.cfg.Endpoints, EndpointFile{File: d.abs, Name: d.file})
	}
	return &d.cfg.Endpoints[i]
}

// written is an entry as it stands in the file.
type written struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Address   string            `json:"address"`
	Port      portText          `json:"port"`
	Labels    map[string]string `json:"labels"`
}

// portText is a port, written as a number or as text.
type portText int

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *portText) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("want a port from 1 to 65535, got %q", short(string(text)))
	}
	*p = portText(n)
	return nil
}

// endpoints reads the list of one document.
func endpoints(root *yaml.Node, file string, report func(Problem)) (f EndpointFile) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if k := root.Content[i]; k.Value != "endpoints" {
			report(Problem{Severity: Warning, File: file, Line: k.Line, Path: join("", k.Value), Text: "is ignored: a list of endpoints has only endpoints"})
		}
	}
	list := field(root, "endpoints")
	if isNull(list) {
		return f
	}
	if list.Kind != yaml.SequenceNode {
		report(Problem{Severity: Error, File: file, Line: list.Line, Path: "endpoints", Text: "want a list, got " + got(list)})
		return f
	}
	at := map[string]int{} // position by namespace/name
	for i, n := range list.Content {
		e, ok := endpoint(n, file, index("endpoints", i), report)
		if !ok {
			if e.Name != "" {
				f.Broken = append(f.Broken, EndpointEntry{Namespace: e.Namespace, Name: e.Name, Line: e.Line})
			}
			continue
		}
		if k, twice := at[e.id()]; twice {
			report(Problem{Severity: Warning, File: file, Line: n.Line, Path: index("endpoints", i) + ".name",
				Text: fmt.Sprintf("%s is written twice: line %d is ignored", e.id(), f.Entries[k].Line)})
			f.Entries[k] = e
			continue
		}
		at[e.id()] = len(f.Entries)
		f.Entries = append(f.Entries, e)
	}
	return f
}

func endpoint(n *yaml.Node, file, path string, report func(Problem)) (EndpointEntry, bool) {
	ok := true
	skip := func(p Problem) {
		ok = ok && p.Severity == Warning
		report(p)
	}
	var w written
	d := decoder{file: file, report: skip, wrong: Skipped, unknown: Warning}
	if isNull(n) || n.Kind != yaml.MappingNode {
		d.fail(n, path, "want an object with name, address and port, got %s", got(n))
		return EndpointEntry{}, false
	}
	d.value(n, reflect.ValueOf(&w).Elem(), path)
	say := func(key, text string) {
		skip(Problem{Severity: Skipped, File: file, Line: line(n, key), Path: path + "." + key, Text: text})
	}
	if ok && w.Name == "" {
		say("name", "is missing")
	}
	if ok && w.Port == 0 {
		say("port", "is missing")
	}
	if ok {
		if host, err := hostOf(w.Address); err != nil {
			say("address", err.Error())
		} else {
			w.Address = host
		}
	}
	e := EndpointEntry{Namespace: cmp.Or(w.Namespace, "default"), Name: w.Name, Address: w.Address, Port: int(w.Port), Labels: w.Labels, Line: n.Line}
	if ok {
		e.metrics(func(key string, err error) {
			skip(Problem{Severity: Warning, File: file, Line: line(n, "labels."+key), Path: path + ".labels." + key, Text: err.Error() + ": is ignored"})
		})
	}
	return e, ok
}

// The labels that say where the metrics of an endpoint are when they are not at its address.
const metricsAddress, metricsPort = "metricsAddress", "metricsPort"

// metrics reads these labels.
func (e *EndpointEntry) metrics(wrong func(label string, err error)) {
	address, hasAddress := e.Labels[metricsAddress]
	port, hasPort := e.Labels[metricsPort]
	host, number := e.Address, portText(e.Port)
	if hasAddress {
		if h, err := hostOf(address); err != nil {
			wrong(metricsAddress, err)
		} else {
			host = h
		}
	}
	if hasPort {
		if err := number.UnmarshalText([]byte(port)); err != nil {
			wrong(metricsPort, err)
		}
	}
	if host != e.Address || int(number) != e.Port {
		e.Metrics = net.JoinHostPort(host, strconv.Itoa(int(number)))
	}
}

var hostName = regexp.MustCompile(`^([A-Za-z0-9_]([-A-Za-z0-9_]*[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([-A-Za-z0-9_]*[A-Za-z0-9_])?\.?$`)
var digits = regexp.MustCompile(`^\d+$`)

// hostOf checks an IPv4 address, an IPv6 address with or without brackets, or a host name, and
// returns it without brackets.
func hostOf(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("is missing: want an IP address or a host name")
	}
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(bare)
	if err == nil && (a.IsUnspecified() || a.IsMulticast()) {
		return "", fmt.Errorf("%s is no endpoint's: want the address at which it is reached, or a host name", short(s))
	}
	if err == nil && (bare == s || a.Is6()) && (a.Zone() == "" || hostName.MatchString(a.Zone())) {
		return a.Unmap().String(), nil // one spelling, whatever the operator's
	}
	last := bare[strings.LastIndex(strings.TrimSuffix(bare, "."), ".")+1:]
	if bare != s || len(s) > 253 || !hostName.MatchString(s) || digits.MatchString(strings.TrimSuffix(last, ".")) {
		return "", fmt.Errorf("want an IP address or a host name, got %q", short(s))
	}
	return s, nil
}

// has reports whether an endpoint is one of the pool's, as the fleet's store decides it once all runs.
func (p *Pool) has(e EndpointEntry, pools int) bool {
	if e.Namespace != p.Namespace && !e.Anywhere() {
		return false
	}
	return len(e.Labels) == 0 && pools == 1 || selects(p.Selector, e.Labels)
}

// maxSurvey bounds the warnings of one kind about one file.
const maxSurvey = 10

// survey reports what is odd about the endpoints as a whole: those that no pool has, and those of one pool that
// have one address. When files are only checked, the files that discovery would read count, too.
func (l *loader) survey() {
	files := slices.Clone(l.cfg.Endpoints)
	if l.partial {
		files = append(files, l.discovered()...)
	}
	if len(l.cfg.Pools) == 0 {
		return
	}
	for _, f := range files {
		lost := 0
		for _, e := range f.Entries {
			if slices.ContainsFunc(l.cfg.Pools, func(p *Pool) bool { return p.has(e, len(l.cfg.Pools)) }) {
				continue
			}
			if lost++; lost <= maxSurvey {
				l.report(Problem{Severity: Warning, File: f.Name, Line: e.Line, Text: fmt.Sprintf("endpoint %s gets no requests: no pool here selects its labels and namespace", e.id())})
			}
		}
		if lost > maxSurvey {
			l.report(Problem{Severity: Warning, File: f.Name, Text: fmt.Sprintf("%d more endpoints get no requests", lost-maxSurvey)})
		}
	}
	for _, p := range l.cfg.Pools {
		l.sameAddress(p, files)
	}
}

// sameAddress reports endpoints of a pool that have the address of another.
func (l *loader) sameAddress(p *Pool, files []EndpointFile) {
	type found struct {
		EndpointEntry
		file string
	}
	var members []found
	for _, f := range files {
		for _, e := range f.Entries {
			if p.has(e, len(l.cfg.Pools)) {
				members = append(members, found{e, f.Name})
			}
		}
	}
	slices.SortStableFunc(members, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	first, said := map[string]found{}, map[string]int{}
	for _, e := range members {
		o, twice := first[e.HostPort()]
		if !twice {
			first[e.HostPort()] = e
			continue
		}
		if o.id() == e.id() {
			continue // one endpoint that two files tell
		}
		if said[e.file]++; said[e.file] <= maxSurvey {
			l.report(Problem{Severity: Warning, File: e.file, Line: e.Line,
				Text: fmt.Sprintf("endpoint %s gets no requests: in pool %s, %s (%s) has the address %s, too, and comes first", e.id(), p.Name, o.id(), place{o.file, o.Line}, e.HostPort())})
		}
	}
}

// discovered reads the files that pickers name and that were not read as manifests.
func (l *loader) discovered() []EndpointFile {
	var files []EndpointFile
	read := map[string]bool{}
	for _, p := range l.cfg.Pickers {
		f := p.DiscoveryFile
		if f == nil || l.read[f.Path] || read[f.Path] {
			continue
		}
		read[f.Path] = true
		name := f.Path
		if dir, err := os.Getwd(); err == nil {
			if rel, err := filepath.Rel(dir, f.Path); err == nil && filepath.IsLocal(rel) {
				name = rel
			}
		}
		data, err := os.ReadFile(f.Path)
		if err != nil {
			l.report(Problem{Severity: Note, File: p.File, Line: p.Line, Text: fmt.Sprintf("%s cannot be read here: its endpoints are not checked", name)})
			continue
		}
		list, ps := ParseEndpoints(data, name)
		for _, q := range ps {
			l.report(q)
		}
		l.files = append(l.files, name)
		files = append(files, list)
	}
	return files
}
