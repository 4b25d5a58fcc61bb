// SPDX-License-Identifier: Apache-2.0

package request

// Freer gives memory back to its owner.
type Freer interface{ Free() }

// Body is a chain of chunks.
type Body struct{}
