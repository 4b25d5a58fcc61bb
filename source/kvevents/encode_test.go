// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// samples are events as a simulated engine publishes them, and all others that there can be.
func samples() []Event {
	full := Event{Kind: BlockStored, Hashes: []uint64{1, 1 << 63}, Tokens: []uint32{1, 200, 70000, 0xff000001}, BlockSize: 2,
		LoraID: -1, Medium: "gpu", Group: 0, SpecKind: "full_attention"}
	child := full
	child.Parent, child.HasParent = 1<<63, true
	adapter := child
	adapter.LoraID, adapter.LoraName = 1, "poet"
	adapter.Extras = []Extra{{Block: 0, Text: []byte("poet")}, {Block: 0, Text: []byte("salt")}, {Block: 1, Text: []byte("poet")}}
	image := full
	image.Extras = []Extra{{Block: 1, Text: []byte("picture"), Offset: -3, HasOffset: true}, {Block: 1, Text: []byte{0xff, 0x00}}}
	image.SpecKind, image.Window, image.Group = "sliding_window", 4096, 3
	old := full
	old.Group, old.SpecKind, old.Medium = -1, "", "cpu"
	many := full
	many.Hashes, many.Tokens = slices.Repeat(full.Hashes, 700), slices.Repeat(full.Tokens, 700)
	return []Event{full, child, adapter, image, old, many,
		{Kind: BlockRemoved, Hashes: []uint64{7}, LoraID: -1, Medium: "gpu", Group: 0},
		{Kind: BlockRemoved, Hashes: []uint64{7, 1 << 40}, LoraID: -1, Medium: "storage", Group: -1},
		{Kind: AllBlocksCleared, LoraID: -1, Medium: "gpu", Group: -1},
	}
}

func TestEncode(t *testing.T) {
	for _, rank := range []int{-1, 0, 3} {
		for _, layout := range []Layout{Maps, Arrays} {
			want := Batch{Time: 1.5, Rank: rank, Events: samples()}
			var got Batch
			if err := got.Decode(want.Append(nil, layout)); err != nil {
				t.Fatal(err)
			}
			if got.String() != want.String() {
				t.Errorf("layout %d: got\n%swant\n%s", layout, got.String(), want.String())
			}
			for i := range want.Events {
				if again := got.Events[i].Append(nil, layout); !bytes.Equal(again, want.Events[i].Append(nil, layout)) {
					t.Errorf("layout %d: %v differs when written again", layout, &want.Events[i])
				}
			}
		}
	}
}

// msgspec itself, with vLLM's declarations, reads what we write and writes the very same.
func TestEncodeAsMsgspec(t *testing.T) {
	python := pythonOf(t)
	cmd := exec.Command(python, "testdata/msgspec_events.py")
	b := Batch{Time: 1792000000.25, Rank: 0, Events: samples()}
	want := b.Append(nil, Maps)
	b.Rank = -1
	old := b.Append(nil, Arrays)
	cmd.Stdin = strings.NewReader(hex.EncodeToString(want) + "\n" + hex.EncodeToString(old) + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, want := string(out), fmt.Sprintf("%x\n%x\n", want, old); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestEncodeAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	events := samples()
	p := make([]byte, 0, 1<<16)
	if n := testing.AllocsPerRun(100, func() {
		p = p[:0]
		for i := range events {
			if events[i].Medium == "gpu" {
				p = events[i].Append(p, Maps)
			}
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// A replay has the newest messages, as many and as much as may be kept; a lost one is in it, too.
func TestPublisherKeeps(t *testing.T) {
	p := &Publisher{Keep: 3, KeepBytes: 10}
	kept := func() string {
		var s []string
		for _, m := range p.buffer {
			s = append(s, fmt.Sprint(m.seq))
		}
		return strings.Join(s, " ")
	}
	seq := uint64(0)
	for _, one := range []struct {
		bytes int
		want  string
	}{{4, "0"}, {4, "0 1"}, {2, "0 1 2"}, {1, "1 2 3"}, {9, "3 4"}, {11, ""}, {1, "6"}} {
		p.Lose(seq, make([]byte, one.bytes))
		seq++
		if got := kept(); got != one.want {
			t.Errorf("after %d bytes: got %q, want %q", one.bytes, got, one.want)
		}
	}
	p.Close()
	p.Reopen()
	if got := kept(); got != "" {
		t.Errorf("another process keeps %q", got)
	}
}

// A subscriber that reads nothing holds nobody up, and loses what its queue cannot take.
func TestPublisherQueue(t *testing.T) {
	p := &Publisher{Queue: 2}
	s := &subscriber{filters: map[string]bool{"kv@": true}, news: make(chan struct{}, 1)}
	p.peers = map[*subscriber]bool{s: true}
	for seq := range uint64(5) {
		p.SendParts([]byte("kv@a"), binary.BigEndian.AppendUint64(nil, seq), nil)
		p.SendParts([]byte("other"), nil, nil)
	}
	if len(s.queue) != 2 || s.queue[1][1][7] != 1 {
		t.Errorf("got %d messages %v, want the first two", len(s.queue), s.queue)
	}
}
