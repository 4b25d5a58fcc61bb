// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/plugin"
)

// kind is a kind that we read.
type kind struct {
	name string
	// versions are the apiVersions, best first; those after the first current are deprecated.
	versions []string
	current  int
	read     func(*document)
}

func kinds() []kind {
	return []kind{
		{"InferencePool", []string{"inference.networking.k8s.io/v1"}, 1, readPool},
		{"InferenceObjective", []string{"llm-d.ai/v1", "llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"}, 2, readObjective},
		{"InferenceModelRewrite", []string{"llm-d.ai/v1alpha2", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha2"}, 2, readRewrite},
		{"EndpointPickerConfig", []string{"llm-d.ai/v1", "llm-d.ai/v1alpha1", "llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha1"}, 1, readPicker},
		{"HTTPRoute", []string{"gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"}, 1, readRoute},
		{"Gateway", []string{"gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"}, 1, readGateway},
		{"ConfigMap", []string{"v1"}, 1, readConfigMap},
		{"Pod", []string{"v1"}, 1, readPod},
		{"Penstock", []string{"penstock.dev/v1alpha1"}, 1, readPenstock},
	}
}

// own are the API groups in which an unknown kind is a slip rather than somebody else's.
var own = []string{"llm-d.ai", "inference.networking.k8s.io", "inference.networking.x-k8s.io", "penstock.dev"}

// foreign are kinds of these groups that we know of and do not read, with the reason.
var foreign = map[string]string{
	"InferencePoolImport":    "it only reports status",
	"InferenceModel":         "it was replaced by InferenceObjective and InferenceModelRewrite",
	"PayloadProcessorConfig": "",
}

// document sends a document to the reader of its kind.
func (l *loader) document(d *document) {
	l.docs++
	name, version := text(d.root, "kind"), text(d.root, "apiVersion")
	switch {
	case d.root.Kind != yaml.MappingNode:
		d.fail("", "want an object with apiVersion and kind, got %s", got(d.root))
		return
	case name == "" && field(d.root, "endpoints") != nil:
		readEndpoints(d)
		return
	case strings.HasSuffix(name, "List") && field(d.root, "items") != nil:
		l.items(d)
		return
	case name == "":
		d.fail("kind", "is missing: want %s, or a list under endpoints", strings.Join(kindNames(), ", "))
		return
	}
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		d.unknownKind(name, version)
		return
	}
	k := all[i]
	if !d.version(k, version) {
		return
	}
	k.read(d)
}

func (l *loader) items(d *document) {
	l.docs--
	items := field(d.root, "items")
	if items.Kind != yaml.SequenceNode {
		d.fail("items", "want a list, got %s", got(items))
		return
	}
	for _, item := range items.Content {
		l.document(&document{loader: l, file: d.file, abs: d.abs, size: d.size, root: item})
	}
}

func kindNames() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

func (d *document) unknownKind(name, version string) {
	group, _, _ := strings.Cut(version, "/")
	ours := slices.Contains(own, group)
	near := plugin.Nearest(name, kindNames())
	why, known := foreign[name]
	switch {
	case known && why == "":
		d.warn("kind", "accepted, not active yet: %s", name)
	case known:
		d.warn("kind", "%s is ignored: %s", name, why)
	case ours && near != "":
		d.fail("kind", "unknown kind %q: did you mean %s?", short(name), near)
	case ours:
		d.fail("kind", "unknown kind %q: want %s", short(name), strings.Join(kindNames(), ", "))
	default:
		d.problem(Note, "kind", "%s is ignored: it is not a kind that penstock reads", short(name))
	}
}

// version reports an apiVersion that is not the kind's, or is a deprecated one.
func (d *document) version(k kind, version string) bool {
	i := slices.Index(k.versions, version)
	switch {
	case version == "":
		d.fail("apiVersion", "is missing: want %s", k.versions[0])
	case i < 0 && k.name == "InferencePool" && strings.HasPrefix(version, "inference.networking.x-k8s.io/"):
		d.fail("apiVersion", "InferencePool left %s: write %s, the selector under selector.matchLabels, targetPortNumber as targetPorts, extensionRef as endpointPickerRef", short(version), k.versions[0])
	case i < 0:
		d.fail("apiVersion", "%s has no version %q: want %s", k.name, short(version), k.versions[0])
	case i >= k.current:
		d.warn("apiVersion", "%s is deprecated: write %s", version, k.versions[0])
	}
	return i >= 0
}

var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// named reports a missing name, and one that an API server would refuse.
func (d *document) named(name string) bool {
	if name == "" {
		d.fail("metadata.name", "is missing")
		return false
	}
	if !dnsName.MatchString(name) || len(name) > 253 {
		d.warn("metadata.name", "an API server would refuse %q: want lower-case letters, digits, dots and hyphens", short(name))
	}
	return true
}
