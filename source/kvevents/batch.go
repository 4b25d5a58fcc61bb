// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"

	"github.com/tinylib/msgp/msgp"
)

// What one batch may hold. What is longer is [TooLarge], told before any memory is taken for it.
const (
	MaxEvents = 1 << 16 // events of a batch
	MaxBlocks = 1 << 16 // blocks of an event
	MaxTokens = 1 << 22 // tokens of an event
	MaxExtras = 1 << 18 // extra keys of all events
	maxText   = 1 << 12 // bytes of a name or of an extra key
	maxFields = 1 << 8  // fields of an event
	maxNames  = 1 << 10 // names that a Batch remembers
)

// Reason says why something was dropped; it is the value of a counter's label.
type Reason string

// Error implements error.
func (r Reason) Error() string { return string(r) }

// All reasons.
const (
	UnknownKind   Reason = "unknown-kind"   // an event that is none of ours
	BadLayout     Reason = "bad-layout"     // a batch or an event of an unknown form
	MissingTokens Reason = "missing-tokens" // a BlockStored that does not say which tokens
	TooLarge      Reason = "too-large"      // more than the limits allow
	BadFrame      Reason = "bad-frame"      // not three frames, or no sequence of 8 bytes
	Duplicate     Reason = "duplicate"      // what came before came again
	OutOfOrder    Reason = "out-of-order"   // came after its gap was told
	Overflow      Reason = "overflow"       // the sink was slower than the engine for too long
	ReplayFailed  Reason = "replay-failed"  // the engine did not answer a replay request to its end
	TooMany       Reason = "too-many"       // more publishers than a central socket follows
)

// Reasons lists all, for who makes counters beforehand.
var Reasons = []Reason{UnknownKind, BadLayout, MissingTokens, TooLarge, BadFrame, Duplicate, OutOfOrder, Overflow, ReplayFailed, TooMany}

// Kind says what happened to blocks.
type Kind uint8

// All kinds.
const (
	BlockStored Kind = 1 + iota
	BlockRemoved
	AllBlocksCleared
)

var kindNames = [...]string{BlockStored: "BlockStored", BlockRemoved: "BlockRemoved", AllBlocksCleared: "AllBlocksCleared"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return ""
}

// Extra is something besides its tokens that a block's content depends on: a cache salt, an adapter's name,
// or an item that is no text, with the place of its start.
type Extra struct {
	// Block is the place in the event's Hashes of the block that it belongs to.
	Block int
	// Text is the key. When Opaque it is msgpack of a form that we do not know, still good to
	// tell two blocks apart.
	Text   []byte
	Opaque bool
	// Offset is where the item starts, of (identifier, offset) pairs; 0 when HasOffset is false.
	Offset    int64
	HasOffset bool
}

// Event is one change of an engine's cache. Its slices are the Batch's memory.
type Event struct {
	Kind Kind
	// Hashes are the engine's names of blocks: integers as their 64 bits, negative ones in two's complement,
	// byte strings by their last 8 bytes, big-endian. They say nothing beyond the engine that sent them.
	Hashes []uint64
	// Parent is the block before the first, if HasParent.
	Parent    uint64
	HasParent bool
	// Tokens are those of all blocks. None means that known blocks are now on Medium, too.
	Tokens    []uint32
	BlockSize int
	// LoraID is the old name of an adapter, -1 for none; LoraName the new one, empty for none.
	LoraID   int64
	LoraName string
	// Medium is where the blocks are, in lower case; "gpu" unless told.
	Medium string
	// Extras are in the order of blocks.
	Extras []Extra
	// Group is the number of the attention group, -1 if not told, SpecKind and Window its kind and the length of its
	// sliding window, empty and 0 if not told.
	Group    int
	SpecKind string
	Window   int
	// Reused tells of blocks that a request read, not of such that it computed.
	Reused bool
}

// Batch is a decoded message. The zero value is ready; decoding into it again reuses its memory and so allocates
// nothing once it is large enough.
type Batch struct {
	// Topic is what the message was published under, kv@pod@model by custom ([SplitTopic]); empty in a replay by an engine
	// that leaves it out.
	Topic string
	// Time is the engine's, in seconds since 1970.
	Time float64
	// Rank is the data-parallel rank, -1 if not told.
	Rank   int
	Events []Event
	// Rejected has an entry for each event that was left out.
	Rejected []Reason

	hashes []uint64
	tokens []uint32
	extras []Extra
	names  map[string]string
}

// Decode reads a payload. What it reads keeps parts of the payload, which must not change as long as the Batch is read.
// An error is a [Reason] for which all of it was left out; an event that cannot be read is only left out itself.
func (b *Batch) Decode(payload []byte) error {
	clear(b.Events) // lets go of memory that was outgrown
	clear(b.extras)
	b.Time, b.Rank = 0, -1
	b.Events, b.Rejected = b.Events[:0], b.Rejected[:0]
	b.hashes, b.tokens, b.extras = b.hashes[:0], b.tokens[:0], b.extras[:0]
	err := b.batch(payload)
	if err == nil {
		return nil
	}
	b.Events, b.Rejected = b.Events[:0], b.Rejected[:0]
	return reasonOf(err)
}

func reasonOf(err error) Reason {
	var r Reason
	if errors.As(err, &r) {
		return r
	}
	return BadLayout
}

// batch reads [time, events, rank?, …], or a map with these names.
func (b *Batch) batch(p []byte) error {
	if msgp.NextType(p) == msgp.MapType {
		n, p, err := msgp.ReadMapHeaderBytes(p)
		if err != nil || n > maxFields {
			return BadLayout
		}
		told := false
		for range n {
			var key []byte
			if key, p, err = msgp.ReadStringZC(p); err != nil {
				return err
			}
			field := -1
			switch string(key) {
			case "ts":
				field = 0
			case "events":
				field, told = 1, true
			case "data_parallel_rank", "attn_dp_rank":
				field = 2
			}
			if p, err = b.part(field, p); err != nil {
				return err
			}
		}
		if !told {
			return BadLayout
		}
		return nil
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n < 2 || n > maxFields {
		return BadLayout
	}
	for i := range int(n) {
		if p, err = b.part(i, p); err != nil {
			return err
		}
	}
	return nil
}

func (b *Batch) part(field int, p []byte) (_ []byte, err error) {
	switch field {
	case 0:
		b.Time, p, err = number(p)
		return p, err
	case 1:
		return b.events(p)
	case 2:
		if isNil(p) {
			return p[1:], nil
		}
		var rank int64
		rank, p, err = msgp.ReadInt64Bytes(p)
		if err == nil && (rank < -1 || rank > math.MaxInt32) {
			err = BadLayout
		}
		b.Rank = int(rank)
		return p, err
	}
	return skip(p)
}

func (b *Batch) events(p []byte) ([]byte, error) {
	b.Events, b.Rejected = b.Events[:0], b.Rejected[:0] // a map may say it twice
	n, p, err := count(p, MaxEvents)
	if err != nil {
		return p, err
	}
	for range n {
		b.Events = append(b.Events, Event{LoraID: -1, Group: -1, Medium: "gpu"})
		ev := &b.Events[len(b.Events)-1]
		rest, bad := b.event(ev, p)
		if bad == nil {
			p = rest
			continue
		}
		b.Events = b.Events[:len(b.Events)-1]
		if p, err = skip(p); err != nil {
			return p, err // there is no next event to be found
		}
		b.Rejected = append(b.Rejected, reasonOf(bad))
	}
	return p, nil
}

// Which parts of an event were told.
const (
	toldHashes = 1 << iota
	toldTokens
	toldSize
)

// The places of a stored event's fields in an array, behind the tag.
const (
	fieldHashes = iota
	fieldParent
	fieldTokens
	fieldSize
	fieldLoraID
	fieldMedium
	fieldLoraName
	fieldExtras
	fieldGroup
	fieldSpecKind
	fieldWindow
	fieldOther
	fieldOrigin // in maps alone: its place in an array is not known
)

// removedFields are a removed event's.
var removedFields = [...]int{fieldHashes, fieldMedium, fieldGroup}

func fieldOf(name []byte) int {
	switch string(name) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldSize
	case "lora_id":
		return fieldLoraID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoraName
	case "extra_keys":
		return fieldExtras
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "kv_cache_spec_sliding_window", "window":
		return fieldWindow
	case "origin":
		return fieldOrigin
	}
	return fieldOther
}

func kindOf(name []byte) Kind {
	switch string(name) {
	case "BlockStored":
		return BlockStored
	case "BlockRemoved":
		return BlockRemoved
	case "AllBlocksCleared":
		return AllBlocksCleared
	}
	return 0
}

// event reads one event in either form.
func (b *Batch) event(ev *Event, p []byte) (_ []byte, err error) {
	told := 0
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		var n uint32
		if n, p, err = msgp.ReadArrayHeaderBytes(p); err != nil || n < 1 || n > maxFields {
			return p, BadLayout
		}
		var tag []byte
		if tag, p, err = msgp.ReadStringZC(p); err != nil {
			return p, err
		}
		if ev.Kind = kindOf(tag); ev.Kind == 0 {
			return p, UnknownKind
		}
		for i := range int(n) - 1 {
			field := fieldOther
			switch {
			case ev.Kind == BlockStored:
				field = min(i, fieldOther)
			case ev.Kind == BlockRemoved && i < len(removedFields):
				field = removedFields[i]
			}
			if p, err = b.field(ev, field, p, &told); err != nil {
				return p, err
			}
		}
	case msgp.MapType:
		var n uint32
		if n, p, err = msgp.ReadMapHeaderBytes(p); err != nil || n > maxFields {
			return p, BadLayout
		}
		for range n {
			var name []byte
			if name, p, err = msgp.ReadStringZC(p); err != nil {
				return p, err
			}
			if string(name) == "type" {
				var tag []byte
				if tag, p, err = msgp.ReadStringZC(p); err != nil {
					return p, err
				}
				if ev.Kind = kindOf(tag); ev.Kind == 0 {
					return p, UnknownKind
				}
				continue
			}
			if p, err = b.field(ev, fieldOf(name), p, &told); err != nil {
				return p, err
			}
		}
	default:
		return p, BadLayout
	}
	switch ev.Kind {
	case 0:
		return p, UnknownKind
	case BlockStored:
		if told&toldTokens == 0 {
			return p, MissingTokens
		}
		if told != toldHashes|toldTokens|toldSize {
			return p, BadLayout
		}
		if n := len(ev.Extras); n > 0 && ev.Extras[n-1].Block >= len(ev.Hashes) {
			return p, BadLayout // of a block that there is not
		}
	case BlockRemoved:
		if told&toldHashes == 0 {
			return p, BadLayout
		}
	}
	return p, nil
}

// field reads one field of an event. Nil is as good as not told.
func (b *Batch) field(ev *Event, field int, p []byte, told *int) (_ []byte, err error) {
	if isNil(p) {
		return p[1:], nil
	}
	var n int64
	switch field {
	case fieldHashes:
		*told |= toldHashes
		ev.Hashes, p, err = b.readHashes(p)
	case fieldParent:
		ev.HasParent = true
		ev.Parent, p, err = hash(p)
	case fieldTokens:
		*told |= toldTokens
		ev.Tokens, p, err = b.readTokens(p)
	case fieldSize:
		*told |= toldSize
		n, p, err = small(p, 0)
		ev.BlockSize = int(n)
	case fieldLoraID:
		ev.LoraID, p, err = msgp.ReadInt64Bytes(p)
	case fieldMedium:
		ev.Medium, p, err = b.name(p)
		if ev.Medium = lower(ev.Medium); ev.Medium == "" {
			ev.Medium = "gpu"
		}
	case fieldLoraName:
		ev.LoraName, p, err = b.name(p)
	case fieldExtras:
		ev.Extras, p, err = b.readExtras(p)
	case fieldGroup:
		n, p, err = small(p, -1)
		ev.Group = int(n)
	case fieldSpecKind:
		ev.SpecKind, p, err = b.name(p)
	case fieldWindow:
		n, p, err = small(p, 0)
		ev.Window = int(n)
	case fieldOrigin:
		var origin string
		if msgp.NextType(p) != msgp.StrType {
			return skip(p)
		}
		origin, p, err = b.name(p)
		ev.Reused = strings.EqualFold(origin, "reused")
	default:
		p, err = skip(p)
	}
	return p, err
}

func (b *Batch) readHashes(p []byte) ([]uint64, []byte, error) {
	n, p, err := count(p, MaxBlocks)
	if err != nil {
		return nil, p, err
	}
	start := len(b.hashes)
	for range n {
		var h uint64
		if h, p, err = hash(p); err != nil {
			return nil, p, err
		}
		b.hashes = append(b.hashes, h)
	}
	return b.hashes[start:len(b.hashes):len(b.hashes)], p, nil
}

func (b *Batch) readTokens(p []byte) ([]uint32, []byte, error) {
	n, p, err := count(p, MaxTokens)
	if err != nil {
		return nil, p, err
	}
	start := len(b.tokens)
	for range n {
		var t uint32
		switch { // what nearly all are, by hand
		case len(p) > 2 && p[0] == 0xcd:
			t, p = uint32(binary.BigEndian.Uint16(p[1:])), p[3:]
		case len(p) > 0 && p[0] < 0x80:
			t, p = uint32(p[0]), p[1:]
		default:
			if t, p, err = msgp.ReadUint32Bytes(p); err != nil {
				return nil, p, err
			}
		}
		b.tokens = append(b.tokens, t)
	}
	return b.tokens[start:len(b.tokens):len(b.tokens)], p, nil
}

// readExtras reads a list with an entry for each block: nil, a key, or a list of keys.
func (b *Batch) readExtras(p []byte) ([]Extra, []byte, error) {
	n, p, err := count(p, MaxBlocks)
	if err != nil {
		return nil, p, err
	}
	start := len(b.extras)
	for block := range n {
		switch {
		case isNil(p):
			p = p[1:]
			continue
		case msgp.NextType(p) != msgp.ArrayType:
			p, err = b.extra(block, p)
		default:
			var keys int
			if keys, p, err = count(p, MaxExtras); err != nil {
				return nil, p, err
			}
			for range keys {
				if p, err = b.extra(block, p); err != nil {
					break
				}
			}
		}
		if err != nil {
			return nil, p, err
		}
	}
	return b.extras[start:len(b.extras):len(b.extras)], p, nil
}

// extra reads a key: text, bytes, or a pair of such and a number; anything else is kept as it came.
func (b *Batch) extra(block int, p []byte) ([]byte, error) {
	after, err := skip(p)
	if err != nil {
		return p, err
	}
	raw := p[:len(p)-len(after)]
	if len(raw) > maxText {
		return p, TooLarge
	}
	if len(b.extras) >= MaxExtras {
		return p, TooLarge
	}
	x := Extra{Block: block}
	if text, ok := bytesOf(raw); ok {
		x.Text = text
	} else {
		x.Text, x.Offset, x.HasOffset = pair(raw)
		if !x.HasOffset {
			x.Text, x.Opaque = raw, true
		}
	}
	b.extras = append(b.extras, x)
	return after, nil
}

func pair(raw []byte) (text []byte, offset int64, ok bool) {
	n, p, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil || n != 2 {
		return nil, 0, false
	}
	after, err := skip(p)
	if err != nil {
		return nil, 0, false
	}
	if text, ok = bytesOf(p[:len(p)-len(after)]); !ok {
		return nil, 0, false
	}
	offset, _, err = msgp.ReadInt64Bytes(after)
	return text, offset, err == nil
}

// bytesOf is the content of text or bytes.
func bytesOf(raw []byte) ([]byte, bool) {
	var text []byte
	var err error
	switch msgp.NextType(raw) {
	case msgp.StrType:
		text, _, err = msgp.ReadStringZC(raw)
	case msgp.BinType:
		text, _, err = msgp.ReadBytesZC(raw)
	default:
		return nil, false
	}
	return text, err == nil
}

// name reads a text that comes again and again, which is remembered.
func (b *Batch) name(p []byte) (string, []byte, error) {
	text, p, err := msgp.ReadStringZC(p)
	if err != nil {
		return "", p, err
	}
	if len(text) > maxText {
		return "", p, TooLarge
	}
	return b.remember(text), p, nil
}

func (b *Batch) remember(text []byte) string {
	if s, ok := b.names[string(text)]; ok {
		return s
	}
	if b.names == nil || len(b.names) >= maxNames {
		b.names = map[string]string{}
	}
	s := string(text)
	b.names[s] = s
	return s
}

func (b *Batch) setTopic(topic []byte) {
	b.Topic = ""
	if len(topic) <= maxText {
		b.Topic = b.remember(topic)
	}
}

// lower is strings.ToLower that does not allocate for the media that there are.
func lower(s string) string {
	switch s {
	case "GPU":
		return "gpu"
	case "CPU":
		return "cpu"
	case "DISK":
		return "disk"
	case "STORAGE":
		return "storage"
	}
	return strings.ToLower(s)
}

func hash(p []byte) (uint64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.UintType:
		return msgp.ReadUint64Bytes(p)
	case msgp.IntType:
		n, p, err := msgp.ReadInt64Bytes(p)
		return uint64(n), p, err
	case msgp.BinType:
		text, p, err := msgp.ReadBytesZC(p)
		switch {
		case err != nil:
			return 0, p, err
		case len(text) == 0 || len(text) > maxText:
			return 0, p, BadLayout
		case len(text) >= 8:
			return binary.BigEndian.Uint64(text[len(text)-8:]), p, nil
		}
		var wide [8]byte
		copy(wide[8-len(text):], text)
		return binary.BigEndian.Uint64(wide[:]), p, nil
	}
	return 0, p, BadLayout
}

// number reads a time, which may be whole.
func number(p []byte) (float64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.Float64Type:
		return msgp.ReadFloat64Bytes(p)
	case msgp.Float32Type:
		f, p, err := msgp.ReadFloat32Bytes(p)
		return float64(f), p, err
	case msgp.NilType:
		return 0, p[1:], nil
	}
	n, p, err := msgp.ReadInt64Bytes(p)
	return float64(n), p, err
}

// small reads a number from least to 2³¹.
func small(p []byte, least int64) (int64, []byte, error) {
	n, p, err := msgp.ReadInt64Bytes(p)
	if err == nil && (n < least || n > math.MaxInt32) {
		err = BadLayout
	}
	return n, p, err
}

// count reads the length of an array. Each element takes a byte at least, so a length beyond what follows is a lie.
func count(p []byte, most int) (int, []byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	switch {
	case err != nil:
		return 0, p, err
	case int64(n) > int64(most):
		return 0, p, TooLarge
	case int64(n) > int64(len(p)):
		return 0, p, BadLayout
	}
	return int(n), p, nil
}

func isNil(p []byte) bool { return len(p) > 0 && p[0] == 0xc0 }

// skip steps over one value, however deep, without a stack: what nests is only counted.
func skip(p []byte) ([]byte, error) {
	for open := uint64(1); open > 0; open-- {
		var n uint32
		var err error
		switch msgp.NextType(p) {
		case msgp.ArrayType:
			n, p, err = msgp.ReadArrayHeaderBytes(p)
			open += uint64(n)
		case msgp.MapType:
			n, p, err = msgp.ReadMapHeaderBytes(p)
			open += 2 * uint64(n)
		default:
			p, err = msgp.Skip(p)
		}
		if err != nil {
			return p, BadLayout
		}
		if open-1 > uint64(len(p)) {
			return p, BadLayout
		}
	}
	return p, nil
}
