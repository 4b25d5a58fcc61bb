// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxEndpoints bounds a file with a list of endpoints.
const maxEndpoints = 1 << 20

// HostPort is the address to dial, IPv6 in brackets.
func (e EndpointEntry) HostPort() string { return net.JoinHostPort(e.Address, strconv.Itoa(e.Port)) }

// ParseEndpoints reads a list of endpoints in llm-d's file-discovery format. What is wrong with
// one entry is [Skipped]: the others are returned. Of two entries with one name the last wins.
// An empty document is an empty list.
func ParseEndpoints(data []byte, file string) ([]EndpointEntry, []Problem) {
	var ps []Problem
	report := func(p Problem) { ps = append(ps, p) }
	if len(data) > maxEndpoints {
		report(tooManyEndpoints(file))
		return nil, ps
	}
	var entries []EndpointEntry
	for _, root := range parse(data, file, report) {
		if field(root, "endpoints") == nil {
			report(Problem{Severity: Error, File: file, Line: root.Line, Text: "want a list under endpoints, got " + got(root)})
			continue
		}
		entries = append(entries, endpoints(root, file, report)...)
	}
	if Failed(ps) {
		return nil, ps
	}
	return entries, ps
}

func tooManyEndpoints(file string) Problem {
	return Problem{Severity: Error, File: file, Text: fmt.Sprintf("is larger than %d MiB", maxEndpoints>>20)}
}

func readEndpoints(d *document) {
	if d.size > maxEndpoints {
		d.report(tooManyEndpoints(d.file))
		return
	}
	d.addEndpoints(d.abs, endpoints(d.root, d.file, d.report))
}

// addEndpoints adds to what one file tells.
func (l *loader) addEndpoints(file string, entries []EndpointEntry) {
	for i := range l.cfg.Endpoints {
		if l.cfg.Endpoints[i].File == file {
			l.cfg.Endpoints[i].Entries = append(l.cfg.Endpoints[i].Entries, entries...)
			return
		}
	}
	l.cfg.Endpoints = append(l.cfg.Endpoints, EndpointFile{File: file, Entries: entries})
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
func endpoints(root *yaml.Node, file string, report func(Problem)) []EndpointEntry {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if k := root.Content[i]; k.Value != "endpoints" {
			report(Problem{Severity: Warning, File: file, Line: k.Line, Path: join("", k.Value), Text: "is ignored: a list of endpoints has only endpoints"})
		}
	}
	list := field(root, "endpoints")
	if isNull(list) {
		return nil
	}
	if list.Kind != yaml.SequenceNode {
		report(Problem{Severity: Error, File: file, Line: list.Line, Path: "endpoints", Text: "want a list, got " + got(list)})
		return nil
	}
	var entries []EndpointEntry
	at := map[string]int{} // position by namespace/name
	for i, n := range list.Content {
		e, ok := endpoint(n, file, index("endpoints", i), report)
		if !ok {
			continue
		}
		id := e.Namespace + "/" + e.Name
		if k, twice := at[id]; twice {
			report(Problem{Severity: Warning, File: file, Line: n.Line, Path: index("endpoints", i) + ".name",
				Text: fmt.Sprintf("%s is written twice: line %d is ignored", id, entries[k].Line)})
			entries[k] = e
			continue
		}
		at[id] = len(entries)
		entries = append(entries, e)
	}
	return entries
}

func endpoint(n *yaml.Node, file, path string, report func(Problem)) (EndpointEntry, bool) {
	ok := true
	skip := func(p Problem) {
		ok = ok && p.Severity == Warning
		report(p)
	}
	w := written{Namespace: "default"}
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
	return EndpointEntry{Namespace: w.Namespace, Name: w.Name, Address: w.Address, Port: int(w.Port), Labels: w.Labels, Line: n.Line}, ok
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
	if a, err := netip.ParseAddr(bare); err == nil && (bare == s || a.Is6()) {
		return a.Unmap().String(), nil // one spelling, whatever the operator's
	}
	last := bare[strings.LastIndex(strings.TrimSuffix(bare, "."), ".")+1:]
	if bare != s || len(s) > 253 || !hostName.MatchString(s) || digits.MatchString(strings.TrimSuffix(last, ".")) {
		return "", fmt.Errorf("want an IP address or a host name, got %q", short(s))
	}
	return s, nil
}
