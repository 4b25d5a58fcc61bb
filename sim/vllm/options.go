// SPDX-License-Identifier: Apache-2.0

package vllm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/sim/engine"
)

// Options say what a simulated engine serves and how fast. [DefaultOptions] is where to start from.
type Options struct {
	// Host and Port are where [Command] listens. Port 0 takes a free one.
	Host string
	Port int
	// Models are the names under which the model is served; the first one is written in answers and
	// metrics.
	Models []string
	// MaxModelLen is the context length in tokens: prompt plus answer.
	MaxModelLen int
	// EnableLoRA allows adapters, at most MaxLoRAs different ones in one batch. LoRAModules are
	// loaded from the start.
	EnableLoRA  bool
	MaxLoRAs    int
	LoRAModules []Adapter
	// Seed changes what is said, not how long it takes.
	Seed uint64
	// Speed divides every time of the engine: 2 is an engine twice as fast.
	Speed float64
	// PageBytes is the least size of the metrics page. Real pages have about 50 KB; those of engines
	// with many options have more.
	PageBytes int
	// ShutdownSeconds is how long running answers may take to end after [Command] was told to stop.
	ShutdownSeconds int
	// Events is how the changes of the KV cache are published; not at all by default, as with vLLM.
	Events Events
	// Engine is the size and the speed of the engine. MaxLoRAs and Events above override its own.
	Engine engine.Config
}

// Adapter is a LoRA adapter: a name by which it is asked for, and where it came from.
type Adapter struct {
	Name, Path string
}

// DefaultOptions serve one model, "sim", at the speed of [engine.Default].
func DefaultOptions() Options {
	return Options{
		Host:        "127.0.0.1",
		Port:        8000,
		Models:      []string{"sim"},
		MaxModelLen: 32768,
		MaxLoRAs:    1,
		Speed:       1,
		Events:      usualEvents(),
		Engine:      engine.Default(),
	}
}

// Flags adds the options to a flag set; their present values are the defaults. Names are vLLM's where
// vLLM has the option.
func (o *Options) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Host, "host", o.Host, "address to listen on")
	fs.IntVar(&o.Port, "port", o.Port, "port to listen on; 0 takes a free one")
	fs.StringSliceVar(&o.Models, "served-model-name", o.Models, "name of the model; several are aliases")
	fs.IntVar(&o.Engine.MaxNumSeqs, "max-num-seqs", o.Engine.MaxNumSeqs, "largest number of sequences in a batch")
	fs.IntVar(&o.Engine.MaxNumBatchedTokens, "max-num-batched-tokens", o.Engine.MaxNumBatchedTokens, "largest number of tokens computed in one step")
	fs.IntVar(&o.MaxModelLen, "max-model-len", o.MaxModelLen, "context length in tokens")
	fs.IntVar(&o.Engine.BlockSize, "block-size", o.Engine.BlockSize, "tokens in a KV-cache block")
	fs.IntVar(&o.Engine.NumBlocks, "num-gpu-blocks-override", o.Engine.NumBlocks, "number of KV-cache blocks")
	fs.BoolVar(&o.EnableLoRA, "enable-lora", o.EnableLoRA, "allow LoRA adapters, and loading them at run time")
	fs.IntVar(&o.MaxLoRAs, "max-loras", o.MaxLoRAs, "largest number of different adapters in a batch")
	fs.Var((*adapterList)(&o.LoRAModules), "lora-modules", "adapter to load, as name=path; may be repeated")
	fs.BoolVar(&o.Engine.NoPrefixCaching, "no-enable-prefix-caching", o.Engine.NoPrefixCaching, "never reuse computed blocks")
	fs.Var((*eventsFlag)(&o.Events), "kv-events-config", "where to publish changes of the KV cache, as vLLM's JSON: "+
		`{"enable_kv_cache_events":true,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv@POD@MODEL"}`)
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "changes what is said")
	fs.IntVar(&o.ShutdownSeconds, "shutdown-timeout", o.ShutdownSeconds, "seconds that running answers may take after a stop")

	fs.Float64Var(&o.Speed, "speed", o.Speed, "makes everything this many times as fast")
	fs.DurationVar(&o.Engine.Timing.Base, "step-base", o.Engine.Timing.Base, "time of a step whatever is in it")
	fs.DurationVar(&o.Engine.Timing.PerPrefillToken, "prefill-token-time", o.Engine.Timing.PerPrefillToken, "time of each prompt token computed")
	fs.DurationVar(&o.Engine.Timing.PerSeq, "seq-time", o.Engine.Timing.PerSeq, "time of each sequence in the batch, per step")
	fs.DurationVar(&o.Engine.Timing.PerKVToken, "kv-token-time", o.Engine.Timing.PerKVToken, "time of each token of context, per step")
	fs.IntVar(&o.PageBytes, "metrics-page-bytes", o.PageBytes, "least size of the metrics page, filled up with histograms of no meaning")
}

// Validate reports options that contradict each other, all of them at once.
func (o *Options) Validate() error {
	var errs []error
	if len(o.Models) == 0 || o.Models[0] == "" {
		errs = append(errs, errors.New("served-model-name: must not be empty"))
	}
	if o.MaxModelLen <= 1 {
		errs = append(errs, fmt.Errorf("max-model-len: must be above 1, is %d", o.MaxModelLen))
	}
	if c := o.Engine.NumBlocks * o.Engine.BlockSize; c < o.MaxModelLen {
		errs = append(errs, fmt.Errorf("max-model-len: %d tokens do not fit into a KV cache of %d (num-gpu-blocks-override × block-size)", o.MaxModelLen, c))
	}
	if !(o.Speed > 0) {
		errs = append(errs, fmt.Errorf("speed: must be above 0, is %v", o.Speed))
	}
	if o.EnableLoRA && o.MaxLoRAs < 1 {
		errs = append(errs, fmt.Errorf("max-loras: must be above 0, is %d", o.MaxLoRAs))
	}
	if !o.EnableLoRA && len(o.LoRAModules) > 0 {
		errs = append(errs, errors.New("lora-modules: needs enable-lora"))
	}
	if o.Port < 0 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("port: must be 0 to 65535, is %d", o.Port))
	}
	return errors.Join(append(errs, o.Events.Validate(), o.Engine.Validate())...)
}

// adapterList is a flag of name=path.
type adapterList []Adapter

func (l *adapterList) String() string {
	var parts []string
	for _, a := range *l {
		parts = append(parts, a.Name+"="+a.Path)
	}
	return strings.Join(parts, ",")
}

func (l *adapterList) Type() string { return "name=path" }

func (l *adapterList) Set(v string) error {
	for _, part := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, path, ok := strings.Cut(part, "=")
		if !ok || name == "" || path == "" {
			return fmt.Errorf("%q is not name=path", part)
		}
		*l = append(*l, Adapter{name, path})
	}
	return nil
}
