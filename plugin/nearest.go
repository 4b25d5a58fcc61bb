// SPDX-License-Identifier: Apache-2.0

package plugin

import "strings"

// Nearest returns the known word that somebody who wrote word most likely meant, or "". It
// allows one slip in three letters, and a word that was cut short. Of equals the first wins.
func Nearest(word string, known []string) string {
	if word == "" || len(word) > 100 {
		return ""
	}
	w := strings.ToLower(word)
	best, bestSlips := "", max(1, len(w)/3)+1
	for _, k := range known {
		if n := slips(w, strings.ToLower(k)); n < bestSlips {
			best, bestSlips = k, n
		}
	}
	if best != "" || len(w) < 3 {
		return best
	}
	for _, k := range known {
		if strings.HasPrefix(strings.ToLower(k), w) {
			return k
		}
	}
	return ""
}

// slips counts the letters to insert, delete, change or swap with their neighbour that turn a
// into b.
func slips(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
