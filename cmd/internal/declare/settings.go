// Package declare reads settings of topics, groups and addresses from arguments, from JSON and from
// the YAML files of apply. Errors name the setting, the file and the line.
package declare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidegate/tidegate/internal/nearest"
)

// Patch returns the changes of a file, a JSON object, and of arguments such as queues=4 or
// max_backlog.messages=1000, which go before the file. The value of an argument is JSON, or else a
// text. The result is a merge patch of the settings T.
func Patch[T any](file string, args []string) (map[string]any, error) {
	patch := map[string]any{}
	if file != "" {
		text, err := os.ReadFile(file)
		if err == nil {
			err = JSON(text, &patch)
		}
		if err == nil {
			err = each(patch, "")
		}
		if err != nil {
			return nil, fmt.Errorf("the settings cannot be read: %w", err)
		}
	}
	given := map[string]bool{}
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return nil, fmt.Errorf("%q is not UTF-8; convert it", arg)
		}
		key, text, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is no setting; the form is KEY=VALUE, for example %s=VALUE", arg, names(reflect.TypeFor[T]())[0])
		}
		if given[key] {
			return nil, fmt.Errorf("%s is given twice; give it once", key)
		}
		given[key] = true
		digits, err := Digits(key, text)
		if err != nil {
			return nil, fmt.Errorf("%s is %q: %w", key, text, err)
		}
		if err := set(patch, reflect.TypeFor[T](), key, strings.Split(key, "."), digits); err != nil {
			return nil, err
		}
	}
	return patch, nil
}

// Merge decodes a JSON object over settings.
func Merge[T any](settings T, text []byte) (T, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&settings)
	if typ, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return settings, fmt.Errorf("%s is not a %s; it is %s", typ.Field, typ.Value, kindText(typ))
	}
	return settings, err
}

// kindText returns the kind of value that a setting takes.
func kindText(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind() {
	case reflect.Struct:
		return "an object: give one of its parts, as in " + e.Field + "." + names(e.Type)[0]
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.String:
		return "a text"
	}
	return "a number"
}

func set(into map[string]any, t reflect.Type, key string, parts []string, text string) error {
	all := names(t)
	if !slices.Contains(all, parts[0]) {
		suggestion := "; the settings are " + strings.Join(all, ", ")
		if near := nearest.Name(parts[0], all); near != "" {
			suggestion = fmt.Sprintf("; did you mean %s?", strings.TrimSuffix(key, strings.Join(parts, "."))+near)
		}
		return fmt.Errorf("there is no setting %q%s", key, suggestion)
	}
	var inner reflect.Type // of the field
	for f := range t.Fields() {
		if Name(f) == parts[0] {
			inner = f.Type
		}
	}
	if len(parts) == 1 {
		into[parts[0]] = value(inner, text)
		return nil
	}
	if inner.Kind() != reflect.Struct {
		return fmt.Errorf("%s has no parts: %s is one value", key, parts[0])
	}
	below, ok := into[parts[0]].(map[string]any)
	if !ok {
		below = map[string]any{}
		into[parts[0]] = below
	}
	return set(below, inner, key, parts[1:], text)
}

// value is a text as the JSON of a field: the text itself, unless the field is a number, a truth
// value or an object.
func value(t reflect.Type, text string) any {
	var v any
	marshals := reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
	switch kind := t.Kind(); {
	case kind == reflect.String, marshals && !json.Valid([]byte(text)):
		return text
	case JSON([]byte(text), &v) != nil:
		return text
	}
	return v
}

func names(t reflect.Type) []string {
	var all []string
	for f := range t.Fields() {
		if n := Name(f); n != "" {
			all = append(all, n)
		}
	}
	return all
}

// Name returns the name of a field in JSON.
func Name(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// Help lists the settings of a struct for the help: queues, max_backlog.messages.
func Help[T any]() string {
	var lines []string
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for f := range t.Fields() {
			name := Name(f)
			if name == "" {
				continue
			}
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, prefix+name+".")
				continue
			}
			lines = append(lines, prefix+name)
		}
	}
	walk(reflect.TypeFor[T](), "")
	return strings.Join(lines, ", ")
}
