// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"time"
)

// fair says how evenly tenants were served, by windows of time. In a window a tenant got some service, and
// was left with some that it wanted; the share of the window in which a request was open is the share of
// the request that counts as left, so that one which came late in a window is not held against it.
type fair struct {
	step    time.Duration
	most    int
	windows int
	got     [][]float64 // by tenant and window
	left    [][]float64
}

// window doubles the step until at fits, and returns its index.
func (f *fair) window(at time.Duration) int {
	for int(at/f.step) >= f.most {
		for t := range f.got {
			f.got[t] = halve(f.got[t])
			f.left[t] = later(f.left[t])
		}
		f.windows = (f.windows + 1) / 2
		f.step *= 2
	}
	return int(at / f.step)
}

// later keeps the second of each two neighbours: what is left at the end of both.
func later(s []float64) []float64 {
	for i := range (len(s) + 1) / 2 {
		s[i] = s[min(2*i+1, len(s)-1)]
	}
	return s[:(len(s)+1)/2]
}

// add counts a request of a tenant that was sent, got its first token (prefill tokens of service) and ended
// (output tokens of service, evenly since the first), or wanted that service and did not get it.
func (f *fair) add(tenant int, sent, first, end time.Duration, prefill, output float64, served bool) {
	sent = max(0, sent)
	first, end = max(first, sent), max(end, first, sent)
	to := f.window(end)
	from := f.window(sent)
	f.windows = max(f.windows, to+1)
	for tenant >= len(f.got) {
		f.got, f.left = append(f.got, nil), append(f.left, nil)
	}
	f.got[tenant], f.left[tenant] = reach(f.got[tenant], to), reach(f.left[tenant], to)
	open := prefill + output
	for w := from; w <= to; w++ {
		start, stop := time.Duration(w)*f.step, time.Duration(w+1)*f.step
		if served {
			got := 0.0
			if first >= start && first < stop {
				got = prefill
			}
			if span := end - first; span > 0 {
				if in := min(end, stop) - max(first, start); in > 0 {
					got += output * float64(in) / float64(span)
				}
			} else if end >= start && end < stop {
				got += output
			}
			f.got[tenant][w] += got
			open -= got
		}
		part := float64(min(end, stop)-max(sent, start)) / float64(f.step)
		f.left[tenant][w] += max(0, open) * part
	}
}

// jain is the mean over the windows with service, weighted by it, of Jain's index (Σx)²/(n·Σx²), where x is
// what a tenant got divided by its max-min fair share of what all got; n counts the tenants that wanted
// something. 1 is fair, 1/n is all for one. ok is false when no window had two tenants that wanted something.
func (f *fair) jain() (index float64, ok bool) {
	var sum, weight float64
	var got, want, share []float64
	for w := range f.windows {
		got, want = got[:0], want[:0]
		total := 0.0
		for t := range f.got {
			if w >= len(f.got[t]) {
				continue
			}
			if g, d := f.got[t][w], f.got[t][w]+f.left[t][w]; d > 0 {
				got, want = append(got, g), append(want, d)
				total += g
			}
		}
		if len(got) < 2 || total <= 0 {
			continue
		}
		share = maxMin(share[:0], want, total)
		var s, s2 float64
		for i := range got {
			x := got[i] / share[i]
			s += x
			s2 += x * x
		}
		sum += total * s * s / (float64(len(got)) * s2)
		weight += total
	}
	if weight == 0 {
		return 0, false
	}
	return sum / weight, true
}

// maxMin appends each one's fair share of total: nobody gets more than it wants, and what the small leave is
// for the others in equal parts. The wants are above 0 and sum up to at least total.
func maxMin(share, want []float64, total float64) []float64 {
	sorted := slices.Sorted(slices.Values(want))
	level := sorted[len(sorted)-1]
	for i, w := range sorted {
		if each := total / float64(len(sorted)-i); w >= each {
			level = each
			break
		}
		total -= w
	}
	for _, w := range want {
		share = append(share, min(w, level))
	}
	return share
}
