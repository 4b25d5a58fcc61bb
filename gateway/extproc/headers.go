// SPDX-License-Identifier: Apache-2.0

package extproc

import "strings"

// header is one header as it came, its name in lower case.
type header struct{ name, value string }

// headers are the headers of one message in the order in which they came. A request has about
// twenty and asks for five, so that a list is quicker than a map. It implements
// gateway.Headers.
type headers []header

// Get gives a header's value, several joined by ", ". It does not share memory with the
// message, so that it may be kept.
func (h *headers) Get(name string) string {
	value := ""
	for _, e := range *h {
		switch {
		case len(e.name) != len(name) || e.name != name || e.value == "":
		case value == "":
			value = strings.Clone(e.value)
		default:
			value += ", " + e.value
		}
	}
	return value
}

// Names calls yield with each name that is there, until it returns false.
func (h *headers) Names(yield func(name string) bool) {
	for _, e := range *h {
		if !yield(e.name) {
			return
		}
	}
}

// has tells whether a header is there, be it empty.
func (h *headers) has(name string) bool {
	for _, e := range *h {
		if e.name == name {
			return true
		}
	}
	return false
}
