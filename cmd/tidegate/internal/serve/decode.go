package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/size"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/nearest"
)

// sep separates the names of a path. It is shown as a dot, which may be part of a name too.
const sep = "\x00"

func path(names ...string) string { return strings.Join(names, sep) }

func pathOf(key string) string { return strings.ReplaceAll(key, ".", sep) }

func dotted(path string) string { return strings.ReplaceAll(path, sep, ".") }

// A decoder reads the nodes of a file into the values of a configuration, and records the source of
// each. It reports all faults, not only the first. It repeats no text from below access, because it
// can be a misplaced secret.
//
// The decoders of the YAML libraries (yaml v4 with KnownFields, goccy/go-yaml with Strict) reject
// the same files. They are not used for values, because their errors name types of Go instead of
// settings, suggest nothing, and repeat secrets; and goccy's stops at the first fault.
type decoder struct {
	file   string
	from   map[string]origin
	faults faults
}

func (d *decoder) bad(line int, format string, args ...any) {
	d.faults = append(d.faults, faultf(origin{file: d.file, line: max(line, 1)}, format, args...))
}

// level reads the node below prefix: entries of the table, and further levels of nesting.
func (d *decoder) level(n *yaml.Node, prefix string, table []setting) {
	var known []string
	for _, row := range table {
		if rest, ok := strings.CutPrefix(row.key, prefix); ok {
			if first, _, _ := strings.Cut(rest, "."); !slices.Contains(known, first) {
				known = append(known, first)
			}
		}
	}
	d.mapping(n, pathOf(strings.TrimSuffix(prefix, ".")), known, func(name string, v *yaml.Node) {
		for _, row := range table {
			if row.key == prefix+name {
				d.value(v, pathOf(row.key), reflect.ValueOf(row.at).Elem())
				return
			}
		}
		d.level(v, prefix+name+".", table)
	})
}

// read returns the root of the only document; nil if there is nothing, or if it is not YAML.
func (d *decoder) read(data []byte) *yaml.Node {
	// The library reports no line for these two.
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) {
			d.bad(i+1, "the line is not UTF-8; save the file as UTF-8")
			return nil
		}
		if c := bytes.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' || r == 0x7f }); c >= 0 {
			d.bad(i+1, "byte %d of the line is the control character %#02x; remove it", c+1, line[c])
			return nil
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // nothing but comments
			d.syntax(data, err)
		}
		return nil
	}
	switch err := decoder.Decode(&more); {
	case err == nil:
		d.bad(more.Line, "a second YAML document begins here; give one")
	case !errors.Is(err, io.EOF):
		d.syntax(data, err)
	}
	if root := doc.Content[0]; !empty(root) {
		return root
	}
	return nil
}

func (d *decoder) syntax(data []byte, err error) {
	line, text := 1, err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		line, text = min(e.Mark.Line, 1+bytes.Count(data, []byte("\n"))), e.Message // not behind the end
		if e.Stage == yaml.ComposerStage {                                          // a secret that begins with * is read as an alias, and the error repeats it
			text = "a value that begins with * is an alias without an anchor; quote the value"
		}
	}
	d.bad(line, "this is not YAML: %s", text)
}

// mapping calls each for every entry with a known name. If known is nil, all names are known.
func (d *decoder) mapping(n *yaml.Node, at string, known []string, each func(name string, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		what, of := d.describe(n, at), ""
		if at != "" {
			what = dotted(at) + " is " + what
		}
		if at != "" && known != nil {
			of = ", of " + strings.Join(known, ", ")
		}
		d.bad(n.Line, "%s; give \"key: value\", one on each line%s", what, of)
		return
	}
	where := ""
	if at != "" {
		where = " in " + dotted(at)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := k.Value
		switch first, twice := seen[name]; {
		case k.Kind != yaml.ScalarNode:
			d.bad(k.Line, "%s is not a name; give a text", d.describe(k, at))
		case twice:
			d.bad(k.Line, "%q is repeated, first in line %d; give it once", name, first)
		case known == nil || slices.Contains(known, name):
			d.from[strings.TrimPrefix(at+sep+name, sep)] = origin{dotted(strings.TrimPrefix(at+sep+name, sep)), d.file, k.Line}
			each(name, v)
		case secret(at) && nearest.Name(name, known) == "": // {text} is a name too
			d.bad(k.Line, "a name is unknown%s; %s", where, nearest.Hint("", known))
		default:
			d.bad(k.Line, "%q is unknown%s; %s", name, where, nearest.Hint(name, known))
		}
		seen[name] = k.Line
	}
}

// value reads a node into v.
func (d *decoder) value(n *yaml.Node, at string, v reflect.Value) {
	if _, ok := reflect.TypeAssert[textUnmarshaler](v.Addr()); ok {
		d.scalar(n, at, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.value(n, at, p.Elem())
		v.Set(p)
	case reflect.Struct:
		fields := fieldsOf(v.Type())
		d.mapping(n, at, fields, func(name string, n *yaml.Node) { d.value(n, at+sep+name, v.Field(slices.Index(fields, name))) })
	case reflect.Map:
		if empty(n) {
			return // all of them are commented out
		}
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(n, at, nil, func(name string, n *yaml.Node) {
			if err := access.CheckName(name); err != nil && secret(at) {
				d.bad(n.Line, "%s has an invalid name: %v", dotted(at), err)
				return
			}
			e := reflect.New(v.Type().Elem()).Elem()
			if !empty(n) { // a name alone has every default
				d.value(n, at+sep+name, e)
			}
			v.SetMapIndex(reflect.ValueOf(name), e)
		})
	case reflect.Slice:
		d.list(n, at, v)
	default:
		d.scalar(n, at, v)
	}
}

// list reads a list, or the only element of one.
func (d *decoder) list(n *yaml.Node, at string, v reflect.Value) {
	ofMappings := v.Type().Elem() == reflect.TypeFor[server.Rule]()
	elements := []*yaml.Node{n}
	switch {
	case n.Kind == yaml.SequenceNode:
		elements = n.Content
	case ofMappings && empty(n):
		return
	case ofMappings:
		d.bad(n.Line, `%s is %s; give a list of rules such as {actions: [send], topics: ["orders-*"]}`, dotted(at), d.describe(n, at))
		return
	}
	v.SetZero()
	for i, e := range elements {
		item, faults := fmt.Sprintf("%s[%d]", at, i+1), len(d.faults)
		name := item
		if !ofMappings {
			name = at
		}
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(e, name, element)
		d.from[item] = origin{dotted(name), d.file, e.Line}
		if len(d.faults) == faults {
			v.Set(reflect.Append(v, element))
		}
	}
}

func (d *decoder) scalar(n *yaml.Node, at string, v reflect.Value) {
	switch {
	case n.Kind != yaml.ScalarNode || n.Style&yaml.TaggedStyle != 0:
		d.bad(n.Line, "%s is %s; give a single value", dotted(at), d.describe(n, at))
	case empty(n):
		d.bad(n.Line, "%s has no value; give one, or remove the line", dotted(at))
	default:
		d.from[at] = origin{dotted(at), d.file, n.Line}
		text, err := size.Digits(at, n.Value)
		if err == nil {
			err = set(v, text)
		}
		if err != nil {
			d.bad(n.Line, "%s is %q: %v", dotted(at), n.Value, err)
		}
	}
}

// describe names the kind of a node.
func (d *decoder) describe(n *yaml.Node, at string) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "a YAML alias (a text that begins with *), which is not permitted here; quote the value"
	case n.Style&yaml.TaggedStyle != 0:
		return "a value with a YAML tag (a text that begins with !), which is not permitted here; quote the value"
	case secret(at):
		return "a single value"
	}
	return fmt.Sprintf("%q", n.Value)
}

func empty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// secret reports whether the value at a path can be a secret.
func secret(at string) bool { return at == "access" || strings.HasPrefix(at, "access"+sep) }

// fieldsOf returns the names of a struct's fields, which are those over HTTP.
func fieldsOf(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

type textUnmarshaler interface{ UnmarshalText([]byte) error }

// set reads a text into v. Files, variables and flags are read alike. The error is an advice.
func set(v reflect.Value, text string) error {
	if !utf8.ValidString(text) {
		return errors.New("give text in UTF-8")
	}
	switch x := v.Addr().Interface().(type) {
	case textUnmarshaler:
		return x.UnmarshalText([]byte(text))
	case *[]string:
		*x = nil
		if text != "" {
			*x = strings.Split(text, ",")
		}
		return nil
	case *time.Duration, *settings.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New(`give a duration such as "3s" or "1m30s"`)
		}
		v.SetInt(int64(d))
		return nil
	case json.Unmarshaler:
		quoted, err := json.Marshal(text)
		return errors.Join(err, x.UnmarshalJSON(quoted))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return errors.New("give true or false")
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return errors.New("give a whole number")
		}
		v.SetInt(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return errors.New("give a number")
		}
		v.SetFloat(f)
	default:
		return fmt.Errorf("a setting cannot have the type %s", v.Type())
	}
	return nil
}

// text returns the text of a value, in the form that set reads. at points to the value.
func text(at any) string {
	switch x := at.(type) {
	case *[]string:
		return strings.Join(*x, ",")
	case *settings.Duration:
		return time.Duration(*x).String()
	}
	return fmt.Sprint(reflect.ValueOf(at).Elem().Interface())
}
