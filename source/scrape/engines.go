// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"slices"
)

// Field is what a row of a [Mapping] is read for.
type Field uint8

// The fields of a page.
const (
	Waiting   Field = iota // requests that wait; series are summed
	Running                // requests that run; series are summed
	KVUsage                // used share of the KV cache; the largest series counts
	BlockSize              // tokens of a KV block, as a value; the largest counts
	NumBlocks              // KV blocks, as a value; series are summed
	Started                // when the process began, in seconds since 1970; the largest counts
	LoRA                   // adapters, as labels of the newest series by value
	CacheInfo              // block size and number of blocks, as labels
	Extra                  // an attribute, as Row.Extra says
)

// Combine is how several series of one family become one value.
type Combine string

// The ways.
const (
	Largest  Combine = "max"
	Smallest Combine = "min"
	Sum      Combine = "sum"
	Mean     Combine = "mean"
)

// Where chooses series by a label.
type Where struct {
	// Label and Value are as on the page, with its escapes.
	Label, Value string
	// Self asks, in place of Value, that the label be the endpoint's own pod, or missing.
	Self bool
}

// Row says that a field is read from a family of metrics.
type Row struct {
	// Engine is whose name the family is; empty for what tells nothing of the engine.
	Engine string
	Family string
	Field  Field
	// Where, when set, chooses among the family's series: all must hold.
	Where []Where
	// Size and Count are the labels of CacheInfo.
	Size, Count string
	// Extra, for that field, says which attribute it is.
	Extra *ExtraRow
}

// ExtraRow is an attribute that a row is read for.
type ExtraRow struct {
	Name, Producer string
	Combine        Combine
	// Min and Max bound the value on the page, which is then multiplied by Scale.
	Min, Max, Scale float64

	slot, owner int
}

// Engines are the names that engines give what we read, in order of preference: where a page
// has two families for one field, the earlier row wins.
var Engines = []Row{
	{Engine: "vllm", Family: "vllm:num_requests_waiting", Field: Waiting},
	{Engine: "vllm", Family: "vllm:num_requests_running", Field: Running},
	{Engine: "vllm", Family: "vllm:kv_cache_usage_perc", Field: KVUsage},
	{Engine: "vllm", Family: "vllm:gpu_cache_usage_perc", Field: KVUsage}, // before 0.10
	{Engine: "vllm", Family: "vllm:lora_requests_info", Field: LoRA},
	{Engine: "vllm", Family: "vllm:cache_config_info", Field: CacheInfo, Size: "block_size", Count: "num_gpu_blocks"},
	{Engine: "vllm", Family: "process_start_time_seconds", Field: Started},

	{Engine: "sglang", Family: "sglang:num_queue_reqs", Field: Waiting},
	{Engine: "sglang", Family: "sglang:num_running_reqs", Field: Running},
	{Engine: "sglang", Family: "sglang:token_usage", Field: KVUsage},
	{Engine: "sglang", Family: "sglang:cache_config_info", Field: CacheInfo, Size: "page_size", Count: "num_pages"},
	{Engine: "sglang", Family: "process_start_time_seconds", Field: Started},

	{Engine: "trtllm-serve", Family: "trtllm_num_requests_waiting", Field: Waiting},
	{Engine: "trtllm-serve", Family: "trtllm_num_requests_running", Field: Running},
	{Engine: "trtllm-serve", Family: "trtllm_kv_cache_utilization", Field: KVUsage},
	{Engine: "trtllm-serve", Family: "trtllm_kv_cache_tokens_per_block", Field: BlockSize},
	{Engine: "trtllm-serve", Family: "trtllm_kv_cache_max_blocks", Field: NumBlocks},

	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_request_metrics", Field: Waiting, Where: []Where{{Label: "request_type", Value: "waiting"}}},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_request_metrics", Field: Running, Where: []Where{{Label: "request_type", Value: "scheduled"}}},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_kv_cache_block_metrics", Field: KVUsage, Where: []Where{{Label: "kv_cache_block_type", Value: "fraction"}}},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_kv_cache_block_metrics", Field: BlockSize, Where: []Where{{Label: "kv_cache_block_type", Value: "tokens_per"}}},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_kv_cache_block_metrics", Field: NumBlocks, Where: []Where{{Label: "kv_cache_block_type", Value: "max"}}},

	// What the field reads as "running" here, nv_inference_exec_count, counts up for ever; it is left out.
	{Engine: "triton", Family: "nv_inference_pending_request_count", Field: Waiting},
}

// Mapping is a table of rows, made ready for [Scan]. It is never changed.
type Mapping struct {
	blocks []block
	// extras are the attributes that rows are read for, each once.
	extras []*ExtraRow
}

// block holds at most 64 rows.
type block struct {
	rows []Row
	rank int // of its first row
	// A line can match the rows whose bits are set in both masks, taken at its first byte and at
	// the byte at offset.
	first, later [256]uint64
	offset       int
}

// maxRows bounds a mapping; an engine has some seven rows.
const maxRows = 1024

// NewMapping makes a mapping, earlier rows preferred. Two rows with an attribute of the same name
// and producer are for one attribute.
//
// What is not for an attribute should come first: rows with short names weaken the look-up of
// those in their block, and so a new block begins with the first attribute.
func NewMapping(rows ...Row) (*Mapping, error) {
	if len(rows) > maxRows {
		return nil, fmt.Errorf("%d metric names, at most %d are possible", len(rows), maxRows)
	}
	m := &Mapping{}
	var b *block
	for i, r := range rows {
		if r.Family == "" {
			return nil, fmt.Errorf("a row for %q names no family", r.Engine)
		}
		if b == nil || len(b.rows) == 64 || (r.Field == Extra) != (b.rows[0].Field == Extra) {
			m.blocks = append(m.blocks, block{rank: i, offset: 5}) // after "vllm:"
			b = &m.blocks[len(m.blocks)-1]
		}
		if r.Field == Extra {
			r.Extra = m.extra(*r.Extra)
		}
		b.rows = append(b.rows, r)
		b.offset = min(b.offset, len(r.Family)-1)
	}
	for i := range m.blocks {
		b := &m.blocks[i]
		for k, r := range b.rows {
			b.first[r.Family[0]] |= 1 << k
			b.later[r.Family[b.offset]] |= 1 << k
		}
	}
	return m, nil
}

// extra gives an attribute its slot.
func (m *Mapping) extra(e ExtraRow) *ExtraRow {
	e.slot = slices.IndexFunc(m.extras, func(o *ExtraRow) bool { return o.Name == e.Name && o.Producer == e.Producer })
	if e.slot < 0 {
		e.slot = len(m.extras)
		m.extras = append(m.extras, &e)
	}
	return &e
}

// Default maps all of [Engines].
var Default = func() *Mapping {
	m, err := NewMapping(Engines...)
	if err != nil {
		panic(err)
	}
	return m
}()
