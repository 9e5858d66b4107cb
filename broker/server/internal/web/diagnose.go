package web

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/nearest"
)

// diagnose says what is wrong with a JSON text that could not be decoded into
// v because of err, with the path of the field: messages[3].tag. It reads the
// text again, which only those pay for who sent a wrong one.
func diagnose(raw []byte, v any, err error) string {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("it is not JSON at byte %d: %v", e.Offset, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "it is cut off: the JSON object does not end"
	}
	if text := faultIn(raw, reflect.TypeOf(v).Elem(), ""); text != "" {
		return text
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// faultIn returns the first fault of a JSON value for a type, or "".
func faultIn(raw json.RawMessage, t reflect.Type, path string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	raw = bytes.TrimSpace(raw)
	if string(raw) == "null" {
		return ""
	}
	pointer := reflect.PointerTo(t)
	special := pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) || pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	switch {
	case special, t == reflect.TypeFor[[]byte]():
	case t.Kind() == reflect.Struct:
		types, keys := Keys(t)
		return faultInObject(raw, path, func(key string) (string, reflect.Type, string) {
			if types[key] == nil {
				for _, k := range keys {
					if strings.EqualFold(k, key) {
						return k, types[k], "" // encoding/json takes it
					}
				}
				return "", nil, unknownKey(key, path, keys)
			}
			return key, types[key], ""
		})
	case t.Kind() == reflect.Map:
		return faultInObject(raw, path, func(key string) (string, reflect.Type, string) { return key, t.Elem(), "" })
	case t.Kind() == reflect.Slice:
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			return name(path) + " is " + kindOfJSON(raw) + "; give a list"
		}
		for i, item := range list {
			if text := faultIn(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); text != "" {
				return text
			}
		}
		return ""
	}
	if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
		return fault(raw, t, path, err)
	}
	return ""
}

// unknownKey says what to write in place of a key.
func unknownKey(key, path string, keys []string) string {
	text := fmt.Sprintf("key %q is unknown%s: ", key, within(path))
	if n := nearest.Name(key, keys); n != "" {
		text += "did you mean " + n + "? "
	}
	return text + "there are " + strings.Join(keys, ", ")
}

// fault says what is wrong with one value.
func fault(raw json.RawMessage, t reflect.Type, path string, err error) string {
	is := name(path) + " is " + kindOfJSON(raw)
	_, wrongType := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case t == reflect.TypeFor[time.Time]():
		return is + ", which is no time; give one as in RFC 3339, such as \"2026-01-31T15:04:05Z\""
	case wrongType && t == reflect.TypeFor[[]byte]():
		return is + "; give a text in base64"
	case t == reflect.TypeFor[[]byte]():
		return name(path) + " is not base64 (" + err.Error() + "); a text goes into body_text as it is"
	case wrongType:
		return is + ", which does not fit; give a " + strings.NewReplacer("int64", "whole number", "int", "whole number", "bool", "boolean").Replace(t.Kind().String())
	}
	return name(path) + ": " + err.Error()
}

// faultInObject returns the first fault of an object. of returns the meaning of a key and the type
// of its value, or the fault of the key.
func faultInObject(raw json.RawMessage, path string, of func(key string) (stands string, t reflect.Type, wrong string)) string {
	seen := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return name(path) + " is " + kindOfJSON(raw) + "; give an object"
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return ""
		}
		stands, t, text := of(key.(string))
		if text != "" {
			return text
		}
		if seen[stands] {
			return fmt.Sprintf("key %q is there twice%s: give it once", stands, within(path))
		}
		seen[stands] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return ""
		}
		if text := faultIn(value, t, strings.TrimPrefix(path+"."+key.(string), ".")); text != "" {
			return text
		}
	}
	return ""
}

func name(path string) string {
	if path == "" {
		return "it"
	}
	return path
}

func within(path string) string {
	if path == "" {
		return ""
	}
	return " in " + path
}

// kindOfJSON says what a value is, and shows it if it is short.
func kindOfJSON(raw json.RawMessage) string {
	kind := "a number"
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		kind = "a string"
	case 't', 'f':
		kind = "a boolean"
	}
	if len(raw) > 40 {
		return kind
	}
	return kind + " (" + string(raw) + ")"
}

// Keys returns the keys of a struct in JSON, in the order of its fields,
// and their types.
func Keys(t reflect.Type) (map[string]reflect.Type, []string) {
	types, keys := map[string]reflect.Type{}, []string(nil)
	for _, f := range reflect.VisibleFields(t) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" && !slices.Contains(keys, key) {
			types[key] = f.Type
			keys = append(keys, key)
		}
	}
	return types, keys
}
