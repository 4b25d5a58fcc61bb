// SPDX-License-Identifier: Apache-2.0

package tokens_test

import (
	"fmt"
	"strings"
)

// toyJSON is toy with the bytes in its vocabulary, as the characters that stand for them.
func toyJSON() string {
	var b strings.Builder
	next := rune(0x100)
	for c := range rune(256) {
		r := c
		if c <= ' ' || c >= 0x7f && c <= 0xa0 || c == 0xad {
			r = next
			next++
		}
		if c > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%d", string(r), c)
	}
	return strings.Replace(toy, "%VOCAB%", b.String(), 1)
}
