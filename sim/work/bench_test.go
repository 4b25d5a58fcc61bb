// SPDX-License-Identifier: Apache-2.0

package work

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// Reading a trace row by row, as each pass over it does.
func BenchmarkRows(b *testing.B) {
	for _, c := range []struct{ name, file string }{
		{"mooncake", "../../testdata/traces/mooncake_conversation.jsonl.gz"},
		{"azure", "../../testdata/traces/azure_2023_code.csv.gz"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				in, err := os.Open(c.file)
				if err != nil {
					b.Fatal(err)
				}
				r, err := newRows(c.file, in, whichever)
				if err != nil {
					b.Fatal(err)
				}
				var w row
				for n = 0; ; n++ {
					if err := r.next(&w); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
				in.Close()
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

// Making up work, answered at once: the cost of a request.
func BenchmarkGenerate(b *testing.B) {
	for _, spec := range []string{"groups?for=160h", "chat?for=160h", "agents?for=160h", "documents?for=160h", "tenants?tenants=100&for=160h"} {
		b.Run(spec, func(b *testing.B) {
			open, err := Parse(spec)
			if err != nil {
				b.Fatal(err)
			}
			w, err := open(1, 1000)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			n := 0
			var queue []*Request
			for b.Loop() {
				var r *Request
				if len(queue) > 0 {
					r = queue[len(queue)-1]
					queue = queue[:len(queue)-1]
				} else if r, _ = w.Next(); r == nil {
					b.Fatal("no more")
				}
				queue = append(queue, w.Ended(r, r.At+time.Second, true)...)
				n++
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
