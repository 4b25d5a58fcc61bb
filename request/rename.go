// SPDX-License-Identifier: Apache-2.0

package request

import "unicode/utf8"

// Renames reports whether the body can be made to ask for another model: it is one JSON object
// whose model is a string, a literal such as null, or not there.
func (f *Facts) Renames() bool { return f.Typed && f.named == len(f.models) }

// Named reports whether the body says a model, be it null.
func (f *Facts) Named() bool { return f.named > 0 }

// Rename splices a model's name into the body that the facts are of: instead of every value of
// the top-level key, since engines take the last of equal keys and others the first, or as the
// first key when there is none. All other bytes stay. Without Renames it does nothing.
func (f *Facts) Rename(b *Body, model string) error {
	if !f.Renames() {
		return nil
	}
	if f.named == 0 {
		with := AppendString([]byte(`"model":`), model)
		if !f.nothing {
			with = append(with, ',')
		}
		return b.Splice(Span{Off: f.begin}, with)
	}
	with := AppendString(nil, model)
	for _, s := range f.models {
		if err := b.Splice(s, with); err != nil {
			return err
		}
	}
	return nil
}

// AppendString appends s as a JSON string. What is no UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte {
	return append(appendContent(append(b, '"'), s), '"')
}

// appendContent appends what stands between the quotes.
func appendContent(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		case r < utf8.RuneSelf:
			b = append(b, s[i])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}
