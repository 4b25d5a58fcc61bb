// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

// fileTexts are what the files say that flags name. They count together: one that is wrong has all say what they said last.
type fileTexts struct {
	now, good []config.FileText // as last read; as last in force, nil for never
	refused   []config.FileText // that could not be put into force; nil for none
	why       string            // they could not
}

func sameTexts(a, b []config.FileText) bool {
	return slices.EqualFunc(a, b, func(a, b config.FileText) bool { return a.Path == b.Path && bytes.Equal(a.Data, b.Data) })
}

// unfit is why a picker's configuration cannot be put into force.
type unfit struct {
	file string // where it was written; empty for the default
	err  error
}

func (u *unfit) Error() string { return u.err.Error() }
func (u *unfit) Unwrap() error { return u.err }

// blame is why the text of that name cannot be put into force, of all that cannot; nil when others are to blame. Where nobody is
// named, any may be.
func blame(why error, name string) error {
	many, ok := why.(interface{ Unwrap() []error })
	if !ok {
		return why
	}
	for _, one := range many.Unwrap() {
		var u *unfit
		switch {
		case !errors.As(one, &u) || u.file == "":
			return why
		case u.file == name:
			return u.err
		}
	}
	return nil
}

// judge says what is wrong with the files of a configuration, nil when that could not be read; empty for nothing.
func (f *fileTexts) judge(cfg *config.Config) (problems []config.Problem, fit bool) {
	if cfg == nil {
		return nil, false
	}
	if path := emptied(f.good, cfg); path != "" {
		return []config.Problem{{Severity: config.Error, File: path, Text: isEmpty}}, false
	}
	if f.refused != nil && sameTexts(f.refused, cfg.Read) {
		return []config.Problem{{Severity: config.Error, Text: f.why}}, false
	}
	return nil, true
}

// documented reads documents, and the files beside them, which say what they said last while they cannot count.
func (c *cluster) documented(docs []config.Document) (*config.Config, []config.Problem) {
	docs, o := slices.Concat(c.flags, docs), c.options
	cfg, problems := config.Documents(docs, o, c.files...)
	more, fit := c.named.judge(cfg)
	problems = append(problems, more...)
	if !fit && c.named.good != nil {
		o.Instead = c.named.good
		if cfg, more = config.Documents(docs, o, c.files...); cfg != nil {
			more = append(more, config.Problem{Severity: config.Warning, File: strings.Join(c.files, ", "), Text: "what was read last stays in force, until this is right"})
		}
		problems = joined(problems, more)
	}
	if cfg != nil {
		c.named.now = cfg.Read
	}
	return cfg, problems
}

// joined are problems, and those of more that are not among them.
func joined(problems, more []config.Problem) []config.Problem {
	for _, p := range more {
		if !slices.Contains(problems, p) {
			problems = append(problems, p)
		}
	}
	return problems
}

// keep remembers the texts that are in force now.
func (c *cluster) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pools = c.read
	if f := &c.named; f.good == nil || !sameTexts(f.good, f.now) {
		f.good, f.refused = f.now, nil
	}
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

// refuse remembers the texts that are new in what could not be put into force and are to blame, those of files when no other is, and
// reports whether there are any.
func (c *cluster) refuse(why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := false
	for _, t := range c.texts {
		if !t.fit || same(t.good, t.now.Data) {
			continue
		}
		if its := blame(why, t.now.Name); its != nil {
			t.refused, t.why, news = t.now.Data, its.Error(), true
		}
	}
	if f := &c.named; !news && !sameTexts(f.now, f.good) && (f.refused == nil || !sameTexts(f.now, f.refused)) {
		f.refused, f.why, news = f.now, why.Error(), true
	}
	return news
}

// retryEvery is how often what was refused is tried again: it may have been for a file that comes later.
const retryEvery = 30 * time.Second

// retry tries again what was refused, until ctx ends.
func (c *cluster) retry(ctx context.Context) {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.forgive() {
			c.anew()
		}
	}
}

// forgive forgets what was refused, and reports whether anything was, or what there is is not in force for another reason: then it is
// time to try again.
func (c *cluster) forgive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := c.named.refused != nil || !c.told
	c.named.refused = nil
	for _, t := range c.texts {
		some = some || t.refused != nil
		t.refused = nil
	}
	return some
}

// load reads all that is known. A ConfigMap that is wrong keeps what it said while it was right.
func (c *cluster) load() (*config.Config, []config.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	docs, texts := c.documents()
	cfg, problems := c.documented(docs)
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
		again, more := c.documented(docs)
		cfg, problems = again, joined(problems, more)
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
	c.read = cfg.Pools
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
	return append(list, observe.ConfigMapView{
		Namespace: c.main.Namespace, Name: c.main.Name, Key: c.main.Key, State: c.text(c.main.ID).state(), Errors: []string{"there is no such ConfigMap"},
	})
}

// decides reports whether a document holds an EndpointPickerConfig of a configuration.
func decides(cfg *config.Config, name string) bool {
	return slices.ContainsFunc(cfg.Pickers, func(p *config.Picker) bool { return p.File == name })
}

func wrong(problems []config.Problem, name string) bool {
	return slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Severity == config.Error && p.File == name })
}
