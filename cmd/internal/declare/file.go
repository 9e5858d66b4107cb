package declare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/size"
	"github.com/tidegate/tidegate/internal/nearest"
)

// A File is the file of apply: settings with their places.
type File struct {
	Topics, Groups, Addresses map[string]Subject
}

// A Subject is one topic, group or address with its settings as JSON.
type Subject struct {
	file string
	key  *yaml.Node // the name
	node *yaml.Node // the settings
	Text json.RawMessage
}

// Read reads the text of a file; path is its name in errors. The error has a line for each fault,
// with file and line.
func Read(path string, text []byte) (d File, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		if e, ok := errors.AsType[*yaml.LoadError](err); ok {
			return d, fmt.Errorf("%s:%d: this is not YAML: %s", path, min(max(e.Mark.Line, 1), 1+bytes.Count(text, []byte("\n"))), e.Message)
		}
		return d, fmt.Errorf("%s: this is not YAML: %w", path, err)
	}
	var errs []error
	if len(doc.Content) > 0 && doc.Content[0].Kind == yaml.MappingNode {
		for key, node := range entries(doc.Content[0]) {
			switch key.Value {
			case "topics":
				d.Topics, err = subjects[settings.Topic](path, key, node)
			case "groups":
				d.Groups, err = subjects[settings.Group](path, key, node)
			case "address_settings":
				d.Addresses, err = subjects[settings.Address](path, key, node)
			default:
				err = nil // a setting of serve
				if near := nearest.Name(key.Value, []string{"topics", "groups", "address_settings"}); near != "" && node.Kind == yaml.MappingNode {
					err = fmt.Errorf("%s:%d: there is no part %q; did you mean %s?", path, key.Line, key.Value, near)
				}
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return d, err
	}
	if len(d.Topics)+len(d.Groups)+len(d.Addresses) == 0 {
		return d, fmt.Errorf("%s has no topics, groups or address_settings", path)
	}
	return d, nil
}

// entries yields the keys and values of a mapping.
func entries(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// subjects reads one part of a file, and checks the names and types of its settings.
func subjects[T any](path string, part, n *yaml.Node) (map[string]Subject, error) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: %s has no names; give NAME: {SETTING: VALUE}", path, n.Line, part.Value)
	}
	all := map[string]Subject{}
	var errs []error
	for key, value := range entries(n) {
		s := Subject{file: path, key: key, node: value}
		if _, twice := all[key.Value]; twice {
			errs = append(errs, fmt.Errorf("%s:%d: %s %s is repeated; give it once", path, key.Line, part.Value, key.Value))
		}
		var zero T
		err := s.read(reflect.TypeFor[T]())
		if err == nil {
			_, err = Merge(zero, s.Text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s %s: %w", s.Place(err.Error()), part.Value, key.Value, err))
		}
		all[key.Value] = s
	}
	return all, errors.Join(errs...)
}

// read turns the node into JSON.
func (s *Subject) read(t reflect.Type) error {
	parts := map[string]any{}
	if s.node.Kind != yaml.ScalarNode || s.node.ShortTag() != "!!null" { // a name alone has every default
		if err := s.node.Decode(&parts); err != nil {
			return errors.New("it has no settings; give SETTING: VALUE")
		}
	}
	if err := known(t, parts, ""); err != nil {
		return err
	}
	if err := size.Each(parts); err != nil {
		return err
	}
	var err error
	s.Text, err = json.Marshal(parts)
	return err
}

// known returns an error if a setting does not exist.
func known(t reflect.Type, parts map[string]any, path string) error {
	all := names(t)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		v := parts[name]
		f := fieldOf(t, name)
		if f.Type == nil {
			suggestion := "the settings are " + strings.Join(all, ", ")
			if near := nearest.Name(name, all); near != "" {
				suggestion = "did you mean " + near + "?"
			}
			return fmt.Errorf("%s%s is no setting; %s", path, name, suggestion)
		}
		if below, ok := v.(map[string]any); ok && f.Type.Kind() == reflect.Struct {
			if err := known(f.Type, below, path+name+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// Place returns file:line of the setting that a text begins with, or else of the name.
func (s Subject) Place(text string) string {
	line, at := s.key.Line, s.node
	path, _, _ := strings.Cut(text, " ")
	for name := range strings.SplitSeq(strings.TrimSuffix(path, ":"), ".") {
		found := false
		for key, value := range entries(at) {
			if key.Value == name {
				line, at, found = key.Line, value, true
			}
		}
		if !found {
			break
		}
	}
	return fmt.Sprintf("%s:%d", s.file, line)
}
