// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/penstock-project/penstock/config"
	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/observe"
	"github.com/penstock-project/penstock/source/kube"
)

// mapText is the text of a ConfigMap, and what became of it: while what it says cannot be in force, what it said last is.
type mapText struct {
	there   bool             // there is such a ConfigMap, and it is about us
	now     config.Document  // what it says; what it said last, when it is gone
	fit     bool             // now is free of errors, and so among what is to be in force
	good    *config.Document // what it said when it was last put into force; nil for never
	refused []byte           // what was free of errors, and could not be put into force; nil for nothing
	why     string           // it could not
}

// same reports whether a text is that of a document.
func same(d *config.Document, text []byte) bool { return d != nil && bytes.Equal(d.Data, text) }

// judge says whether the text is fit, after the problems that reading it met, and what is to be read in its stead when it is not:
// nil for nothing else.
func (t *mapText) judge(problems []config.Problem) (instead *config.Document) {
	switch t.fit = !wrong(problems, t.now.Name); {
	case t.fit, same(t.good, t.now.Data):
	case t.good != nil:
		return t.good
	case t.refused != nil:
		nothing := t.now
		nothing.Data = nil
		return &nothing
	}
	return nil
}

// state says whether a text is in force.
func (t *mapText) state() string {
	switch {
	case t.good == nil:
		return "not-used"
	case t.there && same(t.good, t.now.Data):
		return "in-force"
	}
	return "older-in-force"
}

// keep remembers the texts that are in force now.
func (c *cluster) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, t := range c.texts {
		if t.fit {
			good := t.now
			t.good, t.refused = &good, nil
		}
		if !t.there && id != c.main.ID {
			delete(c.texts, id)
		}
	}
}

// refuse remembers the texts that are new in what could not be put into force, and reports whether there are any.
func (c *cluster) refuse(why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := false
	for _, t := range c.texts {
		if t.fit && !same(t.good, t.now.Data) {
			t.refused, t.why, news = t.now.Data, why.Error(), true
		}
	}
	return news
}

// load reads all that is known. A ConfigMap that is wrong keeps what it said while it was right.
func (c *cluster) load() (*config.Config, []config.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	docs, texts := c.documents()
	cfg, problems := config.Documents(slices.Concat(c.flags, docs), c.options, c.files...)
	older := false
	for i, t := range texts {
		if t == nil {
			continue
		}
		fault := func(text string) {
			problems = append(problems, config.Problem{Severity: config.Error, File: t.now.Name, Text: text})
		}
		if t.refused != nil && bytes.Equal(t.refused, t.now.Data) {
			fault(t.why)
		}
		if t == c.texts[c.main.ID] && cfg != nil && !wrong(problems, t.now.Name) && !decides(cfg, t.now.Name) {
			text := "holds no EndpointPickerConfig"
			if len(bytes.TrimSpace(t.now.Data)) == 0 {
				text += ": there is no text under this key; --config-map NAMESPACE/NAME/KEY names another"
			}
			fault(text)
		}
		if instead := t.judge(problems); instead != nil {
			docs[i], older = *instead, true
		}
	}
	if older {
		again, more := config.Documents(slices.Concat(c.flags, docs), c.options, c.files...)
		for _, p := range more {
			if !slices.Contains(problems, p) {
				problems = append(problems, p)
			}
		}
		cfg = again
	}
	if t := c.texts[c.main.ID]; t != nil && t.good != nil && !t.there {
		problems = append(problems, config.Problem{Severity: config.Error, File: c.main.String(), Text: "is gone: what it said last stays in force, until this process ends"})
	}
	for i := range problems {
		if problems[i].Elsewhere { // such as of another picker
			problems[i].Severity = config.Note
		}
	}
	c.problems = problems
	if cfg == nil { // nothing is put into force
		for _, t := range c.texts {
			t.fit = false
		}
		return nil, problems
	}
	c.narrow(cfg)
	c.pools = cfg.Pools
	return cfg, problems
}

// narrow leaves the one pool that is served, if only one is.
func (c *cluster) narrow(cfg *config.Config) {
	if c.only == nil {
		return
	}
	// A pool that a file beside the configuration describes is for the data plane.
	i := slices.IndexFunc(cfg.Pools, func(p *config.Pool) bool { return p.Namespace == c.only.Namespace && p.Name == c.only.Name })
	if i >= 0 {
		cfg.Pools = []*config.Pool{cfg.Pools[i]}
		return
	}
	p := *c.only // without an object nobody is its endpoint, and no objective is for it
	p.Picker, p.Objectives = cfg.PickerFor(p.Namespace, p.PickerRef), map[string]int{}
	cfg.Pools = []*config.Pool{&p}
}

// documents are the objects as documents, and beside each of them the text that it is, nil for another object.
func (c *cluster) documents() (docs []config.Document, texts []*mapText) {
	for _, t := range c.texts {
		t.there, t.fit = false, false
	}
	for _, o := range c.objects {
		d := config.Document{Name: o.String(), Data: o.Data, Namespace: o.Namespace}
		var t *mapText
		if o.Kind == "ConfigMap" {
			switch main := c.main.Is(o); {
			case main:
			case len(bytes.TrimSpace(o.Data)) == 0:
				continue // it is not about us
			default:
				d.Picker = o.Name
			}
			d.Lines = true
			t = c.text(fleet.ID{Namespace: o.Namespace, Name: o.Name})
			t.there, t.now = true, d
		}
		docs, texts = append(docs, d), append(texts, t)
	}
	if t := c.texts[c.main.ID]; t != nil && t.good != nil && !t.there { // what it said last stays
		t.now = *t.good
		docs, texts = append(docs, t.now), append(texts, t)
	}
	return docs, texts
}

// text is that of a ConfigMap, with the lock held.
func (c *cluster) text(id fleet.ID) *mapText {
	t := c.texts[id]
	if t == nil {
		t = &mapText{}
		c.texts[id] = t
	}
	return t
}

// unusable says why the main ConfigMap does not decide, with the lock held; empty when it does, as it was or as it is, or when
// there need not be one.
func (c *cluster) unusable() string {
	if t := c.texts[c.main.ID]; c.main == (kube.MapRef{}) || t != nil && t.good != nil {
		return ""
	}
	if i := slices.IndexFunc(c.objects, c.main.Is); i >= 0 {
		return fmt.Sprintf("%s holds no EndpointPickerConfig that can be used", c.objects[i])
	}
	return "there is no " + c.main.String()
}

// configMaps are the texts as /debug/fleet shows them, with the lock held.
func (c *cluster) configMaps() (list []observe.ConfigMapView) {
	for _, o := range c.objects {
		t := c.texts[fleet.ID{Namespace: o.Namespace, Name: o.Name}]
		if o.Kind != "ConfigMap" || t == nil || !t.there {
			continue
		}
		m := observe.ConfigMapView{Namespace: o.Namespace, Name: o.Name, Key: o.Key, State: t.state()}
		for _, p := range c.problems {
			if p.File == o.String() && p.Severity == config.Error {
				m.Errors = append(m.Errors, said(p))
			}
		}
		list = append(list, m)
	}
	if c.main == (kube.MapRef{}) || slices.ContainsFunc(c.objects, c.main.Is) {
		return list
	}
	t := c.texts[c.main.ID]
	if t == nil {
		t = &mapText{}
	}
	return append(list, observe.ConfigMapView{
		Namespace: c.main.Namespace, Name: c.main.Name, Key: c.main.Key, State: t.state(), Errors: []string{"there is no such ConfigMap"},
	})
}

// decides reports whether a document holds an EndpointPickerConfig of a configuration.
func decides(cfg *config.Config, name string) bool {
	return slices.ContainsFunc(cfg.Pickers, func(p *config.Picker) bool { return p.File == name })
}

func wrong(problems []config.Problem, name string) bool {
	return slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Severity == config.Error && p.File == name })
}
