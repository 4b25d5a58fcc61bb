// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// encode compresses p, by the name that a Content-Encoding gives.
func encode(t testing.TB, coding string, p []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip", "x-gzip", "GZIP":
		w, _ = gzip.NewWriterLevel(&out, 1)
	case "deflate":
		w, _ = zlib.NewWriterLevel(&out, 1)
	case "raw":
		w, _ = flate.NewWriter(&out, 1)
	case "br":
		w = brotli.NewWriterLevel(&out, 1)
	case "zstd":
		w, _ = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	default:
		return p
	}
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// decode sends p through a header's coding and tells what came out.
func decode(m *Memory, header string, p []byte, limit int64) (string, error) {
	e, err := EncodingOf(header)
	if err != nil {
		return "", err
	}
	b := NewBody(m, limit)
	defer b.Release()
	if _, err := b.Write(p); err != nil {
		return "", err
	}
	out, err := e.Decode(b)
	if err != nil {
		return "", err
	}
	defer out.Release()
	return content(out), nil
}

var codings = []string{"", "identity", "gzip", "x-gzip", "GZIP", "deflate", "raw", "br", "zstd"}

// header is the Content-Encoding of a coding.
func header(coding string) string {
	if coding == "raw" {
		return "deflate"
	}
	return coding
}

// BL-03: known codings decode, cut-off and damaged ones are corrupt.
func TestDecode(t *testing.T) {
	m := NewMemory(0)
	random := make([]byte, 50_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	for _, plain := range []string{"", "{}", strings.Repeat(`{"model":"m"} `, 20_000), string(random)} {
		for _, coding := range codings {
			sent := encode(t, coding, []byte(plain))
			for range 2 { // the second time with a used decoder
				got, err := decode(m, header(coding), sent, 0)
				if err != nil || got != plain {
					t.Errorf("%s of %d bytes: got %d bytes, %v", coding, len(plain), len(got), err)
				}
			}
			if encode(t, coding, []byte("x"))[0] == 'x' { // identity
				continue
			}
			if got, err := decode(m, header(coding), append(bytes.Clone(sent), "rest"...), 0); len(plain) > 0 && !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s with bytes behind its end: got %d bytes, %v", coding, len(got), err)
			}
			for _, n := range []int{1, len(sent) / 2, len(sent) - 1} {
				if n == 0 || len(plain) == 0 {
					continue
				}
				if got, err := decode(m, header(coding), sent[:n], 0); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "cut off") {
					t.Errorf("%s cut to %d of %d: got %d bytes, %v", coding, n, len(sent), len(got), err)
				}
			}
			if _, err := decode(m, header(coding), []byte("this is not compressed at all"), 0); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s of plain text: got %v", coding, err)
			}
		}
	}
	if m.Held() != 0 {
		t.Errorf("still holds %d", m.Held())
	}
}

func TestEncodingOf(t *testing.T) {
	for header, want := range map[string]Encoding{"": Identity, " Identity ": Identity, "X-GZIP": Gzip, "gzip, identity": Gzip, "deflate": Deflate, "br": Brotli, ",zstd": Zstd} {
		if got, err := EncodingOf(header); got != want || err != nil {
			t.Errorf("%q: got %v, %v, want %v", header, got, err, want)
		}
	}
	for _, header := range []string{"gzip, gzip", "br,gzip", "x-unknown", "compress", "*", "gzip;q=1"} {
		if _, err := EncodingOf(header); !errors.Is(err, ErrEncoding) {
			t.Errorf("%q: got %v, want ErrEncoding", header, err)
		}
	}
}

// BL-03: a small body that grows without end meets the limit, and costs no more than it.
func TestDecodeBomb(t *testing.T) {
	const limit = 1 << 20
	zeros := bytes.Repeat([]byte(" "), 16<<20)
	for _, coding := range []string{"gzip", "deflate", "raw", "br", "zstd"} {
		m := NewMemory(0)
		bomb := encode(t, coding, zeros)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 3 {
			if _, err := decode(m, header(coding), bomb, limit); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s: got %v, want ErrTooLarge", coding, err)
			}
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 36<<20 {
			t.Errorf("%s: allocated %d MiB on the way to a limit of 1 MiB", coding, grown>>20)
		}
		if _, err := decode(NewMemory(limit), header(coding), bomb, 0); !errors.Is(err, ErrMemory) {
			t.Errorf("%s: got %v, want ErrMemory", coding, err)
		}
		if m.Held() != 0 {
			t.Errorf("%s: still holds %d", coding, m.Held())
		}
	}
}

func TestDecodeRefusesWideWindow(t *testing.T) {
	var out bytes.Buffer
	w, _ := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(32<<20), zstd.WithSingleSegment(false))
	_, _ = w.Write(make([]byte, 40<<20))
	_ = w.Close()
	if _, err := decode(NewMemory(0), "zstd", out.Bytes(), 0); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "window") {
		t.Errorf("got %v, want an ErrCorrupt that names the window", err)
	}
}
