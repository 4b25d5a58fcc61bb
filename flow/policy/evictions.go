// SPDX-License-Identifier: Apache-2.0

package policy

// SheddableEvictionFilter lets only requests of negative priority be taken back once they run. With
// enableEviction that is always so, whether or not it is declared. It takes no parameters.
type SheddableEvictionFilter struct{}

// PriorityThenTimeEvictionOrderPolicy takes back those of the lowest priority first, and of these the one that
// went last, which has the least work to lose. With enableEviction that is always so, whether or not it is
// declared. It takes no parameters.
type PriorityThenTimeEvictionOrderPolicy struct{}
