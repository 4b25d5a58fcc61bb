// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/plugin"
)

// dataLayer checks the section and moves the keys from before v1 to their new places.
func (p *pickerDocument) dataLayer() {
	spec := p.spec.DataLayer
	if spec == nil {
		p.sources()
		return
	}
	for i, s := range spec.Sources {
		at := index("dataLayer.sources", i)
		source := Source{Plugin: p.ref(at+".pluginRef", s.PluginRef, Error, plugin.Source)}
		for k, e := range s.Extractors {
			if x := p.ref(index(at+".extractors", k)+".pluginRef", e.PluginRef, Error, plugin.Extractor); x != nil {
				source.Extractors = append(source.Extractors, x)
			}
		}
		if source.Plugin != nil {
			p.picker.Sources = append(p.picker.Sources, source)
		}
	}
	if spec.InjectDefaults == nil || *spec.InjectDefaults {
		p.sources()
	}
	dl := *spec
	p.discovery(&dl)
	p.peers(&dl)
	p.crossReplica(&dl)
	p.picker.DataLayer = &dl
}

// extractorOf is the extractor that reads a source when the document names none.
var extractorOf = map[string]string{
	"metrics-data-source":              "core-metrics-extractor",
	"multicluster-metrics-data-source": "multicluster-metrics-extractor",
	"models-data-source":               "models-data-extractor",
	"dcgm-data-source":                 "dcgm-extractor",
}

// sources adds the default sources, unless one of the type is there, under whatever name, and
// gives each source without an extractor the one that reads it.
func (p *pickerDocument) sources() {
	for _, typ := range []string{"metrics-data-source", "models-data-source"} {
		if !slices.ContainsFunc(p.picker.Sources, func(s Source) bool { return s.Type == typ }) {
			p.picker.Sources = append(p.picker.Sources, Source{Plugin: p.imply(typ)})
		}
	}
	for i, s := range p.picker.Sources {
		if typ := extractorOf[s.Type]; typ != "" && len(s.Extractors) == 0 {
			p.picker.Sources[i].Extractors = []*Plugin{p.imply(typ)}
		}
	}
}

// moved tells of a key that is spelled as another version of the document spells it, and
// reports whether both spellings are there.
func (p *pickerDocument) moved(before, after string, hasBefore, hasAfter bool) bool {
	switch {
	case hasBefore && hasAfter:
		p.fail(before, "is the same as %s: write only one of them", after)
	case hasBefore && p.v1:
		p.warn(before, "is %s in llm-d.ai/v1", after)
	case hasAfter && !p.v1:
		p.warn(after, "belongs to llm-d.ai/v1: llm-d reads %s in %s", before, p.spec.APIVersion)
	}
	return hasBefore && hasAfter
}

func (p *pickerDocument) discovery(dl *api.DataLayer) {
	const before, after = "dataLayer.discovery.pluginRef", "dataLayer.discovery.endpoints.pluginRef"
	d := dl.Discovery
	if d == nil || p.moved(before, after, d.PluginRef != "", d.Endpoints != nil) {
		return
	}
	at, name := after, ""
	switch {
	case d.Endpoints != nil:
		name = d.Endpoints.PluginRef
	case d.PluginRef != "":
		at, name = before, d.PluginRef
	case d.Peers != nil:
		return
	}
	p.picker.Discovery = p.ref(at, name, Error, plugin.Discovery)
	if p.picker.Discovery != nil {
		p.picker.DiscoveryFile = p.picker.Discovery.file
	}
	dl.Discovery = &api.DiscoverySpec{Endpoints: &api.PluginRef{PluginRef: name}, Peers: d.Peers}
}

func (p *pickerDocument) peers(dl *api.DataLayer) {
	const before, after = "dataLayer.peerDiscovery", "dataLayer.discovery.peers"
	hasAfter := dl.Discovery != nil && dl.Discovery.Peers != nil
	if p.moved(before, after, dl.PeerDiscovery != nil, hasAfter) || dl.PeerDiscovery == nil && !hasAfter {
		return
	}
	at := after
	if old := dl.PeerDiscovery; old != nil {
		at = before
		d := api.DiscoverySpec{}
		if dl.Discovery != nil {
			d = *dl.Discovery
		}
		d.Peers, dl.PeerDiscovery = old, nil
		dl.Discovery = &d
	}
	p.ref(at+".pluginRef", dl.Discovery.Peers.PluginRef, Error, plugin.Discovery)
	p.inactive(at, "peerDiscovery")
}

func (p *pickerDocument) crossReplica(dl *api.DataLayer) {
	c := api.CrossReplicaSpec{}
	if dl.CrossReplica != nil {
		c = *dl.CrossReplica
	}
	p.moved("dataLayer.crossReplicaSyncerPluginRef", "dataLayer.crossReplica.syncerPluginRef", dl.Syncer != "", c.SyncerPluginRef != "")
	p.moved("dataLayer.crossReplicaSyncInterval", "dataLayer.crossReplica.syncInterval", dl.SyncInterval != nil, c.SyncInterval != nil)
	if dl.CrossReplica == nil && dl.Syncer == "" && dl.SyncInterval == nil {
		return
	}
	c.SyncerPluginRef = cmp.Or(c.SyncerPluginRef, dl.Syncer)
	c.SyncInterval = cmp.Or(c.SyncInterval, dl.SyncInterval)
	dl.CrossReplica, dl.Syncer, dl.SyncInterval = &c, "", nil
	p.inactive("dataLayer", "crossReplica")
}

// flowControl checks the section, whether or not its gate is on.
func (p *pickerDocument) flowControl() {
	fc := p.spec.FlowControl
	if old := p.spec.SaturationDetector; old != nil {
		p.warn("saturationDetector", "is deprecated: write flowControl: {saturationDetector: {pluginRef: %s}}", old.PluginRef)
		p.picker.Detector = p.ref("saturationDetector.pluginRef", old.PluginRef, Error, plugin.Detector)
		if fc == nil {
			fc = &api.FlowControl{}
		}
		if fc.SaturationDetector != nil {
			p.fail("saturationDetector", "is the same as flowControl.saturationDetector: write only one of them")
		}
		fc.SaturationDetector = old
	} else if fc != nil && fc.SaturationDetector != nil {
		p.picker.Detector = p.ref("flowControl.saturationDetector.pluginRef", fc.SaturationDetector.PluginRef, Error, plugin.Detector)
	}
	if p.picker.Detector == nil {
		p.picker.Detector = p.imply("utilization-detector")
	}
	p.picker.FlowControl = fc
	switch gate := p.picker.Gates.FlowControl; {
	case gate:
		p.inactive(cmp.Or(p.written("flowControl"), "featureGates"), "flowControl")
	case p.spec.FlowControl != nil && !p.detectorAlone():
		p.warn("flowControl", "has no effect: the feature gate flowControl is off")
	}
	if p.spec.FlowControl == nil {
		return
	}
	p.amounts("flowControl", fc.MaxBytes, fc.MaxRequests)
	p.ttl("flowControl.defaultRequestTTL", fc.DefaultRequestTTL)
	p.ttl("flowControl.noEndpointRequestTTL", fc.NoEndpointRequestTTL)
	if fc.UsageLimitPolicyPluginRef != "" {
		p.ref("flowControl.usageLimitPolicyPluginRef", fc.UsageLimitPolicyPluginRef, Error, plugin.UsageLimit)
	}
	p.template("flowControl.defaultPriorityBand", fc.DefaultPriorityBand)
	p.template("flowControl.defaultNegativePriorityBand", fc.DefaultNegativePriorityBand)
	priorities := map[int32]int{}
	shares := 0.0
	for i := range fc.PriorityBands {
		at := index("flowControl.priorityBands", i)
		b := &fc.PriorityBands[i]
		p.band(at, b)
		if shares += b.MinShare; shares > 1+1e-9 && shares-b.MinShare <= 1+1e-9 {
			p.fail(at+".minShare", "the bands' shares come to more than 1: all of them together can have at most 1")
		}
		if first, twice := priorities[b.Priority]; twice {
			p.fail(at+".priority", "priority %d has a band already: %s", b.Priority, index("flowControl.priorityBands", first))
			continue
		}
		priorities[b.Priority] = i
	}
}

// detectorAlone reports a section that holds nothing but the detector, which works without the gate.
func (p *pickerDocument) detectorAlone() bool {
	n := field(p.root, "flowControl")
	return n != nil && len(n.Content) == 2 && n.Content[0].Value == "saturationDetector"
}

// written returns the key when the document has it, else "".
func (p *pickerDocument) written(key string) string {
	if field(p.root, key) == nil {
		return ""
	}
	return key
}

// template checks a band that stands for those of priorities without one of their own.
func (p *pickerDocument) template(at string, b *api.PriorityBand) {
	p.band(at, b)
	if b != nil && b.Priority != 0 {
		p.warn(at+".priority", "has no effect: the band is made for each priority that has none under priorityBands")
	}
}

func (p *pickerDocument) band(at string, b *api.PriorityBand) {
	if b == nil {
		return
	}
	p.amounts(at, b.MaxBytes, b.MaxRequests)
	if b.MaxBytes != nil && *b.MaxBytes == 0 {
		p.warn(at+".maxBytes", "0 is the default of 1e9 here, and not no bound: write a large number for that")
	}
	if b.MaxRequests != nil && *b.MaxRequests == 0 {
		p.warn(at+".maxRequests", "0 is the default of 5000 here, and not no bound: write a large number for that")
	}
	p.ttl(at+".requestTTL", b.RequestTTL)
	if !(b.MinShare >= 0 && b.MinShare <= 1) {
		p.fail(at+".minShare", "want a share of 0 to 1, got %v", b.MinShare)
	}
	if b.FairnessPolicyRef != "" {
		p.ref(at+".fairnessPolicyRef", b.FairnessPolicyRef, Error, plugin.Fairness)
	}
	if b.OrderingPolicyRef != "" {
		p.ref(at+".orderingPolicyRef", b.OrderingPolicyRef, Error, plugin.Ordering)
	}
}

func (p *pickerDocument) amounts(at string, bytes, requests *api.Quantity) {
	if bytes != nil && *bytes < 0 {
		p.fail(at+".maxBytes", "want 0 or more, got %d", *bytes)
	}
	if requests != nil && *requests < 0 {
		p.fail(at+".maxRequests", "want 0 or more, got %d", *requests)
	}
}

func (p *pickerDocument) ttl(at string, d *api.Duration) {
	if d != nil && *d < 0 {
		p.fail(at, "want 0s or more, got %s", d)
	}
}
