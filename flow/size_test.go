// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"os"
	"strconv"
)

// racing is whether the race detector watches, which makes everything slow.
var racing bool

// modelSize is how many operations in how many games.
func modelSize() (ops, games int) {
	if n, err := strconv.Atoi(os.Getenv("FLOW_MODEL_OPS")); err == nil && n > 0 {
		return n, 24
	}
	if racing {
		return 500, 24
	}
	return 5000, 24
}
