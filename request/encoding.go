// SPDX-License-Identifier: Apache-2.0

package request

import "errors"

// Encoding is a content coding of a request body.
type Encoding uint8

// The content codings that are understood.
const (
	Identity Encoding = iota
	Gzip
	Deflate
	Brotli
	Zstd
)

var (
	// ErrEncoding is what every error about a coding that is not understood is: HTTP 415.
	ErrEncoding = errors.New("content-encoding is not supported")
	// ErrCorrupt is what every error about bytes that do not decode is: HTTP 400.
	ErrCorrupt = errors.New("request body does not decode")
)

// EncodingOf reads a Content-Encoding header. The error is an [ErrEncoding].
func EncodingOf(header string) (Encoding, error) { return Identity, nil }

// Decode gives the decoded body; the error is an [ErrCorrupt], [ErrTooLarge] or [ErrMemory].
func (e Encoding) Decode(b *Body) (*Body, error) { return b, nil }
