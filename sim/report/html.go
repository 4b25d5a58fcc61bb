// SPDX-License-Identifier: Apache-2.0

package report

import "io"

// HTML writes one page that needs nothing else.
func (r *Report) HTML(w io.Writer) error {
	r.finish()
	_, err := io.WriteString(w, "<!doctype html>\n<title>report</title>\n")
	return err
}
