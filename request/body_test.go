// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// freed counts calls of Free.
type freed int

func (f *freed) Free() { *f++ }

func content(b *Body) string {
	var out []byte
	for p := range b.Chunks {
		out = append(out, p...)
	}
	return string(out)
}

func TestBodyKeepsWhatItIsGiven(t *testing.T) {
	for _, size := range []int{0, 1, small - 1, small, small + 1, 32768, 32769, 131073, 1048577} {
		want := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		for name, fill := range map[string]func(*Body) error{
			"whole": func(b *Body) error { _, err := b.Write([]byte(want)); return err },
			"64 KB": func(b *Body) error {
				_, err := io.CopyBuffer(struct{ io.Writer }{b}, strings.NewReader(want), make([]byte, 64000))
				return err
			},
			"read": func(b *Body) error { _, err := b.ReadFrom(strings.NewReader(want)); return err },
			"bytes": func(b *Body) error {
				b.Expect(int64(size))
				_, err := b.ReadFrom(iotest.OneByteReader(strings.NewReader(want)))
				return err
			},
			"eof with data": func(b *Body) error { _, err := b.ReadFrom(iotest.DataErrReader(strings.NewReader(want))); return err },
			"attached":      func(b *Body) error { return b.Attach([]byte(want), new(freed)) },
		} {
			m := NewMemory(0)
			b := NewBody(m, int64(size)) // exactly the limit; 0 is none
			if err := fill(b); err != nil {
				t.Fatalf("%d %s: %v", size, name, err)
			}
			if b.Len() != int64(size) || content(b) != want {
				t.Errorf("%d %s: body of %d bytes differs", size, name, b.Len())
			}
			if name != "attached" && name != "whole" && size > 1<<20 && m.Held() > int64(size)+large {
				t.Errorf("%d %s: holds %d", size, name, m.Held())
			}
			b.Trim()
			if content(b) != want {
				t.Errorf("%d %s: trimmed body differs", size, name)
			}
			if m.Held() > int64(size)+small {
				t.Errorf("%d %s: holds %d after Trim, want at most 4 KiB more than the body", size, name, m.Held())
			}
			b.Release()
			b.Release()
			if m.Held() != 0 {
				t.Errorf("%d %s: still holds %d", size, name, m.Held())
			}
		}
	}
}

// BL-04: up to the limit a body passes, one byte more names the limit.
func TestBodyLimits(t *testing.T) {
	const limit = 100_000
	long := bytes.Repeat([]byte("x"), limit+1)
	for name, fill := range map[string]func(*Body) error{
		"write": func(b *Body) error { _, err := b.Write(long); return err },
		"bytes": func(b *Body) error {
			for i := range long {
				if _, err := b.Write(long[i : i+1]); err != nil {
					return err
				}
			}
			return nil
		},
		"read":   func(b *Body) error { _, err := b.ReadFrom(bytes.NewReader(long)); return err },
		"attach": func(b *Body) error { return b.Attach(long, nil) },
	} {
		m := NewMemory(0)
		b := NewBody(m, limit)
		err := fill(b)
		var tooLarge *TooLargeError
		if !errors.As(err, &tooLarge) || tooLarge.Limit != limit || !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "100000") {
			t.Errorf("%s: got %v, want a TooLargeError that names %d", name, err, limit)
		}
		b.Release()

		m = NewMemory(limit / 2)
		b = NewBody(m, 0)
		if err := fill(b); !errors.Is(err, ErrMemory) {
			t.Errorf("%s: got %v, want ErrMemory", name, err)
		}
		if m.Held() > limit/2 {
			t.Errorf("%s: %d bytes held, cap is %d", name, m.Held(), limit/2)
		}
		b.Release()
		if m.Held() != 0 {
			t.Errorf("%s: still holds %d", name, m.Held())
		}
	}
}

func TestBodyFreesOnce(t *testing.T) {
	m := NewMemory(10)
	var f freed
	b := NewBody(m, 0)
	if err := b.Attach([]byte("0123456789"), &f); err != nil {
		t.Fatal(err)
	}
	if err := b.Attach([]byte("x"), &f); err == nil || f != 1 {
		t.Errorf("got %v and %d calls of Free, want an error and 1", err, f)
	}
	r := b.Reader()
	b.Release()
	if f != 1 || m.Held() != 10 {
		t.Errorf("freed while a reader was open")
	}
	if got, err := io.ReadAll(r); string(got) != "0123456789" || err != nil {
		t.Errorf("got %q, %v from a reader that outlives the body", got, err)
	}
	r.Close()
	r.Close()
	if f != 2 || m.Held() != 0 {
		t.Errorf("got %d calls of Free and %d held, want 2 and 0", f, m.Held())
	}
	if _, err := r.Read(make([]byte, 1)); err == nil {
		t.Error("a closed reader still reads")
	}
}

func TestSplice(t *testing.T) {
	for _, test := range []struct {
		name  string
		edits []edit
		want  string
	}{
		{"none", nil, "0123456789"},
		{"replace", []edit{{Span{2, 3}, []byte("abcdef")}}, "01abcdef56789"},
		{"later first", []edit{{Span{8, 1}, nil}, {Span{0, 1}, []byte("A")}}, "A12345679"},
		{"insert and replace at one place", []edit{{Span{4, 0}, []byte("+")}, {Span{4, 2}, []byte("-")}}, "0123+-6789"},
		{"ends", []edit{{Span{0, 0}, []byte("<")}, {Span{10, 0}, []byte(">")}}, "<0123456789>"},
		{"everything", []edit{{Span{0, 10}, []byte("x")}}, "x"},
		{"again", []edit{{Span{2, 3}, []byte("first")}, {Span{2, 3}, []byte("2nd")}}, "012nd56789"},
		{"overlap is refused", []edit{{Span{2, 3}, []byte("x")}, {Span{4, 3}, []byte("y")}}, "01x56789"},
		{"outside is refused", []edit{{Span{9, 2}, []byte("x")}}, "0123456789"},
	} {
		for piece := 1; piece <= 10; piece++ {
			m := NewMemory(0)
			b := NewBody(m, 0)
			for p := []byte("0123456789"); len(p) > 0; p = p[min(piece, len(p)):] {
				if err := b.Attach(p[:min(piece, len(p))], nil); err != nil {
					t.Fatal(err)
				}
			}
			before := b.Reader()
			refused := 0
			for _, e := range test.edits {
				if b.Splice(e.Span, e.with) != nil {
					refused++
				}
			}
			if strings.Contains(test.name, "refused") != (refused > 0) {
				t.Errorf("%s: %d refused", test.name, refused)
			}
			r := b.Reader()
			read, _ := io.ReadAll(iotest.OneByteReader(r))
			var written bytes.Buffer
			again := b.Reader()
			_, _ = again.(io.WriterTo).WriteTo(&written)
			if content(b) != test.want || string(read) != test.want || written.String() != test.want || b.Len() != int64(len(test.want)) {
				t.Errorf("%s by %d: got %q, %q, %q, length %d, want %q", test.name, piece, content(b), read, &written, b.Len(), test.want)
			}
			if got, _ := io.ReadAll(before); string(got) != "0123456789" {
				t.Errorf("%s: a reader taken before sees an edit: %q", test.name, got)
			}
			if got := b.Bytes(Span{3, 4}); string(got) != "3456" {
				t.Errorf("bytes: got %q", got)
			}
			for _, r := range []io.Closer{r, again, before, closer(b.Release)} {
				r.Close()
			}
			if m.Held() != 0 {
				t.Errorf("%s: still holds %d", test.name, m.Held())
			}
		}
	}
}

type closer func()

func (c closer) Close() error { c(); return nil }

// A transport may still read a body, and close its reader twice, when the exchange has ended
// and the chunks are wanted by the next one.
func TestReadersOutliveBodies(t *testing.T) {
	m := NewMemory(0)
	var wg sync.WaitGroup
	for i := range 64 {
		want := bytes.Repeat([]byte{byte('a' + i%26)}, 100_000)
		b := NewBody(m, 0)
		if _, err := b.Write(want); err != nil {
			t.Fatal(err)
		}
		for k := range 3 {
			r := b.Reader()
			wg.Go(func() {
				defer r.Close()
				var out bytes.Buffer
				if k == 0 {
					_, _ = out.ReadFrom(r)
				} else {
					_, _ = r.(io.WriterTo).WriteTo(&out)
				}
				if got := out.Bytes(); k < 2 && !bytes.Equal(got, want) || !bytes.HasPrefix(want, got) {
					t.Error("a reader saw other bytes than its body's")
				}
			})
			if k == 2 {
				wg.Go(func() { r.Close() })
			}
		}
		b.Release()
	}
	wg.Wait()
	if m.Held() != 0 {
		t.Errorf("still holds %d", m.Held())
	}
}

func TestBodyAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops what is put into pools")
	}
	m := NewMemory(0)
	p := bytes.Repeat([]byte("x"), 1024)
	got := testing.AllocsPerRun(100, func() {
		b := NewBody(m, 0)
		_, _ = b.Write(p)
		for range b.Chunks {
		}
		b.Release()
	})
	if got > 1 {
		t.Errorf("got %v allocations for a body of 1 KiB, want 1: its handle", got)
	}
}
