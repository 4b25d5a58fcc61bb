// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"math"
	"strings"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/sched"
)

// CHWBLScorer sends what has the same key to the same endpoint as long as its load allows: consistent hashing with
// bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018), affinity without memory, the same in all replicas.
//
// Key and endpoint hash to a number, and the highest wins (rendezvous hashing, Thaler and Ravishankar 1998): an
// endpoint that comes or goes moves only its own share of keys. One that would have more than loadBound × the mean of
// requests in flight is passed over for the next. Such an endpoint scores below 0.5, the others 0.5 or more. A
// request without a key goes to any endpoint within the bound.
type CHWBLScorer struct {
	// Header names the request header that is the key, in any case of letters.
	Header string `json:"header"`
	// Attribute names the attribute of the request that is the key where there is no such header, such as SessionID.
	Attribute string `json:"attribute"`
	// PrefixTokens makes the first so many tokens of the prompt the key where there is neither, in whole blocks of the
	// prefix producer; 0 for no such key. A shorter prompt is its own key.
	PrefixTokens int `json:"prefixTokens"`
	// LoadBound is how many times the mean of requests in flight an endpoint may have.
	LoadBound float64 `json:"loadBound"`
	// PrefixMatchInfoProducerName names the producer whose blocks are counted; empty for the first.
	PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
}

// Validate reports a bound that nothing could keep, and a plugin without a key.
func (p *CHWBLScorer) Validate() error {
	switch {
	case !(p.LoadBound >= 1 && p.LoadBound <= 1000):
		return errors.New("loadBound: must be between 1 and 1000")
	case p.PrefixTokens < 0:
		return errors.New("prefixTokens: must not be below 0")
	case p.Header == "" && p.Attribute == "" && p.PrefixTokens == 0:
		return errors.New("header, attribute or prefixTokens: want one of them, or there is no key")
	case p.Header != "" && headerName("header", p.Header) != nil:
		return headerName("header", p.Header)
	}
	p.Header = strings.ToLower(p.Header)
	return nil
}

// Score implements [sched.Scorer].
func (p *CHWBLScorer) Score(c *sched.Cycle, score []float64) {
	flying := int64(0)
	for _, e := range c.Candidates {
		flying += e.Load.Requests()
	}
	room := int64(math.Ceil(p.LoadBound * float64(flying+1) / float64(max(1, len(score)))))
	key, ok := p.key(c)
	for i, e := range c.Candidates {
		score[i] = 0.5
		if ok {
			score[i] = 0.5 * toss(key, e.ID)
		}
		if e.Load.Requests() < room {
			score[i] += 0.5
		}
	}
}

// key is the hash of what the request is told by.
func (p *CHWBLScorer) key(c *sched.Cycle) (uint64, bool) {
	if p.Header != "" {
		if v := c.Header(p.Header); v != "" {
			return hashed(fnvOffset, v), true
		}
	}
	if p.Attribute != "" {
		if v := c.Attribute(p.Attribute, ""); v != "" {
			return hashed(fnvOffset, v), true
		}
	}
	found := c.Prefix(p.PrefixMatchInfoProducerName)
	if p.PrefixTokens == 0 || found.BlockTokens <= 0 || found.Hash == nil {
		return 0, false
	}
	keys := found.Hash.Keys
	if starts := found.Hash.Starts; len(starts) > 1 { // several prompts in one request: the first
		keys = keys[:starts[1]]
	}
	if len(keys) == 0 {
		return 0, false
	}
	return keys[min(len(keys), (p.PrefixTokens+found.BlockTokens-1)/found.BlockTokens)-1], true
}

// toss is a number in [0,1) that key and endpoint have in common.
func toss(key uint64, id fleet.ID) float64 {
	x := hashed(hashed(hashed(fnvOffset, id.Namespace), "/"), id.Name) ^ key
	x *= 0x9e3779b97f4a7c15 // the finalizer of SplitMix64 (Steele, Lea and Flood 2014): similar names land far apart
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}

// hashed continues a hash of FNV-1a, whose result is the same in each process.
func hashed(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

const fnvOffset = 0xcbf29ce484222325

// Counts implements [sched.Counter].
func (*CHWBLScorer) Counts() {}
