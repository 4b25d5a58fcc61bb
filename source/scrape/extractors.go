// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/fleet"
	"github.com/penstock-project/penstock/plugin"
)

// Types of the extractors, as metrics and configurations have them.
const (
	MetricsExtractor      = "core-metrics-extractor"
	MulticlusterExtractor = "multicluster-metrics-extractor"
	ModelsExtractor       = "models-data-extractor"
	GPUExtractor          = "dcgm-extractor"
)

// Names of the attributes that extractors find, beside those that configurations name.
const (
	GPUUtilization       = "GPUUtilization"
	MulticlusterQueue    = "llm-d.ai/multicluster-queue-size"
	MulticlusterKVUsage  = "llm-d.ai/multicluster-kv-cache-utilization"
	engineLabel          = "llm-d.ai/engine-type"
	engineLabelBefore    = "inference.networking.k8s.io/engine-type"
	maxEngines           = 32
	maxCustom            = 64
	metricOfGPU          = "DCGM_FI_DEV_GPU_UTIL"
	metricOfClusterKV    = "llm_d_epp_average_kv_cache_utilization"
	metricOfClusterQueue = "llm_d_epp_average_queue_size"
)

// Extractor finds signals in what a source brings.
type Extractor interface{ reads() reads }

// reads is what an extractor looks for.
type reads struct {
	// models tells that it reads a list of models, and not a page.
	models bool
	// by tells the engine of an endpoint, nil for the same rows for all.
	by func(*fleet.Endpoint) string
	// rows are what it reads, by engine; those of "" are for all others.
	rows map[string][]Row
}

// Extractors are the extractors by type name.
var Extractors = plugin.Set[Extractor]{
	MetricsExtractor: func() Extractor { return &CoreMetricsExtractor{EngineLabelKey: engineLabel} },
	MulticlusterExtractor: func() Extractor {
		return &MulticlusterMetricsExtractor{KVCacheUtilizationMetric: Spec{Family: metricOfClusterKV}, QueueSizeMetric: Spec{Family: metricOfClusterQueue}}
	},
	ModelsExtractor: func() Extractor { return &ModelsDataExtractor{} },
	GPUExtractor:    func() Extractor { return &DCGMExtractor{} },
}

// CoreMetricsExtractor takes queue, KV cache and LoRA signals out of an engine's metrics.
//
// An endpoint whose label names an engine is read by that engine's names. Any other is read by the
// names of all engines at once, so that engines are told apart without labels; write defaultEngine to
// read it by one engine's alone. Series of several engines, ranks or models on a page make one value:
// requests and blocks are summed, of the use of the KV cache the largest share counts. Where a
// page has both the new and the old name of a metric, the new one counts. A value that cannot be (a
// share above 1) counts as unknown and is shown in /debug/fleet. Histograms are not read.
type CoreMetricsExtractor struct {
	// EngineLabelKey is the label of an endpoint that names its engine: vllm, sglang, trtllm-serve,
	// triton-tensorrt-llm, triton, or one of engineConfigs. Endpoints without it are looked at
	// for inference.networking.k8s.io/engine-type.
	EngineLabelKey string `json:"engineLabelKey"`
	// DefaultEngine is the engine of endpoints whose label names none that is known. Without it, they
	// are recognised by the names on their pages.
	DefaultEngine string `json:"defaultEngine"`
	// EngineConfigs are further engines, or other names for a known one, whose own they replace.
	EngineConfigs []EngineConfig `json:"engineConfigs"`
}

// EngineConfig tells under which names an engine has what is read. A metric is written name or
// name{label=value,…}; one that is left out, or empty, is not read.
type EngineConfig struct {
	// Name is what labels call the engine.
	Name string `json:"name"`
	// QueuedRequestsSpec is the metric of requests that wait.
	QueuedRequestsSpec Spec `json:"queuedRequestsSpec"`
	// RunningRequestsSpec is the metric of requests that run; one that counts up for ever is of no use.
	RunningRequestsSpec Spec `json:"runningRequestsSpec"`
	// KVUsageSpec is the metric of the used share of the KV cache, 0 to 1.
	KVUsageSpec Spec `json:"kvUsageSpec"`
	// LoRASpec is the metric with labels running_lora_adapters, waiting_lora_adapters and max_lora; the
	// series with the largest value is the newest.
	LoRASpec Spec `json:"loraSpec"`
	// CacheInfoSpec is the metric whose labels tell of the KV cache's blocks.
	CacheInfoSpec Spec `json:"cacheInfoSpec"`
	// CacheBlockSizeLabelName is the label of cacheInfoSpec with a block's tokens, block_size when
	// it is left out.
	CacheBlockSizeLabelName string `json:"cacheBlockSizeLabelName"`
	// CacheNumBlocksLabelName is the label of cacheInfoSpec with the number of blocks, num_gpu_blocks
	// when it is left out.
	CacheNumBlocksLabelName string `json:"cacheNumBlocksLabelName"`
	// CacheBlockSizeSpec is the metric of a block's tokens, where it is a value and no label.
	CacheBlockSizeSpec Spec `json:"cacheBlockSizeSpec"`
	// CacheNumBlocksSpec is the metric of the number of blocks, where it is a value and no label.
	CacheNumBlocksSpec Spec `json:"cacheNumBlocksSpec"`
	// CustomMetrics are metrics to keep as attributes.
	CustomMetrics []CustomMetric `json:"customMetrics"`
}

// CustomMetric is a metric that is kept as an attribute of the endpoint.
type CustomMetric struct {
	// AttributeKey is the attribute's name; its producer is core-metrics-extractor.
	AttributeKey string `json:"attributeKey"`
	// MetricSpec is the metric: name or name{label=value,…}.
	MetricSpec Spec `json:"metricSpec"`
	// Combine is how several series make one value: max, min, sum or mean; max when left out.
	Combine Combine `json:"combine"`
}

// Validate reports engines that are not clear.
func (x *CoreMetricsExtractor) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if x.EngineLabelKey == "" {
		fail("engineLabelKey: is empty: want the label that names an endpoint's engine, such as %s", engineLabel)
	}
	names := engineNames()
	if len(x.EngineConfigs) > maxEngines {
		fail("engineConfigs: %d are too many, at most %d", len(x.EngineConfigs), maxEngines)
	}
	customs := 0
	for i, c := range x.EngineConfigs {
		at := fmt.Sprintf("engineConfigs[%d]", i)
		switch {
		case c.Name == "":
			fail("%s.name: is missing: want what labels call the engine", at)
		case c.Name == "default":
			fail("%s.name: default is reserved: name the engine, and write its name as defaultEngine", at)
		case slices.ContainsFunc(x.EngineConfigs[:i], func(o EngineConfig) bool { return o.Name == c.Name }):
			fail("%s.name: two engines are named %s", at, c.Name)
		}
		names = append(names, c.Name)
		customs += len(c.CustomMetrics)
		errs = append(errs, c.problems(at)...)
	}
	if customs > maxCustom {
		fail("engineConfigs: %d customMetrics are too many, at most %d", customs, maxCustom)
	}
	if d := x.DefaultEngine; d != "" && !slices.Contains(names, d) {
		known := slices.Compact(slices.Sorted(slices.Values(names)))
		if near := plugin.Nearest(d, known); near != "" {
			fail("defaultEngine: unknown engine %q: did you mean %s?", d, near)
		} else {
			fail("defaultEngine: unknown engine %q: want one of %s", d, strings.Join(known, ", "))
		}
	}
	return errors.Join(errs...)
}

func (c *EngineConfig) problems(at string) (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(at+format, args...)) }
	if c.CacheInfoSpec.Family == "" && c.CacheBlockSizeLabelName+c.CacheNumBlocksLabelName != "" {
		fail(".cacheInfoSpec: is missing: the label names are those of its series")
	}
	for i, m := range c.CustomMetrics {
		if m.AttributeKey == "" {
			fail(".customMetrics[%d].attributeKey: is missing: want a name for the value", i)
		}
		if m.MetricSpec.Family == "" {
			fail(".customMetrics[%d].metricSpec: is missing: %s", i, wantSpec)
		}
		switch m.Combine {
		case "", Largest, Smallest, Sum, Mean:
		default:
			fail(".customMetrics[%d].combine: want max, min, sum or mean, got %q", i, string(m.Combine))
		}
		for _, o := range c.CustomMetrics[:i] {
			if o.AttributeKey == m.AttributeKey && m.AttributeKey != "" {
				fail(".customMetrics[%d].attributeKey: %s stands there twice", i, m.AttributeKey)
			}
		}
	}
	return errs
}

// engineNames are the engines that are known by themselves.
func engineNames() []string {
	var names []string
	for _, r := range Engines {
		if !slices.Contains(names, r.Engine) {
			names = append(names, r.Engine)
		}
	}
	return names
}

func (x *CoreMetricsExtractor) reads() reads {
	r := reads{rows: map[string][]Row{}}
	var all []Row // the known engines' come first, then those that are written
	for _, row := range Engines {
		if !slices.ContainsFunc(x.EngineConfigs, func(c EngineConfig) bool { return c.Name == row.Engine }) {
			r.rows[row.Engine] = append(r.rows[row.Engine], row)
			all = append(all, row)
		}
	}
	for _, c := range x.EngineConfigs {
		r.rows[c.Name] = c.rows()
		all = append(all, r.rows[c.Name]...)
	}
	r.rows[""] = all
	if x.DefaultEngine != "" {
		r.rows[""] = r.rows[x.DefaultEngine]
	}
	r.by = func(ep *fleet.Endpoint) string {
		if e := ep.Labels[x.EngineLabelKey]; e != "" {
			return e
		}
		return ep.Labels[engineLabelBefore]
	}
	return r
}

// rows are what is read of an engine.
func (c *EngineConfig) rows() []Row {
	var rows []Row
	add := func(s Spec, r Row) {
		if s.Family != "" {
			r.Engine, r.Family, r.Where = c.Name, s.Family, s.Where
			rows = append(rows, r)
		}
	}
	add(c.QueuedRequestsSpec, Row{Field: Waiting})
	add(c.RunningRequestsSpec, Row{Field: Running})
	add(c.KVUsageSpec, Row{Field: KVUsage})
	add(c.LoRASpec, Row{Field: LoRA})
	info := Row{Field: CacheInfo, Size: c.CacheBlockSizeLabelName, Count: c.CacheNumBlocksLabelName}
	if info.Size == "" {
		info.Size = "block_size"
	}
	if info.Count == "" {
		info.Count = "num_gpu_blocks"
	}
	add(c.CacheInfoSpec, info)
	add(c.CacheBlockSizeSpec, Row{Field: BlockSize})
	add(c.CacheNumBlocksSpec, Row{Field: NumBlocks})
	for _, m := range c.CustomMetrics {
		by := m.Combine
		if by == "" {
			by = Largest
		}
		add(m.MetricSpec, Row{Field: Extra, Extra: &ExtraRow{
			Name: m.AttributeKey, Producer: MetricsExtractor, Combine: by, Min: -math.MaxFloat64, Max: math.MaxFloat64, Scale: 1,
		}})
	}
	return rows
}

// MulticlusterMetricsExtractor takes a cluster's averages out of the metrics of its gateway.
//
// They become the attributes llm-d.ai/multicluster-queue-size and
// llm-d.ai/multicluster-kv-cache-utilization. Of several pools on a page the largest average counts;
// a label in the metric chooses one, as in llm_d_epp_average_queue_size{name=llama}.
type MulticlusterMetricsExtractor struct {
	// KVCacheUtilizationMetric is the metric of the mean use of KV caches, 0 to 1.
	KVCacheUtilizationMetric Spec `json:"kvCacheUtilizationMetric"`
	// QueueSizeMetric is the metric of the mean length of engine queues.
	QueueSizeMetric Spec `json:"queueSizeMetric"`
}

// Validate reports that nothing would be read.
func (x *MulticlusterMetricsExtractor) Validate() error {
	if x.KVCacheUtilizationMetric.Family == "" && x.QueueSizeMetric.Family == "" {
		return errors.New("queueSizeMetric: is empty, as is kvCacheUtilizationMetric: want one of them")
	}
	return nil
}

func (x *MulticlusterMetricsExtractor) reads() reads {
	var rows []Row
	for _, a := range []struct {
		spec Spec
		name string
		most float64
	}{{x.QueueSizeMetric, MulticlusterQueue, math.MaxFloat64}, {x.KVCacheUtilizationMetric, MulticlusterKVUsage, 1}} {
		if a.spec.Family != "" {
			rows = append(rows, Row{Family: a.spec.Family, Where: a.spec.Where, Field: Extra,
				Extra: &ExtraRow{Name: a.name, Combine: Largest, Max: a.most, Scale: 1}})
		}
	}
	return reads{rows: map[string][]Row{"": rows}}
}

// ModelsDataExtractor takes the names of models, adapters among them, out of /v1/models. It takes no parameters.
type ModelsDataExtractor struct{}

func (*ModelsDataExtractor) reads() reads { return reads{models: true} }

// DCGMExtractor takes GPU utilization out of DCGM's metrics. It takes no parameters.
//
// It becomes the attribute GPUUtilization, 0 to 1: the most of DCGM_FI_DEV_GPU_UTIL over the series whose
// label pod is the endpoint's pod, or its name where that is not known, or is missing.
type DCGMExtractor struct{}

func (*DCGMExtractor) reads() reads {
	return reads{rows: map[string][]Row{"": {{
		Family: metricOfGPU, Field: Extra, Where: []Where{{Label: "pod", Self: true}},
		Extra: &ExtraRow{Name: GPUUtilization, Producer: GPUExtractor, Combine: Largest, Max: 100, Scale: 0.01},
	}}}}
}
