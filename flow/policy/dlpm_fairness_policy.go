// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"
	"time"

	"github.com/penstock-project/penstock/flow"
)

// DLPMFairnessPolicy shares work as vtc-fairness-policy does, but within a slack it lets those go first whose
// prompts are cached best: deficits with longest prefix match.
//
// Each tenant has a deficit of tokens that it may use, and a request takes off what it costs (1 + uncached prompt
// tokens + outputWeight·output tokens, by its tenant's weight, first by estimate and in the end by what it was). Of
// those whose deficit is above 0 the tenant goes whose first request has the least share of its prompt uncached.
// When nobody's is, all get slackTokens more, as often as it takes. So no tenant that waits is ahead of another by
// much more than slackTokens. One that comes anew begins with slackTokens at most.
type DLPMFairnessPolicy struct {
	Charges
	// SlackTokens is by how many tokens a tenant may be served ahead of others for what is cached. More gives more
	// cache hits, less evens out sooner.
	SlackTokens float64 `json:"slackTokens"`
}

// Validate reports a slack or weights that cannot be.
func (p *DLPMFairnessPolicy) Validate() error {
	if !(p.SlackTokens >= 1) {
		return errors.New("slackTokens: must be 1 or more")
	}
	return p.Charges.Validate()
}

// New implements [FairnessMaker].
func (p *DLPMFairnessPolicy) New() flow.Fairness {
	d := &dlpm{accounts: newAccounts(p.Charges), slack: p.SlackTokens, level: p.SlackTokens}
	return d
}

// dlpm keeps one level for all: an account's deficit is the level less what it used. The floor is the level less
// the slack.
type dlpm struct {
	accounts
	slack, level float64
	may          flow.Heap // those with a deficit above 0, by the uncached share of their heads
	owing        flow.Heap // the others, by what they used
}

func (d *dlpm) Add(f *flow.Flow, now time.Time) {
	d.put(d.come(f, now))
	d.refill()
}

func (d *dlpm) Remove(f *flow.Flow, now time.Time) {
	a := d.by[f.Tenant]
	d.take(a)
	d.rest(a, now)
	d.refill()
}

func (d *dlpm) Headed(f *flow.Flow, _ time.Time) {
	if d.by[f.Tenant].owes {
		d.owing.Fix(f)
	} else {
		f.Score = uncachedShare(f.Head.Ask)
		d.may.Fix(f)
	}
}

// Next implements [flow.Fairness]. Where all that may go are refused, who owes least goes: what others cannot use is no
// reason to wait.
func (d *dlpm) Next(_ time.Time, ok func(*flow.Flow) bool) *flow.Flow {
	if f := d.may.First(ok); f != nil {
		return f
	}
	return d.owing.First(ok)
}

func (d *dlpm) Went(f *flow.Flow, now time.Time) { d.Charge(f.Tenant, now, perRequest, 0) }

func (d *dlpm) Charge(tenant string, now time.Time, uncached, output int64) {
	a := d.charge(tenant, now, uncached, output)
	if a == nil || a.flow == nil {
		return
	}
	switch owes := a.used >= d.level; {
	case owes != a.owes:
		d.take(a)
		d.put(a)
	case owes:
		a.flow.Score = a.used
		d.owing.Fix(a.flow)
	default:
		return // its place is by its head
	}
	d.refill()
}

// put enters an account's flow where it belongs, take takes it out.
func (d *dlpm) put(a *account) {
	a.owes = a.used >= d.level
	if a.owes {
		a.flow.Score = a.used
		d.owing.Push(a.flow)
	} else {
		a.flow.Score = uncachedShare(a.flow.Head.Ask)
		d.may.Push(a.flow)
	}
}

func (d *dlpm) take(a *account) {
	if a.owes {
		d.owing.Remove(a.flow)
	} else {
		d.may.Remove(a.flow)
	}
}

// refill raises the level until somebody may go.
func (d *dlpm) refill() {
	if d.may.Len() > 0 || d.owing.Len() == 0 {
		return
	}
	least := d.owing.All()[0].Score
	d.level += d.slack * (math.Floor((least-d.level)/d.slack) + 1)
	d.floor = d.level - d.slack
	for d.owing.Len() > 0 && d.owing.All()[0].Score < d.level {
		f := d.owing.All()[0]
		d.owing.Remove(f)
		d.put(d.by[f.Tenant])
	}
}

// uncachedShare is how much of a request's prompt no endpoint holds, 0 to 1.
func uncachedShare(a *flow.Ask) float64 {
	if a == nil || a.Uncached <= 0 {
		return 0
	}
	return float64(a.Uncached) / float64(max(a.Tokens, a.Uncached))
}
