// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"fmt"
	"strings"
)

// Spec names a family of metrics and chooses among its series: name, or name{label=value,…}. The
// zero Spec names none.
type Spec struct {
	Family string
	Where  []Where
}

const (
	maxSpec  = 1024
	maxWhere = 8
)

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Spec) UnmarshalText(text []byte) error {
	spec, err := parseSpec(string(text))
	if err != nil {
		return err
	}
	*s = spec
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s Spec) MarshalText() ([]byte, error) {
	var b strings.Builder
	b.WriteString(s.Family)
	for i, w := range s.Where {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&b, "%s=%q", w.Label, unescape.Replace(w.Value))
	}
	if len(s.Where) > 0 {
		b.WriteByte('}')
	}
	return []byte(b.String()), nil
}

const wantSpec = "want a metric such as name or name{label=value}"

func parseSpec(text string) (Spec, error) {
	if len(text) > maxSpec {
		return Spec{}, fmt.Errorf("%d bytes are too many for a metric, at most %d", len(text), maxSpec)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return Spec{}, nil
	}
	name, labels, has := strings.Cut(text, "{")
	s := Spec{Family: strings.TrimSpace(name)}
	switch {
	case s.Family == "":
		return Spec{}, fmt.Errorf("%q names no metric: %s", text, wantSpec)
	case !isName(s.Family, true):
		return Spec{}, fmt.Errorf("%q is no name of a metric (letters, digits, _ and :): %s", s.Family, wantSpec)
	case strings.HasSuffix(s.Family, "_bucket"):
		return Spec{}, fmt.Errorf("%s is part of a histogram, which is not read: want a gauge or a counter", s.Family)
	case !has:
		return s, nil
	case !strings.HasSuffix(labels, "}"):
		return Spec{}, fmt.Errorf("%q lacks its closing brace: %s", text, wantSpec)
	}
	rest := strings.TrimSpace(strings.TrimSuffix(labels, "}"))
	for rest != "" {
		var w Where
		var err error
		if w, rest, err = parseWhere(rest); err != nil {
			return Spec{}, fmt.Errorf("%q: %w: %s", text, err, wantSpec)
		}
		for _, o := range s.Where {
			if o.Label == w.Label {
				return Spec{}, fmt.Errorf("%q: label %s stands there twice", text, w.Label)
			}
		}
		if s.Where = append(s.Where, w); len(s.Where) > maxWhere {
			return Spec{}, fmt.Errorf("%q: more than %d labels", text, maxWhere)
		}
	}
	return s, nil
}

// parseWhere reads label=value, bare or in quotes, and the comma behind it.
func parseWhere(b string) (w Where, rest string, err error) {
	label, b, ok := strings.Cut(b, "=")
	label = strings.TrimSpace(label)
	switch {
	case !ok:
		return w, "", fmt.Errorf("label %q has no value", label)
	case strings.HasSuffix(label, "!") || strings.HasPrefix(b, "~"):
		return w, "", errors.New("only label=value is possible, no other comparison")
	case !isName(label, false):
		return w, "", fmt.Errorf("%q is no name of a label", label)
	}
	w.Label, b = label, strings.TrimSpace(b)
	if strings.HasPrefix(b, `"`) {
		value, after, ok := quoted([]byte(b))
		after = blanks(after)
		if !ok || len(after) > 0 && after[0] != ',' {
			return w, "", fmt.Errorf("the quotes of label %s do not end", label)
		}
		w.Value, rest = string(value), strings.TrimPrefix(string(after), ",") // as it stands on pages, with escapes
	} else {
		value, after, _ := strings.Cut(b, ",")
		w.Value, rest = escape.Replace(strings.TrimSpace(value)), after
	}
	if w.Value == "" {
		return w, "", fmt.Errorf("label %s has no value", label)
	}
	return w, strings.TrimSpace(rest), nil
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// isName reports a name as Prometheus' text format has them; only those of metrics may have colons.
func isName(s string, colons bool) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == ':' && colons:
		case c >= '0' && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != ""
}
