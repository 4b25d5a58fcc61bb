// SPDX-License-Identifier: Apache-2.0

package work

import "time"

// mixture runs several workloads as one. It numbers the requests anew.
type mixture struct {
	name  string
	parts []Workload
	heads []*Request // the next of each that begins by itself, nil at its end
	total int
	index int
}

func newMixture(name string, list []Workload, parts []part) *mixture {
	m := &mixture{name: name, parts: list, heads: make([]*Request, len(list))}
	expect := map[int]int{} // by budget
	for i, w := range list {
		expect[parts[i].budget] += w.Total()
		m.fill(i)
	}
	counted := map[int]bool{}
	for _, p := range parts {
		n := expect[p.budget]
		if p.requests > 0 && (n == 0 || n > p.requests) {
			n = p.requests
		}
		if !counted[p.budget] {
			m.total += n
		}
		counted[p.budget] = true
	}
	return m
}

func (m *mixture) fill(i int) { m.heads[i], _ = m.parts[i].Next() }

func (m *mixture) Name() string { return m.name }
func (m *mixture) Total() int   { return m.total }

func (m *mixture) Err() error {
	for _, w := range m.parts {
		if err := w.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Next implements [Workload].
func (m *mixture) Next() (*Request, bool) {
	first := -1
	for i, r := range m.heads {
		if r != nil && (first < 0 || r.At < m.heads[first].At) {
			first = i
		}
	}
	if first < 0 {
		return nil, false
	}
	r := m.heads[first]
	m.fill(first)
	m.number(r, first)
	return r, true
}

func (m *mixture) number(r *Request, part int) {
	r.part, r.Index = part, m.index
	m.index++
	if r.Session >= 0 {
		r.Session = r.Session*len(m.parts) + part
	}
}

// Ended implements [Workload].
func (m *mixture) Ended(r *Request, at time.Duration, ok bool) []*Request {
	if r.part < 0 || r.part >= len(m.parts) {
		return nil
	}
	after := m.parts[r.part].Ended(r, at, ok)
	for _, f := range after {
		m.number(f, r.part)
	}
	return after
}
