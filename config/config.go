// SPDX-License-Identifier: Apache-2.0

// Package config answers: what did the operator write?
//
// [Load] reads files and folders of manifests strictly, reports everything that is wrong at
// once with file and line, fills in the defaults and binds the documents to each other.
// It imports no package that decides anything: which plugin types exist beyond their names is
// told by [Options].
package config

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/plugin"
)

// Options tell what config cannot know itself. The zero value takes every plugin type of the
// catalogue as active and leaves parameters unread.
type Options struct {
	// Active reports whether this build acts on a plugin type, or on one of the features
	// flowControl, crossReplica, peerDiscovery, HTTPRoute, Gateway and
	// ConfigMap (model mappings). What is not active is accepted with a warning that names it.
	// Discovery by file is always active.
	Active func(name string) bool
	// Types reports whether a type that is not in plugin.Catalogue is this build's own. The
	// zero value knows none.
	Types func(typ string) bool
	// Validate makes a plugin of an active type to see whether its parameters are right; it is
	// what plugin.Set's New does. It returns the error of decode unchanged, and [Inactive] for parameters
	// that have no effect, or are deprecated.
	Validate func(typ string, decode func(any) error) error
	// Namespace is given to objects that name none; "default" when empty.
	Namespace string
	// Experimental allows plugins that are alpha or for tests, as spec.allowExperimentalPlugins of a
	// Penstock document does.
	Experimental bool
	// Refuse makes such plugins errors where they are not allowed, as the field's Endpoint Picker does, instead of
	// warnings.
	Refuse bool
	// Default is the EndpointPickerConfig, in YAML, that decides when nobody wrote one; empty for the field's.
	Default string
	// Instead are texts that are read in place of all files and folders, such as what Config.Read had before; nil for none. With an
	// empty list no file is read.
	Instead []FileText
	// Pool is one that no document describes, such as the one that flags name; nil for none. It is
	// bound like the others.
	Pool *Pool
}

// FileText is what a file says.
type FileText struct {
	// Name is how problems call the file, Path is absolute.
	Name, Path string
	Data       []byte
}

// Config is everything the operator wrote, with defaults, bound together. It is not changed
// after it is returned. All lists are in the order of the files, and within a file of the lines.
type Config struct {
	// Pools are the InferencePools.
	Pools []*Pool
	// Pickers are the EndpointPickerConfigs.
	Pickers []*Picker
	// Objectives are the InferenceObjectives; pools hold them by name, too.
	Objectives []Objective
	// Penstock is our own document, or its defaults.
	Penstock api.PenstockSpec
	// Endpoints are the files that hold lists of endpoints, or pods that pools here select.
	Endpoints []EndpointFile
	// Rewrites are sorted by precedence.
	Rewrites []Rewrite
	// Routes, Gateways and Mappings are read and checked; nothing acts on them yet.
	Routes   []*api.HTTPRoute
	Gateways []*api.Gateway
	Mappings []api.ModelMapping
	// Files and Folders are the absolute paths that were read, to be watched.
	Files, Folders []string
	// Read are the texts of Files, never nil.
	Read []FileText
	// Blank are those of Files in which nothing is written, as when they are just being written.
	Blank []string
	// Digest sums up what the files said: equal for equal texts.
	Digest uint64
	// Warnings are the problems that did not keep the configuration from being used.
	Warnings []Problem

	fallback *Picker
}

// Pool is an InferencePool.
type Pool struct {
	Namespace, Name string
	Labels          map[string]string
	// Selector holds labels that must all match an endpoint's.
	Selector    map[string]string
	TargetPorts []int
	// H2C tells to speak HTTP/2 without TLS to the endpoints.
	H2C bool
	// PickerRef is endpointPickerRef.name, PickerPort its port, 0 when not given.
	PickerRef  string
	PickerPort int
	// FailOpen tells what the data plane does when the picker fails.
	FailOpen bool
	// Picker decides for this pool; never nil.
	Picker *Picker
	// Objectives are the priorities by objective name.
	Objectives map[string]int
	// Rewrites are the rules of its InferenceModelRewrites that can apply: a model has one at most.
	Rewrites []RewriteRule
	// File and Line are where it was written.
	File string
	Line int
}

// Objective is an InferenceObjective.
type Objective struct {
	Namespace, Name string
	Priority        int
	// PoolRefs and PoolSelector tell to which pools it belongs: those that either names.
	PoolRefs     []string
	PoolSelector *api.LabelSelector
	File         string
	Line         int
}

// Rewrite is an InferenceModelRewrite.
type Rewrite struct {
	Namespace, Name string
	PoolRefs        []string
	// Created is its creationTimestamp, zero when not given.
	Created time.Time
	Rules   []RewriteRule
	File    string
	Line    int
}

// RewriteRule gives requests for some models one of the targets.
type RewriteRule struct {
	// Name is the name of the InferenceModelRewrite that it stands in.
	Name string
	// Models are the names that clients ask for; All takes every other one, too.
	Models  []string
	All     bool
	Targets []RewriteTarget
	Line    int
}

// RewriteTarget is a model's name and its share of the requests.
type RewriteTarget struct {
	Model  string
	Weight int
}

// Picker is an EndpointPickerConfig with its defaults filled in.
type Picker struct {
	// Namespace and Name are empty for a document without metadata.
	Namespace, Name string
	own             bool // it has its document's name, and is nobody else's, even as the only one
	// Gates are the feature gates that this configuration switches on or off, defaults included.
	Gates Gates
	// Plugins are the declared plugins, then those that defaults added.
	Plugins []*Plugin
	// Profiles have at least one member each; a profile ends with exactly one picker.
	Profiles []Profile
	// Handler is the profile handler.
	Handler *Plugin
	// Discovery is the plugin that tells of endpoints, nil for none; DiscoveryFile holds its
	// parameters when it is file-discovery.
	Discovery     *Plugin
	DiscoveryFile *FileDiscovery
	// Producers tell others what they know, those that were added because somebody reads them among
	// them. Each runs after those that it reads.
	Producers []*Plugin
	// Screeners and Admitters are those declared, in that order.
	Screeners []*Plugin
	Admitters []*Plugin
	// Sources tell of endpoints' signals; unless the document forbids it, one is metrics-data-source
	// with core-metrics-extractor, and one models-data-source with models-data-extractor.
	Sources []Source
	// Parsers read requests, the first that can.
	Parsers []*Plugin
	// Detector measures saturation.
	Detector *Plugin
	// DataLayer and FlowControl are as written, under v1's keys; nil when not written.
	DataLayer   *api.DataLayer
	FlowControl *api.FlowControl
	// File and Line are where the document was written; File is empty for the default.
	File string
	Line int
}

// Source is a source of signals and the extractors that read what it brings.
type Source struct {
	*Plugin
	Extractors []*Plugin
}

// Gates are the feature gates.
type Gates struct {
	FlowControl                  bool // default off
	HAPopulateNonLeaderDatastore bool // default on
}

// FileDiscovery reads endpoints from a file: YAML or JSON, up to 1 MiB, with a list under
// endpoints of name, namespace (default "default"), address, port and labels.
//
// An address is IPv4, IPv6 in any spelling, with or without brackets, or a host name, which is looked
// up every few seconds: each of its addresses is an endpoint, the first with the entry's name, others
// with -1, -2 and so on behind it. The labels metricsAddress and metricsPort say where an endpoint's metrics
// are when they are not at its address. An entry that is wrong is reported and left out, or keeps what
// it said while it was right; a file that cannot be read, or is empty, changes nothing.
type FileDiscovery struct {
	// Path is the file with the list of endpoints: in the working directory or, when it is not there,
	// beside the document that names it.
	Path string `json:"path"`
	// WatchFile is accepted and makes no difference: the file is always followed.
	WatchFile bool `json:"watchFile"`
}

// MulticlusterFileDiscovery reads clusters from a file, in the format of file-discovery: each entry is the
// gateway of a cluster, and metricsAddress and metricsPort among its labels say where its metrics are.
type MulticlusterFileDiscovery struct {
	FileDiscovery
}

// Plugin is a declared plugin.
type Plugin struct {
	// Name is unique in its picker; Type is what it is.
	Name, Type string
	// Active tells that this build acts on it.
	Active bool
	// Implied tells that a default added it.
	Implied bool

	entry      plugin.Entry
	file       *FileDiscovery
	decode     func(any) error
	parameters *yaml.Node
	reads      []reading
	placed     bool // something refers to it
}

// reading is who tells a plugin some data.
type reading struct {
	data plugin.Data
	by   *Plugin
}

// Reads is the plugin that tells p the data; nil when it reads none or, which only optional data
// can be, nobody tells it.
func (p *Plugin) Reads(data plugin.Data) *Plugin {
	for _, r := range p.reads {
		if r.data == data {
			return r.by
		}
	}
	return nil
}

// Decode writes the parameters into v, a pointer to a struct that holds the defaults. The
// error lists every problem with file and line.
func (p *Plugin) Decode(v any) error {
	if p.decode == nil {
		return nil
	}
	return p.decode(v)
}

// Profile is a scheduling profile.
type Profile struct {
	Name    string
	Plugins []Ref
}

// Ref is a plugin's place in a profile.
type Ref struct {
	*Plugin
	// Weight is a scorer's.
	Weight float64
}
