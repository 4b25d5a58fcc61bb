// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// DisaggregatedSetRolloutScreener keeps all legs of a request on one revision while a DisaggregatedSet rolls out.
//
// A revision is covered when the pool has an endpoint of it in each required role. Of the covered revisions that have a
// candidate one is drawn for each request, with odds by what it has: all endpoints of the required roles (sum), or those
// of the role that has most endpoints over all covered revisions (max-role). Only candidates of that revision, and of
// the scope, go on. A request with the header of a strict selector keeps only endpoints whose label is the header's
// value; where that label is the revision's nothing is drawn, but the revision must be covered. Where nothing is left the
// answer is 503: legs of two revisions are never mixed.
//
// Answers tell each selector's label of the endpoint that served in the header of that name, so that whoever sends the
// next leg can ask for the same. Pods of several ranks count once. Endpoints are those that discovery told and that are
// ready, so that nothing else is watched.
type DisaggregatedSetRolloutScreener struct {
	// Scope says which endpoints are looked at.
	Scope RolloutScope `json:"scope"`
	// HeaderSelectors compare headers with labels, and write them to answers.
	HeaderSelectors []HeaderSelector `json:"headerSelectors"`
	// RevisionGating says how a revision is chosen.
	RevisionGating RevisionGating `json:"revisionGating"`

	scope *LabelSelectorFilter
}

// RolloutScope says which endpoints belong to the set.
type RolloutScope struct {
	// LabelSelector is a label selector in a line, such as disaggregatedset.x-k8s.io/name=my-set.
	LabelSelector string `json:"labelSelector"`
}

// HeaderSelector is a header that stands for a label.
type HeaderSelector struct {
	// Name tells selectors apart.
	Name string `json:"name"`
	// HeaderName is the header of requests and answers, in any case of letters.
	HeaderName string `json:"headerName"`
	// LabelKey is the label.
	LabelKey string `json:"labelKey"`
	// Mode is strict, to keep only endpoints whose label equals the header, or prefer, to do no more than write it to
	// answers: header-label-affinity-scorer prefers.
	Mode string `json:"mode"`
}

// RevisionGating says how a revision is chosen.
type RevisionGating struct {
	// RevisionLabelKey is the label with the revision.
	RevisionLabelKey string `json:"revisionLabelKey"`
	// RoleLabelKey is the label with the role.
	RoleLabelKey string `json:"roleLabelKey"`
	// Mode is sum, max-role or disabled; with disabled only strict selectors drop candidates.
	Mode string `json:"mode"`
	// RequireRoles are the roles that a revision must have to be chosen.
	RequireRoles RequiredRoles `json:"requireRoles"`
}

// RequiredRoles are the roles that a revision must have.
type RequiredRoles struct {
	// Values are the roles, at least one unless the mode is disabled. Of equals in max-role the first counts.
	Values []string `json:"values"`
}

const (
	revisionLabel  = "disaggregatedset.x-k8s.io/revision"
	roleOfSetLabel = "disaggregatedset.x-k8s.io/role"
	// maxRevisions are told apart; a rollout has two. Of more, those that come last have no candidates.
	maxRevisions = 32
	maxRoles     = 8
	maxSelectors = 16
)

// Validate reports what cannot be told apart or compared.
func (p *DisaggregatedSetRolloutScreener) Validate() error {
	if p.Scope.LabelSelector == "" {
		return errors.New("scope.labelSelector: is missing: want a label selector, such as disaggregatedset.x-k8s.io/name=my-set")
	}
	var err error
	if p.scope, err = parseSelector(p.Scope.LabelSelector); err != nil {
		return fmt.Errorf("scope.labelSelector: %w", err)
	}
	if err := p.selectors(); err != nil {
		return err
	}
	g := &p.RevisionGating
	switch {
	case g.Mode != "sum" && g.Mode != "max-role" && g.Mode != "disabled":
		return fmt.Errorf("revisionGating.mode: want sum, max-role or disabled, got %q", g.Mode)
	case g.RevisionLabelKey == "":
		return errors.New("revisionGating.revisionLabelKey: is empty: want a label")
	case g.RoleLabelKey == "":
		return errors.New("revisionGating.roleLabelKey: is empty: want a label")
	case g.Mode != "disabled" && len(g.RequireRoles.Values) == 0:
		return fmt.Errorf("revisionGating.requireRoles.values: is empty: %s needs at least one role", g.Mode)
	case len(g.RequireRoles.Values) > maxRoles:
		return fmt.Errorf("revisionGating.requireRoles.values: %d are too many, at most %d", len(g.RequireRoles.Values), maxRoles)
	}
	return unique("revisionGating.requireRoles.values[%d]", g.RequireRoles.Values)
}

func (p *DisaggregatedSetRolloutScreener) selectors() error {
	if len(p.HeaderSelectors) > maxSelectors {
		return fmt.Errorf("headerSelectors: %d are too many, at most %d", len(p.HeaderSelectors), maxSelectors)
	}
	var names, headers []string
	for i := range p.HeaderSelectors {
		h := &p.HeaderSelectors[i]
		h.HeaderName = strings.ToLower(h.HeaderName)
		switch at := fmt.Sprintf("headerSelectors[%d]", i); {
		case h.LabelKey == "":
			return errors.New(at + ".labelKey: is missing: want a label")
		case h.Mode != "strict" && h.Mode != "prefer":
			return fmt.Errorf("%s.mode: want strict or prefer, got %q", at, h.Mode)
		}
		names, headers = append(names, h.Name), append(headers, h.HeaderName)
	}
	if err := unique("headerSelectors[%d].name", names); err != nil {
		return err
	}
	if err := unique("headerSelectors[%d].headerName", headers); err != nil {
		return err
	}
	for i, name := range headers {
		if err := ownHeader(fmt.Sprintf("headerSelectors[%d].headerName", i), name); err != nil {
			return err
		}
	}
	return nil
}

// unique reports the first of some names that is missing or there before.
func unique(path string, names []string) error {
	seen := map[string]bool{}
	for i, n := range names {
		switch {
		case n == "":
			return fmt.Errorf(path+": is missing", i)
		case seen[n]:
			return fmt.Errorf(path+": %s is there twice", i, n)
		}
		seen[n] = true
	}
	return nil
}

// revision is what the pool has of one.
type revision struct {
	name  string
	roles [maxRoles]int
	all   int
	fit   bool // it has a candidate
}

func (r *revision) covered(roles int) bool {
	for _, n := range r.roles[:roles] {
		if n == 0 {
			return false
		}
	}
	return r.name != ""
}

// Filter implements [sched.Filter], as a screener.
func (p *DisaggregatedSetRolloutScreener) Filter(c *sched.Cycle, keep []bool) {
	if p.scope == nil {
		return
	}
	gated := p.RevisionGating.Mode != "disabled"
	var all [maxRevisions]revision
	revisions := all[:0]
	if gated {
		revisions = p.count(c, all[:0])
	}
	asked := p.strict(c, keep)
	if !gated {
		return
	}
	key, roles := p.RevisionGating.RevisionLabelKey, len(p.RevisionGating.RequireRoles.Values)
	for i, e := range c.Candidates {
		r := find(revisions, e.Labels[key])
		if keep[i] = keep[i] && r != nil && r.covered(roles) && p.scope.matches(e.Labels); keep[i] {
			r.fit = true
		}
	}
	if asked {
		return
	}
	drawn := p.draw(c, revisions)
	for i, e := range c.Candidates {
		keep[i] = keep[i] && drawn != nil && e.Labels[key] == drawn.name
	}
}

// count sums up what the pool has of each revision.
func (p *DisaggregatedSetRolloutScreener) count(c *sched.Cycle, revisions []revision) []revision {
	g := &p.RevisionGating
	for i, e := range c.All {
		name := e.Labels[g.RevisionLabelKey]
		if name == "" || !p.scope.matches(e.Labels) || i > 0 && samePod(e, c.All[i-1]) {
			continue
		}
		r := find(revisions, name)
		if r == nil {
			if len(revisions) == cap(revisions) {
				continue
			}
			revisions = append(revisions, revision{name: name})
			r = &revisions[len(revisions)-1]
		}
		for k, role := range g.RequireRoles.Values {
			if e.Labels[g.RoleLabelKey] == role {
				r.roles[k]++
				r.all++
			}
		}
	}
	return revisions
}

// samePod reports ranks of one pod, which are neighbours.
func samePod(a, b *fleet.Endpoint) bool {
	return a.Pod != "" && a.Pod == b.Pod && a.Namespace == b.Namespace
}

func find(revisions []revision, name string) *revision {
	for i := range revisions {
		if revisions[i].name == name {
			return &revisions[i]
		}
	}
	return nil
}

// draw chooses among the covered revisions that have candidates; nil when there are none.
func (p *DisaggregatedSetRolloutScreener) draw(c *sched.Cycle, revisions []revision) *revision {
	roles := len(p.RevisionGating.RequireRoles.Values)
	largest, most := -1, 0
	if p.RevisionGating.Mode == "max-role" {
		for k := range roles {
			n := 0
			for i := range revisions {
				if r := &revisions[i]; r.covered(roles) {
					n += r.roles[k]
				}
			}
			if n > most {
				largest, most = k, n
			}
		}
	}
	weight := func(r *revision) int {
		switch {
		case !r.fit:
			return 0
		case largest >= 0:
			return r.roles[largest]
		}
		return r.all
	}
	sum := 0
	for i := range revisions {
		sum += weight(&revisions[i])
	}
	if sum == 0 {
		return nil
	}
	at := c.Rand.IntN(sum)
	for i := range revisions {
		if at -= weight(&revisions[i]); at < 0 {
			return &revisions[i]
		}
	}
	return nil
}

// strict drops what a request's headers rule out, and reports whether one of them says the revision.
func (p *DisaggregatedSetRolloutScreener) strict(c *sched.Cycle, keep []bool) (asked bool) {
	for k := range p.HeaderSelectors {
		h := &p.HeaderSelectors[k]
		want := ""
		if h.Mode == "strict" {
			want = c.Header(h.HeaderName)
		}
		if want == "" {
			continue
		}
		asked = asked || h.LabelKey == p.RevisionGating.RevisionLabelKey
		for i, e := range c.Candidates {
			keep[i] = keep[i] && e.Labels[h.LabelKey] == want
		}
	}
	return asked
}

// Answered implements [sched.Answerer].
func (p *DisaggregatedSetRolloutScreener) Answered(_ *sched.Cycle, served *fleet.Endpoint, set func(name, value string)) {
	for k := range p.HeaderSelectors {
		h := &p.HeaderSelectors[k]
		if v := served.Labels[h.LabelKey]; sendable(v) {
			set(h.HeaderName, v)
		}
	}
}

// sendable reports whether a label can be a header's value.
func sendable(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] >= 0x7f {
			return false
		}
	}
	return v != ""
}

// Reason implements [sched.Reasoner].
func (p *DisaggregatedSetRolloutScreener) Reason() string {
	if p.RevisionGating.Mode == "disabled" {
		return "a label is not what a strict header asks for"
	}
	return "it is of another revision than the request is served by, or of one that lacks a role"
}
