// SPDX-License-Identifier: Apache-2.0

package plugin

// own are the plugin types that only Penstock has: its own ideas, and the policies of other routers by its own hand.
var own = []Entry{
	entry("priced-miss-scorer", Ours, "Prefers the endpoint where the request costs least, with a price on cache misses.", Scorer).reads(prefix),
	entry("least-latency-scorer", Ours, "Prefers endpoints that began their answers soonest lately.", Scorer),
	entry("chwbl-scorer", Ours, "Sends what has the same key to the same endpoint as long as its load allows.", Scorer).reads(prefix),
	entry("sglang-cache-aware-scorer", Ours, "Decides as SGLang's cache_aware policy does.", Scorer).reads(prefix),
	entry("dynamo-scorer", Ours, "Decides by the cost of NVIDIA Dynamo's KV router.", Scorer).reads(prefix),
	entry("lmetric-scorer", Ours, "Decides by LMetric's product of uncached tokens and batch size.", Scorer).reads(prefix),
	entry("aibrix-prefix-cache-scorer", Ours, "Decides as AIBrix' strategy prefix-cache does.", Scorer).reads(prefix),
	entry("preble-scorer", Ours, "Decides by Preble's exploitation and exploration.", Scorer).reads(prefix),

	entry("power-of-two-picker", Ours, "Draws two candidates by chance and takes the better total.", Picker),
	entry("round-robin-picker", Ours, "Takes the candidates in turn, whatever their totals.", Picker),
	entry("softmax-picker", Ours, "Draws a candidate with odds that grow exponentially with the totals.", Picker),

	entry("vtc-fairness-policy", Ours, "Serves the tenant that was charged least for its work, by virtual token counters.", Fairness),
	entry("dlpm-fairness-policy", Ours, "Serves tenants by their work, and within a slack those first whose prompts are cached.", Fairness),
	entry("least-uncached-first-ordering-policy", Ours, "Serves the request that brings least uncached work of the oldest ones in a flow.", Ordering),
	entry("adaptive-detector", Ours, "Learns from its answers how much each endpoint takes.", Detector),
}
