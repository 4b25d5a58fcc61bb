// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Code is a gRPC status code.
type Code uint32

// The codes, as in the gRPC specification.
const (
	OK                 Code = 0
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

// Status is how a stream ends.
type Status struct {
	Code    Code
	Message string
}

// Error implements error.
func (s *Status) Error() string { return fmt.Sprintf("grpc status %d: %s", s.Code, s.Message) }

// Header blocks are written without a dynamic table: the few fields that we send are short, and
// the same bytes do for every connection.
var (
	responseHead = appendField([]byte{0x88}, "content-type", "application/grpc") // 0x88 is ":status: 200"
	trailersOK   = appendField(nil, "grpc-status", "0")
)

// appendField appends a literal field that no table keeps.
func appendField(b []byte, name, value string) []byte {
	b = append(b, 0)
	b = appendString(b, name)
	return appendString(b, value)
}

func appendString(b []byte, s string) []byte {
	if n := len(s); n < 127 {
		b = append(b, byte(n))
	} else {
		b = append(b, 127)
		for n -= 127; n >= 128; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		b = append(b, byte(n))
	}
	return append(b, s...)
}

// trailers is the header block that ends a stream.
func (s *Status) trailers() []byte {
	if s == nil || s.Code == OK && s.Message == "" {
		return trailersOK
	}
	b := appendField(nil, "grpc-status", strconv.Itoa(int(s.Code)))
	if s.Message != "" {
		b = appendField(b, "grpc-message", percent(s.Message))
	}
	return b
}

// maxStatusMessage keeps the trailers within one frame, percent signs and all.
const maxStatusMessage = 4 << 10

// percent encodes a status message as gRPC wants it.
func percent(m string) string {
	if len(m) > maxStatusMessage {
		m = m[:maxStatusMessage]
		for len(m) > 0 && !utf8.ValidString(m[max(0, len(m)-utf8.UTFMax):]) && len(m) > maxStatusMessage-utf8.UTFMax {
			m = m[:len(m)-1]
		}
	}
	const hex = "0123456789ABCDEF"
	plain := true
	for i := range len(m) {
		plain = plain && m[i] >= ' ' && m[i] <= '~' && m[i] != '%'
	}
	if plain {
		return m
	}
	b := make([]byte, 0, len(m)+16)
	for i := range len(m) {
		if c := m[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}
