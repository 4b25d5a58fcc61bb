// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/api"
	"github.com/penstock-project/penstock/plugin"
)

// decoder writes a tree into Go values by their json tags. It is strict, keeps what is not
// mentioned as it was (so defaults are what the value holds before), and goes on after a
// problem to report them all.
//
// A type with UnmarshalText takes any scalar; if it is a struct with tagged fields it may also
// be written as an object.
type decoder struct {
	file   string
	report func(Problem)
	// wrong and unknown are the severities of wrong values and of unknown fields.
	wrong, unknown Severity
}

// strict decodes n into the struct v points to.
func strict(n *yaml.Node, file, path string, v any, report func(Problem)) {
	d := decoder{file: file, report: report, wrong: Error, unknown: Error}
	d.value(n, reflect.ValueOf(v).Elem(), path)
}

func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	d.report(Problem{Severity: d.wrong, File: d.file, Line: n.Line, Path: path, Text: fmt.Sprintf(format, args...)})
}

var (
	rawType      = reflect.TypeFor[api.Raw]()
	durationType = reflect.TypeFor[time.Duration]()
)

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	switch {
	case isNull(n):
		return
	case v.Type() == rawType:
		v.Set(reflect.ValueOf(api.Raw{Node: n}))
		return
	case v.Type() == durationType:
		d.text(n, v, (*api.Duration)(v.Addr().Interface().(*time.Duration)), path)
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, v.Elem(), path)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		object := v.Kind() == reflect.Struct && n.Kind == yaml.MappingNode && len(fieldsOf(v.Type())) > 0
		if !object {
			d.text(n, v, u, path)
			return
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(n, v, path)
	case reflect.Map:
		d.table(n, v, path)
	case reflect.Slice:
		d.list(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

func (d *decoder) text(n *yaml.Node, v reflect.Value, u encoding.TextUnmarshaler, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "want a single value, got %s", got(n))
		return
	}
	if err := u.UnmarshalText([]byte(n.Value)); err != nil {
		d.fail(n, path, "%v", err)
	}
}

func (d *decoder) object(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "want an object, got %s", got(n))
		return
	}
	fields := fieldsOf(v.Type())
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := join(path, key.Value)
		f, ok := find(fields, key.Value)
		if !ok {
			d.report(Problem{Severity: d.unknown, File: d.file, Line: key.Line, Path: at, Text: unknownField(key.Value, fields)})
			continue
		}
		d.value(n.Content[i+1], v.FieldByIndex(f.index), at)
	}
}

func unknownField(name string, fields []tagged) string {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.name)
	}
	if len(names) == 0 {
		return "unknown field: this takes none"
	}
	if near := plugin.Nearest(name, names); near != "" {
		return "unknown field: did you mean " + near + "?"
	}
	switch {
	case len(names) == 1:
		return "unknown field: want " + names[0]
	case len(names) > 12:
		return "unknown field"
	}
	return "unknown field: want one of " + strings.Join(names, ", ")
}

func (d *decoder) table(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "want an object, got %s", got(n))
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(n.Content[i+1], e, join(path, n.Content[i].Value))
		m.SetMapIndex(reflect.ValueOf(n.Content[i].Value).Convert(v.Type().Key()), e)
	}
	v.Set(m)
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "want a list, got %s", got(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, c := range n.Content {
		at := index(path, i)
		if isNull(c) && s.Index(i).Kind() != reflect.Pointer {
			d.fail(c, at, "is empty")
		}
		d.value(c, s.Index(i), at)
	}
	v.Set(s)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	ok, want := false, ""
	switch v.Kind() {
	case reflect.String:
		want = "text"
		if ok = n.Kind == yaml.ScalarNode && n.Tag != "!!bool" && n.Tag != "!!int" && n.Tag != "!!float"; ok {
			v.SetString(n.Value)
		}
	case reflect.Bool:
		var b bool
		want = "true or false"
		if ok = plainScalar(n) && n.Decode(&b) == nil; ok {
			v.SetBool(b)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		var i int64
		want = "a whole number"
		if i, ok = whole(n); ok && v.OverflowInt(i) {
			ok, want = false, "a smaller number"
		}
		if ok {
			v.SetInt(i)
		}
	case reflect.Float32, reflect.Float64:
		var f float64
		want = "a number"
		if ok = plainScalar(n) && n.Tag != "!!bool" && n.Decode(&f) == nil && !math.IsNaN(f) && !math.IsInf(f, 0); ok {
			v.SetFloat(f)
		}
	case reflect.Interface:
		var x any
		want = "a value"
		if ok = v.NumMethod() == 0 && n.Decode(&x) == nil && x != nil; ok {
			v.Set(reflect.ValueOf(x))
		}
	default:
		want = "nothing"
	}
	if !ok {
		d.fail(n, path, "want %s, got %s%s", want, got(n), quotes(n, v.Kind()))
	}
}

// plainScalar reports a scalar written without quotes.
func plainScalar(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// whole reads an integer, or a float without a fraction such as 1e3.
func whole(n *yaml.Node) (int64, bool) {
	if !plainScalar(n) || n.Tag != "!!int" && n.Tag != "!!float" {
		return 0, false
	}
	var i int64
	if n.Tag == "!!int" {
		return i, n.Decode(&i) == nil
	}
	var f float64
	if n.Decode(&f) != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// got describes what was written.
func got(n *yaml.Node) string {
	switch {
	case isNull(n):
		return "nothing"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "an object"
	case n.Tag == "!!bool" || n.Tag == "!!int" || n.Tag == "!!float":
		return short(n.Value)
	}
	return strconv.Quote(short(n.Value))
}

// quotes is advice for a value whose only fault is that it has, or lacks, quotes.
func quotes(n *yaml.Node, want reflect.Kind) string {
	if n.Kind != yaml.ScalarNode {
		return ""
	}
	if want == reflect.String {
		return ": write it in quotes"
	}
	bare := yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}
	if plainScalar(n) || n.Value == "" {
		return ""
	}
	switch tag := bare.ShortTag(); {
	case want == reflect.Bool && tag == "!!bool", want != reflect.Bool && (tag == "!!int" || tag == "!!float"):
		return ": write it without quotes"
	}
	return ""
}

// short cuts what would flood a message.
func short(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}

// tagged is a field that can be written in a document.
type tagged struct {
	name  string
	index []int
}

func find(fields []tagged, name string) (tagged, bool) {
	for _, f := range fields {
		if f.name == name {
			return f, true
		}
	}
	return tagged{}, false
}

// fieldsOf lists the fields of a struct that have a json tag, those of embedded structs included.
func fieldsOf(t reflect.Type) []tagged {
	var fields []tagged
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || !f.IsExported() {
			continue
		}
		fields = append(fields, tagged{name, f.Index})
	}
	return fields
}
