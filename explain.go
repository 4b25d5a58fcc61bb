// SPDX-License-Identifier: Apache-2.0

package penstock

import (
	"cmp"
	"context"
	"embed"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/plugin"
)

// sources are the files whose comments are the documentation of plugins and kinds, so that nothing is
// written twice.
//
//go:embed sched/policy/*.go flow/policy/*.go api/*.go config/config.go source/scrape/sources.go source/scrape/extractors.go
var sources embed.FS

// field is one parameter of a plugin, or one field of a document.
type field struct {
	Name, Type, Default, Doc string
}

func explain(ctx context.Context, args []string, stdout, _ io.Writer) error {
	fs := flags("explain", "[PLUGIN] | --request ID", "Tells what a plugin does and its parameters; without a name, lists all plugins.\nWith --request, tells why a request went where it went, waited, or was turned away.", stdout)
	var q inquiry
	fs.StringVar(&q.id, "request", "", "tell of the request with this x-request-id; last, slow and failed are the newest ones")
	fs.StringVar(&q.server, "server", "localhost:9090", "metrics address of the gateway, https:// where it has a certificate; $PENSTOCK_SERVER goes before the default")
	fs.StringVar(&q.tokenFile, "token-file", "", "file with a bearer token, for a metrics address that asks for one; without it, $PENSTOCK_TOKEN")
	fs.StringVar(&q.caFile, "ca-file", "", "certificates that signed the server's, for https://; without it, those of this machine")
	fs.StringVar(&q.serverName, "server-name", "", "name that the server's certificate must have, where --server says another, such as that of a forwarded port")
	fs.StringVar(&q.certPath, "cert-path", "", "folder with tls.crt and tls.key to show to a server that asks for a certificate")
	fs.BoolVar(&q.json, "json", false, "print the request's record as JSON")
	fs.BoolVar(&q.all, "all", false, "list each of the request's candidates")
	if err := parse(fs, args); err != nil {
		return err
	}
	if !fs.Changed("server") {
		q.server = cmp.Or(os.Getenv(serverVariable), q.server)
	}
	switch {
	case q.id != "" && fs.NArg() > 0:
		return misused("want a plugin or a request, not both")
	case q.id != "":
		return explainRequest(ctx, q, stdout)
	case fs.Changed("request"):
		return misused("--request: want an id, or last, slow or failed")
	}
	if fs.NArg() == 0 {
		for _, e := range slices.Concat(plugin.Catalogue(), plugin.Own()) {
			fmt.Fprintf(stdout, "%-38s %-20s %s\n", e.Type, e.Roles[0], state(e))
		}
		return nil
	}
	e, ok := plugin.Lookup(fs.Arg(0))
	if !ok {
		return plugin.Unknown(fs.Arg(0), plugin.Types())
	}
	doc, fields, err := describe(e)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s (%s, %s)\n\n%s\n", e.Type, e.Roles[0], state(e), doc)
	if len(fields) > 0 {
		fmt.Fprintln(stdout, "Parameters:")
	}
	for _, f := range fields {
		value := ""
		if f.Default != "" {
			value = ", default " + f.Default
		}
		fmt.Fprintf(stdout, "\n  %s  %s%s\n      %s\n", f.Name, f.Type, value, strings.ReplaceAll(f.Doc, "\n", "\n      "))
	}
	return nil
}

// state tells whether this build acts on a plugin.
func state(e plugin.Entry) string {
	switch {
	case e.ReplacedBy != "":
		return "deprecated, use " + e.ReplacedBy
	case options("").Active(e.Type):
		return string(e.Stability)
	}
	return string(e.Stability) + ", accepted, not active yet"
}

// describe reads a plugin's documentation from the comments at its type. What has no type of its own
// is described by its line in the catalogue.
func describe(e plugin.Entry) (string, []field, error) {
	var v any // with its defaults; whether some parameter is required is no matter here
	enough := errors.New("not validated")
	_, err := construct(e.Type, func(into any) error { v = into; return enough })
	if v == nil {
		return e.Doc + "\n", nil, nil
	}
	if errors.Is(err, enough) {
		err = nil
	}
	t := reflect.TypeOf(v).Elem()
	var doc string
	var fields []field
	for _, dir := range []string{"sched/policy", "flow/policy", "config", "source/scrape"} {
		if doc == "" && err == nil {
			doc, fields, err = documentation(dir, t)
		}
	}
	if err != nil {
		return "", nil, err
	}
	defaults, _ := json.Marshal(v)
	for i := range fields {
		if fields[i].Type == "object" { // its fields have theirs
			continue
		}
		fields[i].Default = defaultOf(defaults, fields[i].Name)
	}
	return strings.Replace(doc, t.Name(), "The "+e.Type, 1), fields, nil
}

// defaultOf finds what stands at a path, such as a.b; nothing of what is in lists.
func defaultOf(text json.RawMessage, path string) string {
	name, rest, deeper := strings.Cut(path, ".")
	var object map[string]json.RawMessage
	_ = json.Unmarshal(text, &object) // of our own text
	switch v := string(object[name]); {
	case deeper:
		return defaultOf(object[name], rest)
	case v == "null" || v == "[]":
		return "none"
	default:
		return v
	}
}

// documentation finds the comment of a type in a folder of [sources], and those of its fields.
func documentation(dir string, t reflect.Type) (string, []field, error) {
	entries, err := sources.ReadDir(dir)
	if err != nil {
		return "", nil, err
	}
	types := map[string]*ast.GenDecl{}
	for _, entry := range entries {
		text, err := sources.ReadFile(dir + "/" + entry.Name())
		if err != nil {
			return "", nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), entry.Name(), text, parser.ParseComments)
		if err != nil {
			return "", nil, err
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				for _, s := range g.Specs {
					types[s.(*ast.TypeSpec).Name.Name] = g
				}
			}
		}
	}
	g := types[t.Name()]
	if g == nil {
		return "", nil, nil
	}
	return g.Doc.Text(), fieldsOf(types, t), nil
}

// fieldsOf lists the exported fields of a struct with their comments; those of embedded structs too.
func fieldsOf(types map[string]*ast.GenDecl, t reflect.Type) []field {
	var out []field
	g := types[t.Name()]
	if g == nil {
		return nil
	}
	i := slices.IndexFunc(g.Specs, func(s ast.Spec) bool { return s.(*ast.TypeSpec).Name.Name == t.Name() })
	st, ok := g.Specs[i].(*ast.TypeSpec).Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, f := range st.Fields.List {
		if len(f.Names) == 0 {
			if id, ok := f.Type.(*ast.Ident); ok {
				if sf, ok := t.FieldByName(id.Name); ok {
					out = append(out, fieldsOf(types, sf.Type)...)
				}
			}
			continue
		}
		for _, n := range f.Names {
			sf, ok := t.FieldByName(n.Name)
			name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
			if !ok || !n.IsExported() || name == "" || name == "-" {
				continue
			}
			doc := strings.TrimSpace(f.Doc.Text())
			if rest, ok := strings.CutPrefix(doc, n.Name); ok {
				doc = name + rest
			}
			out = append(out, field{Name: name, Type: typeName(sf.Type), Doc: doc})
			inside, at := sf.Type, name+"."
			if inside.Kind() == reflect.Slice {
				inside, at = inside.Elem(), name+"[]."
			}
			if inside.Kind() == reflect.Struct && typeName(inside) != "text" {
				for _, inner := range fieldsOf(types, inside) {
					inner.Name = at + inner.Name
					out = append(out, inner)
				}
			}
		}
	}
	return out
}

// typeName says in plain words what a value of the type looks like in a manifest.
func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32:
		if t.Name() == "Duration" {
			return "duration"
		}
		if t.Name() == "Quantity" {
			return "quantity"
		}
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "list of " + typeName(t.Elem())
	case reflect.Map:
		return "map"
	case reflect.Pointer:
		return typeName(t.Elem())
	}
	return "object"
}
