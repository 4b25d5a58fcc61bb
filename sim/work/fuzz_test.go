// SPDX-License-Identifier: Apache-2.0

package work

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode"
)

// A trace may hold anything: it is read or refused with its line, and memory stays in proportion.
func FuzzTrace(f *testing.F) {
	for _, file := range []string{"testdata/traces", "testdata/wrong"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for part := range strings.SplitSeq(string(text), "----") {
			if _, rows, ok := strings.Cut(part, "\n"); ok && strings.Contains(part, "file ") {
				_, rows, _ = strings.Cut(rows[max(0, strings.Index(rows, "file ")):], "\n")
				f.Add([]byte(rows))
			}
		}
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(`{"timestamp":1,"input_length":1392,"output_length":92,"hash_ids":[0,1],"session":0}`))
	_ = z.Close()
	f.Add(packed.Bytes())
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		rec := &recording{file: "fuzz", format: whichever, repeat: 1, wait: true}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := rec.scan(bytes.NewReader(text))
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20+64*uint64(len(text)) {
			t.Errorf("%d bytes for %d", used, len(text))
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz:") || len(err.Error()) > 600 {
				t.Errorf("the error does not begin with the file, or is long: %v", err)
			}
			return
		}
		rec.file = filepath.Join(dir, "fuzz")
		if err := os.WriteFile(rec.file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		w := rec.open(1, 1, &budget{left: -1})
		n := 0
		for r, ok := w.Next(); ok; r, ok = w.Next() {
			n++
			for len(w.Ended(r, r.At, true)) > 0 {
				n++
				r = w.out[0]
			}
		}
		if w.Err() != nil || n != w.Total() {
			t.Errorf("%d of %d rows, %v", n, w.Total(), w.Err())
		}
	})
}

// What is read quickly is read as encoding/json reads it.
func FuzzQuick(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 1200, "output_length": 20, "hash_ids": [0, 1, 2], "session":"a", "priority":-4}`))
	f.Add([]byte(`{"time":"2026-01-02T15:04:01Z","msg":"request","tenant":"a","duration_ms":1000.25,"request_bytes":410,"x":[1]}`))
	f.Add([]byte(`{"chat_id":12, "timestamp":-0.5 , "hash_ids":[] }`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var quick, slow record
		quick.clear()
		slow.clear()
		if !quick.quick(line) {
			return
		}
		if err := json.Unmarshal(line, &slow); err != nil {
			t.Fatalf("%q: read quickly, but %v", line, err)
		}
		if bytes.ContainsFunc(line, unicode.IsUpper) {
			return // names of fields in other cases
		}
		if len(quick.IDs) == 0 {
			quick.IDs = slow.IDs
		}
		if len(quick.Session)+len(slow.Session) == 0 {
			quick.Session = slow.Session
		}
		if len(quick.Chat)+len(slow.Chat) == 0 {
			quick.Chat = slow.Chat
		}
		if !reflect.DeepEqual(quick, slow) {
			t.Errorf("%q: %+v, want %+v", line, quick, slow)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, n := range named {
		f.Add(n.Spec)
	}
	f.Add("tenants?of=agents&users=9&aggressor=1 + batch?requests=5")
	f.Fuzz(func(t *testing.T, spec string) {
		if strings.Contains(spec, ":") {
			return // files
		}
		open, err := Parse(spec)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
			return
		}
		Multiplied(spec)
		if len(spec) > 200 {
			return
		}
		w, err := open(1, 1)
		if err != nil {
			return
		}
		for range 20 {
			r, ok := w.Next()
			if !ok {
				break
			}
			if r.Output < 1 || len(r.Prompt) == 0 {
				t.Fatalf("%q: %+v", spec, r)
			}
			w.Ended(r, r.At, true)
		}
	})
}

func FuzzFaults(f *testing.F) {
	f.Add("slow?endpoint=-1&factor=3&at=90s&for=0, loss?endpoint=2&at=1m")
	f.Fuzz(func(t *testing.T, spec string) {
		list, err := ParseFaults(spec)
		for _, one := range list {
			if err != nil || one.At < 0 || one.For < 0 || one.Endpoint < -1 {
				t.Errorf("%q: %+v, %v", spec, one, err)
			}
		}
	})
}

// A line without an end is refused before it is held, and a small file that unpacks to a large one
// is read as a stream.
func TestHostileTraces(t *testing.T) {
	long := io.MultiReader(strings.NewReader(`{"timestamp":0,"input_length":`), &endless{left: 1 << 30})
	rec := &recording{file: "long", format: whichever}
	if err := rec.scan(long); err == nil || err.Error() != "long:1: is longer than 4 MiB; a row is one line" {
		t.Errorf("got %v", err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	row := []byte(`{"timestamp":5,"input_length":10,"output_length":1}` + "\n")
	for range 200_000 {
		_, _ = z.Write(row)
	}
	_ = z.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	rec = &recording{file: "bomb", format: whichever}
	err := rec.scan(bytes.NewReader(packed.Bytes()))
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || rec.rows != 200_000 || used > 8<<20 {
		t.Errorf("%d rows, %d bytes, %v", rec.rows, used, err)
	}
	short := packed.Bytes()[:packed.Len()/2]
	rec = &recording{file: "cut.gz", format: whichever}
	if err := rec.scan(bytes.NewReader(short)); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("of half a file: %v", err)
	}
}

type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = '1'
	}
	e.left -= len(p)
	return len(p), nil
}

// A row that comes too late for its turn is refused with its line.
func TestTooLate(t *testing.T) {
	var text bytes.Buffer
	for i := range 3 * maxLate {
		text.WriteString(`{"timestamp":1` + strings.Repeat("0", 3) + `,"input_length":10,"output_length":1}` + "\n")
		_ = i
	}
	text.WriteString(`{"timestamp":5,"input_length":10,"output_length":1}` + "\n")
	rec := &recording{file: "late", format: whichever}
	err := rec.scan(&text)
	if err == nil || !strings.HasPrefix(err.Error(), "late:196609: comes 995ms before rows far above it; sort the trace by time") {
		t.Errorf("got %v", err)
	}
	if errors.Is(err, io.EOF) {
		t.Error("as if it had ended")
	}
}
