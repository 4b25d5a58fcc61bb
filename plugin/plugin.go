// SPDX-License-Identifier: Apache-2.0

// Package plugin answers: which value do a name and a configuration make?
//
// A [Set] holds constructors by type name. There is no registry: whoever wires the program
// passes the sets around. [Catalogue] lists every plugin type of the field, whether or not a
// constructor for it exists yet.
package plugin

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Set maps the type name of a plugin to its constructor. A constructor returns a pointer to a
// value that holds the defaults.
type Set[T any] map[string]func() T

// Join is the union of sets. No type is in two of them.
func Join[T any](sets ...Set[T]) Set[T] {
	all := Set[T]{}
	for _, s := range sets {
		maps.Copy(all, s)
	}
	return all
}

// Names lists the type names, sorted.
func (s Set[T]) Names() []string { return slices.Sorted(maps.Keys(s)) }

// New makes a value of that type: the constructor gives the defaults, decode (nil for none)
// writes the parameters over them, and a method Validate() error has the last word.
func (s Set[T]) New(name string, decode func(any) error) (T, error) {
	var none T
	construct, ok := s[name]
	if !ok {
		return none, Unknown(name, s.Names())
	}
	v := construct()
	if decode != nil {
		if err := decode(v); err != nil {
			return none, err
		}
	}
	if c, ok := any(v).(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			return none, err
		}
	}
	return v, nil
}

// Unknown is the error for a plugin type that is not among known; it suggests the nearest.
func Unknown(name string, known []string) error {
	if name == "" {
		return errors.New("no plugin type given")
	}
	if n := Nearest(name, known); n != "" {
		return fmt.Errorf("unknown plugin type %q: did you mean %s?", name, n)
	}
	return fmt.Errorf("unknown plugin type %q", name)
}
