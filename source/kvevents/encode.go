// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"strings"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"
)

// Layout is a form of events on the wire.
type Layout uint8

// All layouts.
const (
	// Maps is what vLLM publishes since its events have names: a map with the kind under "type".
	Maps Layout = iota
	// Arrays is what it published before: an array that begins with the kind.
	Arrays
)

// Append appends the batch as vLLM 0.32 publishes it, byte for byte, or with Arrays as older ones did.
func (b *Batch) Append(p []byte, layout Layout) []byte {
	p = AppendHead(p, b.Time, len(b.Events))
	for i := range b.Events {
		p = b.Events[i].Append(p, layout)
	}
	return AppendRank(p, b.Rank)
}

// AppendHead begins a batch: n events follow, each by [Event.Append], and then [AppendRank].
func AppendHead(p []byte, time float64, n int) []byte {
	p = msgp.AppendArrayHeader(p, 3)
	p = msgp.AppendFloat64(p, time)
	return msgp.AppendArrayHeader(p, uint32(n))
}

// AppendRank ends a batch with the data-parallel rank, below 0 for none.
func AppendRank(p []byte, rank int) []byte {
	if rank < 0 {
		return msgp.AppendNil(p)
	}
	return appendInt(p, rank)
}

// Append appends the event.
func (ev *Event) Append(p []byte, layout Layout) []byte {
	w := writer{p: append(p, 0), head: len(p), maps: layout == Maps}
	w.field("type", true)
	w.text(ev.Kind.String())
	switch ev.Kind {
	case BlockStored:
		w.field("block_hashes", true)
		w.hashes(ev.Hashes)
		w.field("parent_block_hash", true)
		if ev.HasParent {
			w.p = msgp.AppendUint64(w.p, ev.Parent)
		} else {
			w.null()
		}
		w.field("token_ids", true)
		w.p = msgp.AppendArrayHeader(w.p, uint32(len(ev.Tokens)))
		for _, t := range ev.Tokens {
			w.p = msgp.AppendUint32(w.p, t)
		}
		w.field("block_size", true)
		w.p = appendInt(w.p, ev.BlockSize)
		w.field("lora_id", true)
		if ev.LoraID >= 0 {
			w.p = appendInt(w.p, int(ev.LoraID))
		} else {
			w.null()
		}
		w.field("medium", true)
		w.text(upper(ev.Medium))
		w.field("lora_name", true)
		if ev.LoraName != "" {
			w.text(ev.LoraName)
		} else {
			w.null()
		}
		if w.field("extra_keys", len(ev.Hashes) > 0) {
			w.extras(ev)
		}
		w.number("group_idx", ev.Group, ev.Group >= 0)
		if w.field("kv_cache_spec_kind", ev.SpecKind != "") {
			w.text(ev.SpecKind)
		}
		w.number("kv_cache_spec_sliding_window", ev.Window, ev.Window > 0)
	case BlockRemoved:
		w.field("block_hashes", true)
		w.hashes(ev.Hashes)
		w.field("medium", true)
		w.text(upper(ev.Medium))
		w.number("group_idx", ev.Group, ev.Group >= 0)
	}
	return w.end()
}

// writer writes the fields of one event, of which there are fewer than 16, so that its header is one byte. A field that has its
// default is left out of a map, and nil in an array.
type writer struct {
	p    []byte
	head int // where the header is
	maps bool
	n    byte // fields
}

// field begins a field. It reports whether its value is to be written.
func (w *writer) field(name string, told bool) bool {
	switch {
	case w.maps && told:
		w.text(name)
		w.n++
	case !w.maps:
		w.n++
		if !told {
			w.null()
		}
	}
	return told
}

func (w *writer) end() []byte {
	if w.maps {
		w.p[w.head] = 0x80 | w.n
	} else {
		w.p[w.head] = 0x90 | w.n
	}
	return w.p
}

func (w *writer) null() { w.p = msgp.AppendNil(w.p) }

func (w *writer) text(s string) { w.p = msgp.AppendString(w.p, s) }

func (w *writer) number(name string, n int, told bool) {
	if w.field(name, told) {
		w.p = appendInt(w.p, n)
	}
}

func (w *writer) hashes(hashes []uint64) {
	w.p = msgp.AppendArrayHeader(w.p, uint32(len(hashes)))
	for _, h := range hashes {
		w.p = msgp.AppendUint64(w.p, h)
	}
}

// extras writes an entry for each block: nil, or its keys.
func (w *writer) extras(ev *Event) {
	w.p = msgp.AppendArrayHeader(w.p, uint32(len(ev.Hashes)))
	rest := ev.Extras
	for block := range ev.Hashes {
		n := 0
		for n < len(rest) && rest[n].Block == block {
			n++
		}
		if n == 0 {
			w.null()
			continue
		}
		w.p = msgp.AppendArrayHeader(w.p, uint32(n))
		for i := range rest[:n] {
			switch x := &rest[i]; {
			case x.Opaque:
				w.p = append(w.p, x.Text...)
			case x.HasOffset:
				w.p = msgp.AppendArrayHeader(w.p, 2)
				w.key(x.Text)
				w.p = appendInt(w.p, int(x.Offset))
			default:
				w.key(x.Text)
			}
		}
		rest = rest[n:]
	}
}

// key writes an extra key: a name or, of prompt embeddings, a digest.
func (w *writer) key(text []byte) {
	if utf8.Valid(text) {
		w.p = msgp.AppendStringFromBytes(w.p, text)
	} else {
		w.p = msgp.AppendBytes(w.p, text)
	}
}

// appendInt appends a number as msgspec does: one that is not negative is unsigned.
func appendInt(p []byte, n int) []byte {
	if n < 0 {
		return msgp.AppendInt(p, n)
	}
	return msgp.AppendUint64(p, uint64(n))
}

// upper undoes lower.
func upper(s string) string {
	if s == "gpu" {
		return "GPU"
	}
	return strings.ToUpper(s)
}
