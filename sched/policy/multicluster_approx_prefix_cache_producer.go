// SPDX-License-Identifier: Apache-2.0

package policy

// MulticlusterApproxPrefixCacheProducer remembers which prompts were sent to which cluster. It is
// approx-prefix-cache-producer among clusters.
type MulticlusterApproxPrefixCacheProducer struct {
	ApproxPrefixCacheProducer
}

// multiclusterApprox is whom multicluster scorers read when they name nobody.
const multiclusterApprox = "multicluster-approx-prefix-cache-producer"
