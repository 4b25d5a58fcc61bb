// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/tinylib/msgp/msgp"
	"go.yaml.in/yaml/v3"
)

// encode writes a YAML node as msgpack: !bin is hexadecimal bytes, !u a uint64 in its widest form.
func encode(b []byte, n *yaml.Node) []byte {
	switch n.Kind {
	case yaml.DocumentNode:
		return encode(b, n.Content[0])
	case yaml.SequenceNode:
		b = msgp.AppendArrayHeader(b, uint32(len(n.Content)))
		for _, c := range n.Content {
			b = encode(b, c)
		}
	case yaml.MappingNode:
		b = msgp.AppendMapHeader(b, uint32(len(n.Content)/2))
		for _, c := range n.Content {
			b = encode(b, c)
		}
	case yaml.ScalarNode:
		var v any
		switch n.Tag {
		case "!bin":
			var raw []byte
			if _, err := fmt.Sscanf(n.Value, "%x", &raw); err != nil {
				panic(err)
			}
			return msgp.AppendBytes(b, raw)
		case "!raw":
			var raw []byte
			if _, err := fmt.Sscanf(n.Value, "%x", &raw); err != nil {
				panic(err)
			}
			return append(b, raw...)
		case "!range":
			var from, to int
			if _, err := fmt.Sscanf(n.Value, "%d..%d", &from, &to); err != nil {
				panic(err)
			}
			b = msgp.AppendArrayHeader(b, uint32(to-from+1))
			for i := from; i <= to; i++ {
				b = msgp.AppendInt(b, i)
			}
			return b
		}
		if err := n.Decode(&v); err != nil {
			panic(err)
		}
		switch v := v.(type) {
		case nil:
			return msgp.AppendNil(b)
		case string:
			return msgp.AppendString(b, v)
		case int:
			return msgp.AppendInt(b, v)
		case uint64:
			return msgp.AppendUint64(b, v)
		case float64:
			return msgp.AppendFloat64(b, v)
		case bool:
			return msgp.AppendBool(b, v)
		}
		panic(fmt.Sprintf("%T", v))
	}
	return b
}

func encodeText(t testing.TB, text string) []byte {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	return encode(nil, &n)
}

func (ev *Event) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%v", ev.Kind)
	if ev.Kind != AllBlocksCleared {
		fmt.Fprintf(&s, " hashes=%v medium=%s", ev.Hashes, ev.Medium)
	}
	if ev.HasParent {
		fmt.Fprintf(&s, " parent=%d", ev.Parent)
	}
	if n := len(ev.Tokens); n > 0 {
		fmt.Fprintf(&s, " tokens=%d..%d", ev.Tokens[0], ev.Tokens[n-1])
	}
	if ev.Kind == BlockStored {
		fmt.Fprintf(&s, " size=%d", ev.BlockSize)
	}
	if ev.LoraID != -1 || ev.LoraName != "" {
		fmt.Fprintf(&s, " lora=%d/%q", ev.LoraID, ev.LoraName)
	}
	for _, x := range ev.Extras {
		fmt.Fprintf(&s, " extra[%d]=%q", x.Block, x.Text)
		if x.HasOffset {
			fmt.Fprintf(&s, "@%d", x.Offset)
		}
		if x.Opaque {
			s.WriteString(" (opaque)")
		}
	}
	if ev.Group != -1 {
		fmt.Fprintf(&s, " group=%d", ev.Group)
	}
	if ev.SpecKind != "" {
		fmt.Fprintf(&s, " kind=%s window=%d", ev.SpecKind, ev.Window)
	}
	if ev.Reused {
		s.WriteString(" reused")
	}
	return s.String()
}

func (b *Batch) String() string {
	var s strings.Builder
	if b.Rank >= 0 || b.Time != 0 {
		fmt.Fprintf(&s, "time=%v rank=%d\n", b.Time, b.Rank)
	}
	for i := range b.Events {
		fmt.Fprintln(&s, &b.Events[i])
	}
	for _, r := range b.Rejected {
		fmt.Fprintf(&s, "rejected: %s\n", r)
	}
	return s.String()
}

func TestBatch(t *testing.T) {
	var b Batch // one for all: nothing of an earlier one may show
	datadriven.RunTest(t, "testdata/batch", func(t *testing.T, d *datadriven.TestData) string {
		payload := encodeText(t, d.Input)
		switch d.Cmd {
		case "event":
			payload = append(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 0), append([]byte{0x91}, payload...)...)
		case "batch":
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		if err := b.Decode(payload); err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		return b.String()
	})
}

// stored is a batch as engines send: events of blocks of 16 tokens each.
func stored(events, blocks int, asMap bool) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1.5)
	b = msgp.AppendArrayHeader(b, uint32(events))
	for e := range events {
		field := func(string) {}
		if asMap {
			b = msgp.AppendMapHeader(b, 11)
			field = func(name string) { b = msgp.AppendString(b, name) }
		} else {
			b = msgp.AppendArrayHeader(b, 11)
		}
		field("type")
		b = msgp.AppendString(b, "BlockStored")
		field("block_hashes")
		b = msgp.AppendArrayHeader(b, uint32(blocks))
		for i := range blocks {
			b = msgp.AppendUint64(b, uint64(e*blocks+i)*0x9e3779b97f4a7c15|1<<63)
		}
		field("parent_block_hash")
		b = msgp.AppendUint64(b, 1<<63+17)
		field("token_ids")
		b = msgp.AppendArrayHeader(b, uint32(16*blocks))
		for i := range 16 * blocks {
			b = msgp.AppendInt(b, (i*7919)%150000)
		}
		field("block_size")
		b = msgp.AppendInt(b, 16)
		field("lora_id")
		b = msgp.AppendNil(b)
		field("medium")
		b = msgp.AppendString(b, "GPU")
		field("lora_name")
		b = msgp.AppendNil(b)
		field("extra_keys")
		b = msgp.AppendArrayHeader(b, uint32(blocks))
		for range blocks {
			b = msgp.AppendNil(b)
		}
		field("group_idx")
		b = msgp.AppendInt(b, 0)
		field("kv_cache_spec_kind")
		b = msgp.AppendString(b, "full_attention")
	}
	return msgp.AppendInt(b, 0)
}

func TestDecodeAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	for _, asMap := range []bool{false, true} {
		payload := stored(8, 8, asMap)
		var b Batch
		if n := testing.AllocsPerRun(100, func() {
			if err := b.Decode(payload); err != nil || len(b.Events) != 8 {
				t.Fatal(err, len(b.Events), b.Rejected)
			}
		}); n != 0 {
			t.Errorf("map=%v: got %v allocations, want 0", asMap, n)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, asMap := range []bool{false, true} {
		b.Run(fmt.Sprintf("map=%v", asMap), func(b *testing.B) {
			payload := stored(8, 8, asMap)
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			var batch Batch
			for b.Loop() {
				if batch.Decode(payload) != nil {
					b.Fatal()
				}
			}
			b.ReportMetric(64*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

func FuzzBatch(f *testing.F) {
	f.Add(stored(2, 2, true))
	f.Add(stored(2, 2, false))
	f.Add([]byte("\xdd\xff\xff\xff\xff"))
	f.Add([]byte("\x92\x00\x91\xdf\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b Batch
		if err := b.Decode(payload); err != nil {
			if len(b.Events) != 0 || len(b.Rejected) != 0 {
				t.Error("an error, and events")
			}
			return
		}
		total := 0
		for i := range b.Events {
			ev := &b.Events[i]
			total += len(ev.Hashes) + len(ev.Tokens) + len(ev.Extras)
			for _, x := range ev.Extras {
				total += len(x.Text)
			}
		}
		if total+len(b.Events)+len(b.Rejected) > len(payload) {
			t.Errorf("%d things of %d bytes", total, len(payload))
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("topic"), binary.BigEndian.AppendUint64(nil, 7), []byte("payload"), 3)
	f.Fuzz(func(t *testing.T, a, b, c []byte, n int) {
		parts := [][]byte{a, b, c, a}[:max(0, min(n, 4))]
		if _, seq, _, err := frames(parts); err == nil && (len(parts) != 3 || seq == endMark) {
			t.Error("took a frame that is none")
		}
		_, _, _, _, _ = replayed(parts)
	})
}
