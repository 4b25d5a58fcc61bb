// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Encoding is a content coding of a request body.
type Encoding uint8

// The content codings that are understood.
const (
	Identity Encoding = iota
	Gzip              // gzip, x-gzip
	Deflate           // zlib, or raw deflate as some clients send it
	Brotli
	Zstd
)

var (
	// ErrEncoding is what every error about a coding that is not understood is: HTTP 415.
	ErrEncoding = errors.New("content-encoding is not supported")
	// ErrCorrupt is what every error about bytes that do not decode is: HTTP 400.
	ErrCorrupt = errors.New("request body does not decode")
)

// window bounds what zstd may look back, as RFC 9659 does for HTTP. Brotli's own limit is
// 16 MiB, gzip's and deflate's 32 KiB.
const window = 8 << 20

// EncodingOf reads a Content-Encoding header. Its error is an [ErrEncoding].
func EncodingOf(header string) (Encoding, error) {
	e := Identity
	for name := range strings.SplitSeq(header, ",") {
		next := Identity
		switch name = strings.ToLower(strings.TrimSpace(name)); name {
		case "", "identity":
			continue
		case "gzip", "x-gzip":
			next = Gzip
		case "deflate":
			next = Deflate
		case "br":
			next = Brotli
		case "zstd":
			next = Zstd
		default:
			return Identity, fmt.Errorf("%w: %.40q; use gzip, deflate, br, zstd or none", ErrEncoding, name)
		}
		if e != Identity {
			return Identity, fmt.Errorf("%w: a body must be encoded once, not twice", ErrEncoding)
		}
		e = next
	}
	return e, nil
}

// String is the coding's name in HTTP.
func (e Encoding) String() string {
	return [...]string{"identity", "gzip", "deflate", "br", "zstd"}[e]
}

// Decode gives b decoded as a new body, with the memory and the limit of b; for Identity that
// is b itself. The caller releases both. The error is an [ErrCorrupt], [ErrTooLarge] or
// [ErrMemory], and then there is no new body.
func (e Encoding) Decode(b *Body) (*Body, error) {
	if e == Identity {
		return b, nil
	}
	out := NewBody(b.mem, b.max)
	if b.Len() == 0 {
		return out, nil
	}
	b.mem.decoding <- struct{}{}
	err := e.decode(out, b)
	<-b.mem.decoding
	if err == nil {
		return out, nil
	}
	out.Release()
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrMemory) || errors.Is(err, errReleased) {
		return nil, err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: the %s stream is cut off", ErrCorrupt, e)
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, fmt.Errorf("%w: the zstd window is larger than the %d bytes that http allows", ErrCorrupt, window)
	}
	return nil, fmt.Errorf("%w: not a valid %s stream", ErrCorrupt, e)
}

func (e Encoding) decode(out, b *Body) error {
	src := b.Reader()
	defer src.Close()
	pool := &decoders[e]
	d := pool.Get().(decoder)
	err := d.reset(src)
	if err == nil {
		_, err = out.ReadFrom(d)
	}
	if err == nil {
		err = d.ended()
	}
	d.release()
	pool.Put(d)
	return err
}

// decoder is a reusable reader of one coding.
type decoder interface {
	io.Reader
	reset(src io.Reader) error
	ended() error // tells of bytes behind the end
	release()     // lets go of src
}

// decoders are kept for reuse by Encoding: a window is costly to make.
var decoders = [...]sync.Pool{
	Gzip:    {New: func() any { return &gzipDecoder{source: newSource()} }},
	Deflate: {New: func() any { return &deflateDecoder{source: newSource()} }},
	Brotli:  {New: func() any { return &brotliDecoder{source: newSource(), Reader: brotli.NewReader(nil)} }},
	Zstd:    {New: func() any { return newZstdDecoder() }},
}

// source is a buffered reader, with which a decoder takes no more than it needs.
type source struct{ in *bufio.Reader }

func newSource() source { return source{bufio.NewReaderSize(nil, small)} }

func (s source) ended() error {
	if _, err := s.in.Peek(1); err != io.EOF {
		return errors.New("there are bytes behind the end")
	}
	return nil
}

func (s source) release() { s.in.Reset(nil) }

type gzipDecoder struct {
	source
	gzip.Reader
}

func (d *gzipDecoder) reset(src io.Reader) error {
	d.in.Reset(src)
	return d.Reader.Reset(d.in)
}

// deflateDecoder takes both meanings that the name has had.
type deflateDecoder struct {
	source
	raw, zlib, now io.Reader
}

func (d *deflateDecoder) reset(src io.Reader) error {
	d.in.Reset(src)
	d.now = nil
	head, err := d.in.Peek(2)
	if err != nil {
		return err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		if d.zlib == nil {
			d.zlib, err = zlib.NewReader(d.in)
		} else {
			err = d.zlib.(zlib.Resetter).Reset(d.in, nil)
		}
		d.now = d.zlib
		return err
	}
	if d.raw == nil {
		d.raw = flate.NewReader(d.in)
	} else if err := d.raw.(flate.Resetter).Reset(d.in, nil); err != nil {
		return err
	}
	d.now = d.raw
	return nil
}

func (d *deflateDecoder) Read(p []byte) (int, error) { return d.now.Read(p) }

type brotliDecoder struct {
	source
	*brotli.Reader
}

func (d *brotliDecoder) reset(src io.Reader) error {
	d.in.Reset(src)
	return d.Reader.Reset(d.in)
}

// ended is certain: the brotli reader itself refuses bytes behind the end.
func (d *brotliDecoder) ended() error { return nil }

type zstdDecoder struct{ *zstd.Decoder }

func newZstdDecoder() *zstdDecoder {
	// With one thread it starts no goroutines, so that the pool may forget it.
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		panic(err) // only for options that contradict each other
	}
	return &zstdDecoder{d}
}

func (d *zstdDecoder) reset(src io.Reader) error { return d.Reset(src) }

// ended is certain: a zstd reader goes on with whatever follows a frame.
func (d *zstdDecoder) ended() error { return nil }

func (d *zstdDecoder) release() { _ = d.Reset(nil) }
