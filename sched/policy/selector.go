// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
)

// parseSelector reads a label selector in a line, as kubectl takes it: terms k, !k, k=v, k==v, k!=v, k in (v,w) and
// k notin (v,w), with commas between them, which must all hold.
func parseSelector(s string) (*LabelSelectorFilter, error) {
	out := &LabelSelectorFilter{}
	for len(s) > 0 || len(out.MatchExpressions) == 0 {
		term, rest, more := cutTerm(s)
		r, err := parseTerm(strings.TrimSpace(term))
		if err != nil {
			return nil, err
		}
		out.MatchExpressions = append(out.MatchExpressions, r)
		if more && strings.TrimSpace(rest) == "" {
			return nil, errors.New("ends with a comma")
		}
		s = rest
	}
	return out, nil
}

// cutTerm cuts at the first comma outside of parentheses.
func cutTerm(s string) (term, rest string, more bool) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth <= 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return s, "", false
}

func parseTerm(term string) (r Requirement, err error) {
	equals := func(sign, op string) bool {
		k, v, ok := strings.Cut(term, sign)
		r = Requirement{Key: strings.TrimSpace(k), Operator: op, Values: []string{strings.TrimSpace(v)}}
		return ok
	}
	head, set, listed := strings.Cut(term, "(")
	switch f := strings.Fields(head); {
	case listed:
		ops := map[string]string{"in": "In", "notin": "NotIn"}
		set, closed := strings.CutSuffix(set, ")")
		if len(f) != 2 || ops[f[1]] == "" || !closed {
			return r, fmt.Errorf("%q: want key in (value, …) or key notin (value, …)", term)
		}
		r = Requirement{Key: f[0], Operator: ops[f[1]]}
		for v := range strings.SplitSeq(set, ",") {
			r.Values = append(r.Values, strings.TrimSpace(v))
		}
	case equals("!=", "NotIn"), equals("==", "In"), equals("=", "In"):
	case strings.HasPrefix(term, "!"):
		r = Requirement{Key: strings.TrimSpace(term[1:]), Operator: "DoesNotExist"}
	default:
		r = Requirement{Key: term, Operator: "Exists"}
	}
	if r.Key == "" || strings.ContainsAny(r.Key, " \t=!()") {
		return r, fmt.Errorf("%q: want key=value, key!=value, key in (value, …), key or !key", term)
	}
	for _, v := range r.Values {
		if strings.ContainsAny(v, " \t=!()") {
			return r, fmt.Errorf("%q: %q is no label's value", term, v)
		}
	}
	return r, nil
}
