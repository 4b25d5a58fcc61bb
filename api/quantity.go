// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Quantity is a whole number, written as Kubernetes writes quantities: 500, "1k", "10Gi", 1e9.
type Quantity int64

// Sizes that defaults are made of.
const (
	Ki Quantity = 1 << 10
	Mi Quantity = 1 << 20
	Gi Quantity = 1 << 30
)

var suffixes = []struct {
	name   string
	factor int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50}, {"Ei", 1 << 60},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"E", 1e18}, {"", 1},
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (q *Quantity) UnmarshalText(text []byte) error {
	s := string(text)
	bad := fmt.Errorf(`want a quantity such as 500, "1k" or "10Gi", got %q`, s)
	if len(s) > 40 || strings.ContainsAny(s, "_xXpPnN ") && !strings.HasSuffix(s, "P") && !strings.HasSuffix(s, "Pi") {
		return bad
	}
	for _, x := range suffixes {
		digits, ok := strings.CutSuffix(s, x.name)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
			if n > math.MaxInt64/x.factor || n < math.MinInt64/x.factor {
				return fmt.Errorf("%s is more than 2^63", s)
			}
			*q = Quantity(n * x.factor)
			return nil
		}
		f, err := strconv.ParseFloat(digits, 64)
		if err != nil || strings.ContainsAny(digits, "_xXpPnNiI") {
			return bad
		}
		f = math.Ceil(f * float64(x.factor))
		if math.Abs(f) >= 1<<63 {
			return fmt.Errorf("%s is more than 2^63", s)
		}
		*q = Quantity(f)
		return nil
	}
	return bad
}

// String renders the quantity with the largest binary suffix that keeps it whole.
func (q Quantity) String() string {
	for i := 5; i >= 0; i-- {
		if f := Quantity(suffixes[i].factor); q != 0 && q%f == 0 {
			return strconv.FormatInt(int64(q/f), 10) + suffixes[i].name
		}
	}
	return strconv.FormatInt(int64(q), 10)
}

// Duration is a time span, written as in Go: 60s, 1m30s, 250ms.
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("want a duration such as 60s or 250ms, got %q", text)
	}
	*d = Duration(t)
	return nil
}

// String renders the duration as Go does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements [encoding.TextMarshaler], so that it is shown as it is written.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
