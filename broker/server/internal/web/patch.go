package web

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ReadPatch reads the request's body, a JSON merge patch (RFC 7396), and returns a function that
// applies it: a key that the patch names replaces the value, null means its default, and other keys
// stay. The errors are those of ReadJSON.
func ReadPatch[T any](w http.ResponseWriter, r *http.Request) (apply func(*T) error, err error) {
	raw, err := ReadBody(w, r, MaxAdminBody)
	if err != nil {
		return nil, err
	}
	if err := declaredJSON(r); err != nil {
		return nil, err
	}
	var checked map[string]jsontext.Value
	if err := Decode(raw, &checked); err != nil {
		return nil, err
	}
	return func(v *T) error {
		now, err := json.Marshal(v)
		if err != nil {
			return err
		}
		merged, err := merge(now, raw, reflect.TypeFor[T](), "")
		if err != nil {
			return err
		}
		var next T
		if err := Decode(merged, &next); err != nil {
			return err
		}
		*v = next
		return nil
	}, nil
}

// merge returns a JSON value after a merge patch. t is its type, and at its path. It rejects
// unknown keys, because a null of one would have no effect.
func merge(value, patch jsontext.Value, t reflect.Type, at jsontext.Pointer) (jsontext.Value, error) {
	if patch.Kind() != '{' || t.Kind() != reflect.Struct {
		return patch, nil // the decoder checks the type
	}
	var changes, out map[string]jsontext.Value
	if err := json.Unmarshal(patch, &changes); err != nil {
		return nil, badBody("%s", diagnose(patch, err))
	}
	if value.Kind() != '{' || json.Unmarshal(value, &out) != nil || out == nil {
		out = map[string]jsontext.Value{}
	}
	for key, change := range changes {
		keys := Keys(t)
		if !slices.Contains(keys, key) {
			return nil, badBody("%s", unknownKey(at.AppendToken(key), keys))
		}
		if change.Kind() == 'n' {
			delete(out, key)
			continue
		}
		below, err := merge(out[key], change, typeOf(t, key), at.AppendToken(key))
		if err != nil {
			return nil, err
		}
		out[key] = below
	}
	return json.Marshal(out, json.Deterministic(true))
}

// typeOf returns the type of the field of a struct with a key.
func typeOf(t reflect.Type, key string) reflect.Type {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
			return f.Type
		}
	}
	return reflect.TypeFor[any]()
}

// Names reports whether a JSON object has a key.
func Names(object []byte, key string) bool {
	var keys map[string]jsontext.Value
	return json.Unmarshal(object, &keys) == nil && keys[key] != nil
}
