// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
)

// Table writes what a person at a terminal reads, 80 columns wide.
func (r *Report) Table(w io.Writer) error {
	r.finish()
	for _, g := range r.rungs() {
		for i := range g.rows {
			if _, err := fmt.Fprintf(w, "%s %g %s %.4g ms\n", g.workload, g.rate, g.rows[i].policy, g.rows[i].ttft.Mean); err != nil {
				return err
			}
		}
	}
	return nil
}
