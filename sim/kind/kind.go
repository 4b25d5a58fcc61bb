// SPDX-License-Identifier: Apache-2.0

// Package kind answers: which engines are there, and how fast are they?
//
// A kind is a model on so many accelerators of one sort. Its constants are worked out from what the makers say of both,
// by a few shares that measurements gave: see [Kind.Engine]. They are as good as that: a fleet of one's own is better
// described by constants that were fitted to it.
package kind

import (
	"fmt"
	"time"

	"github.com/penstock-project/penstock/sim/engine"
)

// Accelerator is a sort of accelerator, by its data sheet.
type Accelerator struct {
	Name string
	// Memory is in GB of 1e9 bytes, Bandwidth in TB/s, Compute in dense TFLOP/s of BF16.
	Memory, Bandwidth, Compute float64
	Source                     string
}

// Accelerators are those that kinds are made of. Makers sell some of them with other memory, too.
var Accelerators = []Accelerator{
	{"H100", 80, 3.35, 989, "NVIDIA H100 data sheet, SXM5: 80 GB HBM3, 3.35 TB/s, 989 TFLOP/s BF16 dense"},
	{"H200", 141, 4.8, 989, "NVIDIA H200 data sheet, SXM: 141 GB HBM3e, 4.8 TB/s, 989 TFLOP/s BF16 dense"},
	{"B200", 180, 7.7, 2250, "NVIDIA DGX B200 data sheet, per GPU: 180 GB HBM3e, 7.7 TB/s, 2,250 TFLOP/s BF16 dense"},
	{"A100", 80, 2.039, 312, "NVIDIA A100 data sheet, 80 GB SXM: 2,039 GB/s, 312 TFLOP/s BF16 dense"},
	{"L40S", 48, 0.864, 362, "NVIDIA L40S data sheet: 48 GB GDDR6, 864 GB/s, 362 TFLOP/s BF16 dense"},
	{"L4", 24, 0.3, 121, "NVIDIA L4 data sheet: 24 GB GDDR6, 300 GB/s, 121 TFLOP/s BF16 dense"},
}

// batch is the most sequences in a step and the most tokens computed in it: vLLM 0.32's defaults for max-num-seqs and
// max-num-batched-tokens of a server, by the memory of the accelerator, and fewer on an A100 whatever it has.
func (a *Accelerator) batch() (seqs, tokens int) {
	const gib = float64(1<<30) / 1e9
	switch {
	case a.Memory >= 160*gib:
		return 1024, 16384
	case a.Memory >= 70*gib && a.Name != "A100":
		return 1024, 8192
	}
	return 256, 2048
}

// Model is a dense transformer, by the config.json it is published with; weights and KV cache are in BF16.
type Model struct {
	Name string
	// Params are in units of 1e9; Hidden is the width, as heads × size of a head.
	Params                            float64
	Layers, Hidden, KVHeads, HeadSize int
	Source                            string
}

// Models are those that kinds are made of.
var Models = []Model{
	{"70B", 70.6, 80, 8192, 8, 128, "Llama-3.1-70B config.json: 80 layers, 64 heads of 128, 8 KV heads; 70.6e9 parameters"},
	{"32B", 32.8, 64, 8192, 8, 128, "Qwen3-32B config.json: 64 layers, 64 heads of 128, 8 KV heads; 32.8e9 parameters"},
	{"8B", 8.03, 32, 4096, 8, 128, "Llama-3.1-8B config.json: 32 layers, 32 heads of 128, 8 KV heads; 8.03e9 parameters"},
}

// What measurements gave. With them a 32B model on two H100 prefills 18,000 tokens a second, where llm-d measured 20,480 at
// the peak (Qwen3-32B TP2 on H100, blog of August 2026), and takes 15 ms for a step.
const (
	computeShare   = 0.6                     // of the peak, in prefill of long prompts
	bandwidthShare = 0.8                     // of the peak, where weights or a KV cache are read
	memoryShare    = 0.9                     // vLLM's default of --gpu-memory-utilization
	reserved       = 3e9                     // bytes on each accelerator for activations and graphs, as vLLM's start-up profile finds
	launch         = 2500 * time.Microsecond // of a step outside the accelerator: scheduling, launches, sampling (vLLM V1)
	perSequence    = 16 * time.Microsecond   // of a step and sequence: its row in the batch, sampling, detokenizing (vLLM V1)
)

// Shares says the constants above to people, with where they are from.
var Shares = []string{
	"prefill uses 60 % of the peak, reads 80 % of the bandwidth: 32B on two H100 then prefills 18,000 tokens/s, of 20,480 that llm-d measured at the peak",
	"KV cache: 90 % of the memory (vLLM's default) less weights and 3 GB each for activations and graphs",
	"blocks have 64 tokens: llm-d's guides run vLLM with --block-size=64, whose own default is 16",
	"a batch has as many sequences and new tokens at most as vLLM 0.32 allows by default when it serves (vllm/engine/arg_utils.py)",
	"a step costs 2.5 ms beside the accelerator's work, and 16 µs for each sequence (vLLM V1)",
}

// Kind is a kind of engine.
type Kind struct {
	Name   string
	Doc    string
	Config engine.Config
	// Sources tell where its constants are from.
	Sources []string
}

// Default is the kind of a fleet that only says how many endpoints it has. Its cache holds prompts of 400,000 tokens.
const Default = "H100-70B-TP4"

// Kinds are those that have a name.
var Kinds = []Kind{
	on("H100", 4, "70B"), on("H200", 4, "70B"), on("B200", 2, "70B"), on("A100", 4, "70B"), on("H200", 2, "70B"),
	on("H100", 2, "32B"), on("A100", 2, "32B"), on("L40S", 4, "32B"),
	on("H100", 1, "8B"), on("A100", 1, "8B"), on("L40S", 1, "8B"), on("L4", 1, "8B"),
	{Name: "laptop", Doc: "what penstock dev and penstock sim engine pretend to be", Config: engine.Default(), Sources: []string{"chosen to feel quick on a laptop"}},
	{Name: "cpu-tiny", Doc: "a model of 125M on a few CPU cores, with little room", Config: engine.Config{
		BlockSize: 16, NumBlocks: 2048, MaxNumSeqs: 64, MaxNumBatchedTokens: 2048,
		Timing: engine.Timing{Base: 12 * time.Millisecond, PerPrefillToken: 400 * time.Microsecond, PerSeq: time.Millisecond, PerKVToken: 500 * time.Nanosecond},
	}, Sources: []string{"vLLM's CPU backend with OPT-125M on four cores, rounded"}},
}

// on is the kind of a model on n accelerators.
func on(accelerator string, n int, model string) Kind {
	var a Accelerator
	var m Model
	for _, x := range Accelerators {
		if x.Name == accelerator {
			a = x
		}
	}
	for _, x := range Models {
		if x.Name == model {
			m = x
		}
	}
	k := Kind{Name: fmt.Sprintf("%s-%s", a.Name, m.Name), Doc: fmt.Sprintf("a model of %s on one %s", m.Name, a.Name), Sources: []string{a.Source, m.Source}}
	if n > 1 {
		k.Name += fmt.Sprintf("-TP%d", n)
		k.Doc = fmt.Sprintf("a model of %s on %d %s", m.Name, n, a.Name)
	}
	k.Config = m.on(a, float64(n))
	return k
}

// on works out the constants of a model on n accelerators:
//
//	step  = launch + weights / bandwidth
//	token = 2 · parameters / compute, prompt and decode alike
//	KV    = 2 · layers · KV heads · head size · 2 bytes / bandwidth, for each token of context
//	pair  = 4 · layers · hidden / compute, for each prompt token and token before it
func (m Model) on(a Accelerator, n float64) engine.Config {
	const block = 64 // as llm-d's guides run vLLM
	seqs, tokens := a.batch()
	weights := m.Params * 1e9 * 2
	kv := float64(2 * m.Layers * m.KVHeads * m.HeadSize * 2)
	compute, bandwidth := n*a.Compute*1e12*computeShare, n*a.Bandwidth*1e12*bandwidthShare
	room := n*(a.Memory*1e9*memoryShare-reserved) - weights
	seconds := func(s float64) time.Duration { return time.Duration(s * 1e9) }
	token := seconds(2 * m.Params * 1e9 / compute)
	return engine.Config{
		BlockSize: block, NumBlocks: int(room / kv / block), MaxNumSeqs: seqs, MaxNumBatchedTokens: tokens,
		Timing: engine.Timing{
			Base: (launch + seconds(weights/bandwidth)).Round(10 * time.Microsecond), PerPrefillToken: token,
			PerSeq: perSequence + token, PerKVToken: seconds(kv / bandwidth),
			PerMPairs: seconds(4 * float64(m.Layers*m.Hidden) / compute * 1e6),
		},
	}
}
