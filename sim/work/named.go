// SPDX-License-Identifier: Apache-2.0

package work

import (
	"slices"
	"time"
)

// Named is a workload with a name of its own.
type Named struct {
	Name string
	Doc  string
	Spec string
}

// Catalogue lists the named workloads. The slice is the caller's.
func Catalogue() []Named { return slices.Clone(named) }

func find(name string) *Named {
	if i := slices.IndexFunc(named, func(n Named) bool { return n.Name == name }); i >= 0 {
		return &named[i]
	}
	return nil
}

// The rates of named workloads are made for eight endpoints of a kind that takes some 20,000
// tokens of prompt and makes some 1,500 of answer a second. At a rate of 1 routing well keeps them
// busy and not full; those of qos ask for more than there is, for a while or all the time.
var named = []Named{
	{"shared-prefix", "150 groups of 5 prompts that come again and again, each group with 6,000 tokens in common: what llm-d publishes its routing figures of.",
		"groups?groups=150&prompts=5&prefix=6000&own=1200&output=1000&rate=11"},
	{"conversations", "Long conversations, with answers pasted and files attached.",
		"chat?apps=20&system=500~0.8&turns=4~0.7&first=3000~1.2&question=800~1.2&output=300~0.7&think=20s~0.9&context=131072&rate=8"},
	{"coding-agents", "Coding agents with a context of tens of thousands of tokens, nine tenths of it known from the last turn, and sub-agents.",
		"agents?kinds=4&turns=30~0.7&gap=1.3s~0.86&rate=14"},
	{"tool-agents", "Short runs of many kinds of agents: most of a prompt is the tools that the kind has.",
		"agents?kinds=24&system=5000~0.4&task=800~0.8&turns=5~0.7&tool=600~1&gap=3s~1&output=150~0.8&spawn=0&rate=25"},
	{"retrieval", "Three of 500 documents before each question, the popular ones much more often.",
		"documents?documents=500&zipf=1&document=3000~0.6&each=3&rate=12"},
	{"long-documents", "Questions about one of 40 documents of 40,000 tokens: together they hardly fit in the caches.",
		"documents?documents=40&zipf=0.8&document=40000~0.4&each=1&question=100~0.6&output=300~0.6&rate=4"},
	{"adapters", "Short calls for 32 adapters of one model.",
		"lora?adapters=32&zipf=1&rate=100&for=100s"},
	{"no-reuse", "Prompts that share nothing: code completion as in the Azure trace. Affinity can only do harm.",
		"plain?prompt=1500~0.8&output=30~0.6&rate=45&for=3m"},
	{"bursts", "Chat that doubles and trebles from one minute to the next.",
		"chat?apps=30&system=3000~0.5&turns=4~0.8&first=1500~1&question=300~1&output=300~0.7&think=20s~0.9&rate=12&cv=2&shape=burst&factor=3&hold=25s&period=90s"},
	{"mixed", "All at once: people, agents, retrieval and jobs at night's priority.",
		"chat?rate=5 + agents?rate=5 + documents?rate=3 + batch?items=30~0.5&rate=4"},

	{"qos-aggressor", "Four tenants alike, until one asks for ten times as much for 45 s.",
		"tenants?tenants=4&skew=0&of=groups&groups=50&prefix=2000&own=4000~0.5&output=150~0.5&rate=12&aggressor=10&at=30s&hold=45s&for=2m"},
	{"qos-idle-burst", "Three tenants at work, and one that was idle and comes with 800 calls in 20 s.",
		"groups?tenant=steady-0&groups=50&prefix=2000&own=4000~0.5&output=150~0.5&rate=3&for=150s + groups?tenant=steady-1&groups=50&prefix=2000&own=4000~0.5&output=150~0.5&rate=3&for=150s + " +
			"groups?tenant=steady-2&groups=50&prefix=2000&own=4000~0.5&output=150~0.5&rate=3&for=150s + groups?tenant=waker&groups=50&prefix=2000&own=4000~0.5&output=150~0.5&rate=40&start=60s&for=20s"},
	{"qos-long-neighbour", "Three tenants with short prompts beside one with prompts of 100,000 tokens.",
		"plain?tenant=short-0&prompt=1500~0.5&output=150~0.5&rate=4&for=150s + plain?tenant=short-1&prompt=1500~0.5&output=150~0.5&rate=4&for=150s + " +
			"plain?tenant=short-2&prompt=1500~0.5&output=150~0.5&rate=4&for=150s + plain?tenant=long&class=long-context&prompt=100000~0.3&output=300~0.5&rate=0.55&for=150s"},
	{"qos-priorities", "Three classes of users at once, of which the lowest may be shed.",
		"groups?tenant=premium&priority=10&groups=30&prefix=1000&own=5000~0.5&output=200~0.5&rate=6&for=90s + groups?tenant=standard&groups=30&prefix=1000&own=5000~0.5&output=200~0.5&rate=9&for=90s + " +
			"groups?tenant=best-effort&priority=-10&groups=30&prefix=1000&own=5000~0.5&output=200~0.5&rate=16&for=90s"},
	{"qos-batch", "People who chat beside jobs that may be shed.",
		"chat?tenant=people&rate=8&for=110s + batch?tenant=jobs&items=60~0.5&own=5000~0.5&output=400~0.5&rate=17&for=110s"},
	{"qos-heavy", "One tenant sends seven tenths of more than there is room for, three a tenth each.",
		"tenants?shares=0.7,0.1,0.1,0.1&of=chat&apps=20&system=500&turns=3~0.7&first=4000~0.8&question=1500~1&output=300~0.7&think=10s~0.9&rate=17&for=110s"},
	{"qos-agents", "Agents that send out many others beside people who chat.",
		"agents?tenant=agents&kinds=4&system=4000&turns=20~0.7&tool=1200~1&spawn=0.1&fan=2-6&fork=0.5&rate=16&for=100s + chat?tenant=people&rate=5&for=100s"},
	{"qos-crawler", "A client with 300 calls open at any time beside people who chat.",
		"plain?tenant=crawler&class=crawler&users=300&prompt=8000~0.5&output=60~0.5&requests=1700&for=2m + chat?tenant=people&rate=7&for=2m"},
	{"qos-many", "Fifty tenants of very different size, who together ask for more than there is.",
		"tenants?tenants=50&skew=1&of=groups&groups=3&prefix=1500&own=5000~0.6&output=150~0.5&rate=22&for=110s"},
}

// Suite is a list of workloads that are tried together.
type Suite struct {
	Doc string
	// Workloads are specs for [Parse].
	Workloads []string
	// Compare are the policies that it is a benchmark of, with so many seeds and for so long. Where there are none, whoever
	// plays it says.
	Compare  []string
	Seeds    int
	Duration time.Duration
}

// Suites are those that there are, by name.
var Suites = map[string]Suite{
	"routing": {Doc: "to judge where requests go",
		Workloads: []string{"shared-prefix", "conversations", "coding-agents", "tool-agents", "retrieval", "long-documents", "adapters", "no-reuse", "bursts", "mixed"}},
	"qos": {Doc: "to judge what tenants do to one another",
		Workloads: []string{"qos-aggressor", "qos-idle-burst", "qos-long-neighbour", "qos-priorities", "qos-batch", "qos-heavy", "qos-agents", "qos-crawler", "qos-many"},
		Compare:   []string{"penstock-default", "penstock-default+fcfs", "penstock-default+vtc-cached", "penstock-default+dlpm"}, Seeds: 3, Duration: 75 * time.Second},
}
