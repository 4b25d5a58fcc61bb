// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// Extra keys take much more memory than bytes on the wire, so all events together may have only so many.
func TestExtrasAreBounded(t *testing.T) {
	p := msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 0), 9)
	for range 9 {
		p = msgp.AppendString(msgp.AppendArrayHeader(p, 9), "BlockStored")
		p = msgp.AppendInt(msgp.AppendArrayHeader(p, 1), 1)
		p = msgp.AppendNil(p)
		p = msgp.AppendInt(msgp.AppendArrayHeader(p, 1), 1)
		p = msgp.AppendInt(p, 1)
		for range 3 {
			p = msgp.AppendNil(p)
		}
		p = msgp.AppendArrayHeader(msgp.AppendArrayHeader(p, 1), MaxExtras/4)
		for range MaxExtras / 4 {
			p = msgp.AppendInt(p, 0)
		}
	}
	var b Batch
	if err := b.Decode(p); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 4 || len(b.Rejected) != 5 || b.Rejected[0] != TooLarge || cap(b.extras) > 2*MaxExtras {
		t.Errorf("%d events and rejected %v, with room for %d", len(b.Events), b.Rejected, cap(b.extras))
	}
}
