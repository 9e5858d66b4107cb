package administration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"unicode/utf8"
)

// fields returns the object of the flags --raw-field and --field, which have KEY=VALUE. A key is
// a name, a[b] for a field of an object, or a[] for a further member of a list.
func fields(raw, typed []string, in io.Reader) (map[string]any, error) {
	out := map[string]any{}
	for _, list := range []struct {
		flag   string
		fields []string
		value  func(string) (any, error)
	}{
		{"--raw-field", raw, func(text string) (any, error) { return text, nil }},
		{"--field", typed, func(text string) (any, error) { return typedValue(text, in) }},
	} {
		for _, f := range list.fields {
			key, text, ok := strings.Cut(f, "=")
			path := strings.Split(strings.ReplaceAll(key, "]", ""), "[")
			if !ok || path[0] == "" || strings.Count(key, "[") != strings.Count(key, "]") || len(path) > 1 && !strings.HasSuffix(key, "]") {
				return nil, fmt.Errorf("%s is %q; the form is KEY=VALUE, with a[b] for a field of an object and a[] for a member of a list", list.flag, f)
			}
			value, err := list.value(text)
			if err != nil {
				return nil, err
			}
			if content, _ := value.(string); !utf8.ValidString(key) || !utf8.ValidString(content) {
				return nil, fmt.Errorf("%s %q is not UTF-8, which JSON needs; convert it, or encode it in base64", list.flag, key)
			}
			if _, err := put(out, path, value); err != nil {
				return nil, fmt.Errorf("%s is %q: %w", list.flag, f, err)
			}
		}
	}
	return out, nil
}

// typedValue returns a number, true, false or null, the content of a file for @FILE, or a text.
func typedValue(text string, in io.Reader) (any, error) {
	if file, ok := strings.CutPrefix(text, "@"); ok {
		read := os.ReadFile
		if file == "-" {
			read = func(string) ([]byte, error) { return io.ReadAll(in) }
		}
		content, err := read(file)
		return string(content), err
	}
	var value any
	if !json.Valid([]byte(text)) || json.Unmarshal([]byte(text), &value) != nil {
		return text, nil //nolint:nilerr // the value is a text
	}
	switch value.(type) {
	case string, []any, map[string]any: // these are for a body
		return text, nil
	case float64:
		return json.Number(strings.TrimSpace(text)), nil
	}
	return value, nil
}

// put returns a value with another one below it: path leads from the one to the other.
func put(at any, path []string, value any) (any, error) {
	if len(path) == 0 {
		if at != nil {
			return nil, errors.New("the key has a value already")
		}
		return value, nil
	}
	if path[0] == "" {
		list, ok := at.([]any)
		if at != nil && !ok || len(path) > 1 {
			return nil, errors.New("the members of a list are values; give the body as an argument")
		}
		return append(list, value), nil
	}
	object, ok := at.(map[string]any)
	if at != nil && !ok {
		return nil, errors.New("the key has a value already")
	}
	if object == nil {
		object = map[string]any{}
	}
	below, err := put(object[path[0]], path[1:], value)
	object[path[0]] = below
	return object, err
}

// query returns the fields as parameters of a query, which have no objects.
func query(fields map[string]any) (url.Values, error) {
	out := url.Values{}
	for name, value := range fields {
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		for _, v := range list {
			if _, object := v.(map[string]any); object {
				return nil, fmt.Errorf("the field %s is an object, which a query cannot have", name)
			}
			if v == nil {
				v = ""
			}
			out.Add(name, fmt.Sprint(v))
		}
	}
	return out, nil
}
