// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
)

// framing are the headers by which two ends of a connection tell where a message ends, and the like.
var framing = []string{
	"connection", "content-encoding", "content-length", "content-type", "host", "keep-alive", "proxy-connection", "te", "trailer",
	"transfer-encoding", "upgrade",
}

// headerName reports a name that no header can have (RFC 9110 §5.1).
func headerName(path, name string) error {
	if name != "" && strings.Trim(strings.ToLower(name), "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz") == "" {
		return nil
	}
	return fmt.Errorf("%s: want the name of a header, got %q", path, name)
}

// ownHeader reports a name that answers must not be given: none, or one that says how they are read.
func ownHeader(path, name string) error {
	if slices.Contains(framing, strings.ToLower(name)) {
		return fmt.Errorf("%s: want a header of its own: %s says how an answer is read", path, name)
	}
	return headerName(path, name)
}
