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
	LoRA                   // adapters, as labels of the newest series
	CacheInfo              // block size and number of blocks, as labels
)

// Row says that a field is read from a family of metrics.
type Row struct {
	Engine string
	Family string
	Field  Field
	// Label and Value, when set, choose among the family's series.
	Label, Value string
	// Size and Count are the labels of CacheInfo.
	Size, Count string
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

	{Engine: "sglang", Family: "sglang:num_queue_reqs", Field: Waiting},
	{Engine: "sglang", Family: "sglang:num_running_reqs", Field: Running},
	{Engine: "sglang", Family: "sglang:token_usage", Field: KVUsage},
	{Engine: "sglang", Family: "sglang:cache_config_info", Field: CacheInfo, Size: "page_size", Count: "num_pages"},

	{Engine: "trtllm-serve", Family: "trtllm_num_requests_waiting", Field: Waiting},
	{Engine: "trtllm-serve", Family: "trtllm_num_requests_running", Field: Running},
	{Engine: "trtllm-serve", Family: "trtllm_kv_cache_utilization", Field: KVUsage},
	{Engine: "trtllm-serve", Family: "trtllm_kv_cache_tokens_per_block", Field: BlockSize},
	{Engine: "trtllm-serve", Family: "trtllm_kv_cache_max_blocks", Field: NumBlocks},

	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_request_metrics", Label: "request_type", Value: "waiting", Field: Waiting},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_request_metrics", Label: "request_type", Value: "scheduled", Field: Running},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Value: "fraction", Field: KVUsage},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Value: "tokens_per", Field: BlockSize},
	{Engine: "triton-tensorrt-llm", Family: "nv_trt_llm_kv_cache_block_metrics", Label: "kv_cache_block_type", Value: "max", Field: NumBlocks},

	// What the field reads as "running" here, nv_inference_exec_count, counts up for ever; it is left out.
	{Engine: "triton", Family: "nv_inference_pending_request_count", Field: Waiting},
}

// Mapping is a table of rows, made ready for [Scan]. It is never changed.
type Mapping struct {
	rows []Row
	// A line can match the rows whose bits are set in both masks, taken at its first byte and at
	// the byte at offset.
	first, later [256]uint64
	offset       int
}

// NewMapping makes a mapping of at most 64 rows, earlier ones preferred.
func NewMapping(rows ...Row) (*Mapping, error) {
	if len(rows) > 64 {
		return nil, fmt.Errorf("%d rows, at most 64 are possible", len(rows))
	}
	m := &Mapping{rows: slices.Clone(rows), offset: 5} // after "vllm:"
	for _, r := range rows {
		if r.Family == "" {
			return nil, fmt.Errorf("a row for %q names no family", r.Engine)
		}
		m.offset = min(m.offset, len(r.Family)-1)
	}
	for i, r := range rows {
		m.first[r.Family[0]] |= 1 << i
		m.later[r.Family[m.offset]] |= 1 << i
	}
	return m, nil
}

// Default maps all of [Engines].
var Default = func() *Mapping {
	m, err := NewMapping(Engines...)
	if err != nil {
		panic(err)
	}
	return m
}()
