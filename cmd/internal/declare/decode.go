package declare

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/nearest"
)

// Sep separates the names of a path. It is shown as a dot, which may be part of a name too.
const Sep = "\x00"

// Path joins names.
func Path(names ...string) string { return strings.Join(names, Sep) }

// PathOf returns the path of a key with dots.
func PathOf(key string) string { return strings.ReplaceAll(key, ".", Sep) }

// Dotted returns a path as it is shown.
func Dotted(path string) string { return strings.ReplaceAll(path, Sep, ".") }

// A Decoder reads the nodes of a file into the values of a configuration, and records the source of
// each. It reports all faults, not only the first. It repeats no text from below access, because it
// can be a misplaced secret.
//
// The decoders of the YAML libraries (yaml v4 with KnownFields, goccy/go-yaml with Strict) reject
// the same files. They are not used for values, because their errors name types of Go instead of
// settings, suggest nothing, and repeat secrets; and goccy's stops at the first fault.
type Decoder struct {
	File   string            // its name in errors
	From   map[string]Origin // by path
	Faults Faults
}

// Bad adds a fault of a line.
func (d *Decoder) Bad(line int, format string, args ...any) {
	d.Faults = append(d.Faults, Faultf(Origin{File: d.File, Line: max(line, 1)}, format, args...))
}

// Root returns the root of the only document; nil if there is nothing, or if it is not YAML.
func (d *Decoder) Root(data []byte) *yaml.Node {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // YAML permits a byte order mark
	if err := Marked(data); err != nil {
		d.Bad(1, "%v", err)
		return nil
	}
	// The library reports no line for these two.
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) {
			d.Bad(i+1, "the line is not UTF-8; save the file as UTF-8")
			return nil
		}
		if c := bytes.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' || r == 0x7f }); c >= 0 {
			d.Bad(i+1, "byte %d of the line is the control character %#02x; remove it", c+1, line[c])
			return nil
		}
	}
	reader := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := reader.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // nothing but comments
			d.syntax(data, err)
		}
		return nil
	}
	switch err := reader.Decode(&more); {
	case err == nil:
		d.Bad(more.Line, "a second YAML document begins here; give one")
	case !errors.Is(err, io.EOF):
		d.syntax(data, err)
	}
	if root := doc.Content[0]; !Empty(root) {
		return root
	}
	return nil
}

func (d *Decoder) syntax(data []byte, err error) {
	line, text := 1, err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		line, text = min(e.Mark.Line, 1+bytes.Count(data, []byte("\n"))), e.Message // not behind the end
		if e.Stage == yaml.ComposerStage {                                          // a secret that begins with * is read as an alias, and the error repeats it
			text = "a value that begins with * is an alias without an anchor; quote the value"
		}
	}
	d.Bad(line, "this is not YAML: %s", text)
}

// Mapping calls each for every entry with a known name. If known is nil, all names are known.
func (d *Decoder) Mapping(n *yaml.Node, at string, known []string, each func(name string, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		what, of := d.describe(n, at), ""
		if at != "" {
			what = Dotted(at) + " is " + what
		}
		if at != "" && known != nil {
			of = ", of " + strings.Join(known, ", ")
		}
		d.Bad(n.Line, "%s; give \"key: value\", one on each line%s", what, of)
		return
	}
	where := ""
	if at != "" {
		where = " in " + Dotted(at)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := k.Value
		switch first, twice := seen[name]; {
		case k.Kind != yaml.ScalarNode:
			d.Bad(k.Line, "%s is not a name; give a text", d.describe(k, at))
		case twice:
			d.Bad(k.Line, "%q is repeated, first in line %d; give it once", name, first)
		case known == nil || slices.Contains(known, name):
			d.From[strings.TrimPrefix(at+Sep+name, Sep)] = Origin{Dotted(strings.TrimPrefix(at+Sep+name, Sep)), d.File, k.Line}
			each(name, v)
		case secret(at) && nearest.Name(name, known) == "": // {text} is a name too
			d.Bad(k.Line, "a name is unknown%s; %s", where, nearest.Hint("", known))
		default:
			d.Bad(k.Line, "%q is unknown%s; %s", name, where, nearest.Hint(name, known))
		}
		seen[name] = k.Line
	}
}

// Value reads a node into v.
func (d *Decoder) Value(n *yaml.Node, at string, v reflect.Value) {
	if _, ok := reflect.TypeAssert[textUnmarshaler](v.Addr()); ok {
		d.scalar(n, at, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.Value(n, at, p.Elem())
		v.Set(p)
	case reflect.Struct:
		d.Mapping(n, at, names(v.Type()), func(name string, n *yaml.Node) {
			for f, field := range v.Fields() {
				if Name(f) == name {
					d.Value(n, at+Sep+name, field)
				}
			}
		})
	case reflect.Map:
		if Empty(n) {
			return // all of them are commented out
		}
		v.Set(reflect.MakeMap(v.Type()))
		d.Mapping(n, at, nil, func(name string, n *yaml.Node) {
			if err := access.CheckName(name); err != nil && secret(at) {
				d.Bad(n.Line, "%s has an invalid name: %v", Dotted(at), err)
				return
			}
			e := reflect.New(v.Type().Elem()).Elem()
			if !Empty(n) { // a name alone has every default
				d.Value(n, at+Sep+name, e)
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
func (d *Decoder) list(n *yaml.Node, at string, v reflect.Value) {
	elem := v.Type().Elem()
	ofMappings := elem.Kind() == reflect.Struct && !reflect.PointerTo(elem).Implements(reflect.TypeFor[textUnmarshaler]())
	elements := []*yaml.Node{n}
	switch {
	case n.Kind == yaml.SequenceNode:
		elements = n.Content
	case ofMappings && Empty(n):
		return
	case ofMappings:
		d.Bad(n.Line, `%s is %s; give a list of rules such as {actions: [send], topics: ["orders-*"]}`, Dotted(at), d.describe(n, at))
		return
	}
	v.SetZero()
	for i, e := range elements {
		item, faults := fmt.Sprintf("%s[%d]", at, i+1), len(d.Faults)
		name := item
		if !ofMappings {
			name = at
		}
		element := reflect.New(v.Type().Elem()).Elem()
		d.Value(e, name, element)
		d.From[item] = Origin{Dotted(name), d.File, e.Line}
		if len(d.Faults) == faults {
			v.Set(reflect.Append(v, element))
		}
	}
}

func (d *Decoder) scalar(n *yaml.Node, at string, v reflect.Value) {
	switch {
	case n.Kind != yaml.ScalarNode || n.Style&yaml.TaggedStyle != 0:
		d.Bad(n.Line, "%s is %s; give a single value", Dotted(at), d.describe(n, at))
	case Empty(n):
		d.Bad(n.Line, "%s has no value; give one, or remove the line", Dotted(at))
	default:
		d.From[at] = Origin{Dotted(at), d.File, n.Line}
		text, err := Digits(at, n.Value)
		if err == nil {
			err = Set(v, text)
		}
		if err != nil {
			d.Bad(n.Line, "%s is %q: %v", Dotted(at), n.Value, err)
		}
	}
}

// describe names the kind of a node.
func (d *Decoder) describe(n *yaml.Node, at string) string {
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

// Empty reports whether a node has no value.
func Empty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// secret reports whether the value at a path can be a secret.
func secret(at string) bool { return at == "access" || strings.HasPrefix(at, "access"+Sep) }

type textUnmarshaler interface{ UnmarshalText([]byte) error }

// Set reads a text into v. Files, variables and flags are read alike. The error is an advice.
func Set(v reflect.Value, text string) error {
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

// An Origin is the source of a value. The zero value means the default.
type Origin struct {
	Name string // of the setting in the source: grpc, --grpc, TIDEGATE_GRPC
	File string // empty if it is no file
	Line int    // from 1; 0 if it is no file
}

// Comment returns the text that follows a printed value.
func (o Origin) Comment() string {
	switch {
	case o.File != "":
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	case o.Name != "":
		return o.Name
	}
	return "default"
}

// A Fault is one fault of the configuration.
type Fault struct {
	Origin
	Text string
}

// Faultf returns a fault, in one line.
func Faultf(o Origin, format string, args ...any) Fault {
	return Fault{o, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")}
}

func (f Fault) String() string {
	s := f.Text
	if f.Name != "" {
		s = f.Name + " " + s
	}
	if f.File != "" {
		s = fmt.Sprintf("%s:%d: %s", f.File, f.Line, s)
	}
	return s
}

// Faults are all faults of a configuration. As an error they are a line each, those of the file
// first.
type Faults []Fault

// Err returns nil if there are none.
func (fs Faults) Err() error {
	if len(fs) == 0 {
		return nil
	}
	slices.SortStableFunc(fs, func(a, b Fault) int {
		if (a.File == "") != (b.File == "") {
			return cmp.Compare(b.File, a.File)
		}
		if a.File == "" {
			return 0 // as they were looked at
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Name, b.Name))
	})
	return fs
}

// Invalid marks the error for package cli.
func (Faults) Invalid() {}

func (fs Faults) Error() string { return strings.Join(fs.Lines(), "\n") }

// Lines returns a text for each fault.
func (fs Faults) Lines() []string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return lines
}

// units are the units of bytes, the longest names first.
var units = []struct {
	name   string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// inBytes reports whether a setting is a number of bytes: a word of its name is "bytes". The name
// may be a path of names.
func inBytes(name string) bool {
	last := name[strings.LastIndexAny(name, ".\x00")+1:]
	return last == "bytes" || strings.HasPrefix(last, "bytes_") || strings.HasSuffix(last, "_bytes") || strings.Contains(last, "_bytes_")
}

// Digits returns the value of the setting name as a number without a unit: 1073741824 for 1GiB. It
// returns the values of other settings and numbers without a unit as they are. The error is an
// advice.
func Digits(name, value string) (string, error) {
	text := strings.TrimSpace(value)
	if _, err := strconv.ParseFloat(text, 64); err == nil || !inBytes(name) {
		return value, nil
	}
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if n *= u.factor; err != nil || n != math.Trunc(n) || n < 0 || n >= 1<<63 {
			break
		}
		return strconv.FormatInt(int64(n), 10), nil
	}
	return value, errors.New("give a number of bytes, for example 1073741824, 1GiB or 512MiB")
}

// each replaces the sizes with units in settings that were read from JSON or YAML. The error names
// the setting, below path.
func each(settings map[string]any, path string) error {
	for name, v := range settings {
		switch v := v.(type) {
		case map[string]any:
			if err := each(v, path+name+"."); err != nil {
				return err
			}
		case string:
			if !inBytes(name) {
				continue
			}
			digits, err := Digits(name, v)
			var n float64
			if err == nil {
				n, err = strconv.ParseFloat(digits, 64)
			}
			if err != nil {
				return fmt.Errorf("%s%s is %q: %w", path, name, v, err)
			}
			if settings[name] = n; n == math.Trunc(n) {
				settings[name] = int64(n)
			}
		}
	}
	return nil
}
