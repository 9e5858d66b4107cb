package client

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/nearest"
)

// An unknownError is the error of a name that does not exist, with a hint.
type unknownError struct {
	error
	hint string
}

func (e *unknownError) Unwrap() error { return e.error }

// Hint is the line below the error.
func (e *unknownError) Hint() string { return e.hint }

func unknown(err error, name string, known []string, list string) error {
	if slices.Contains(known, name) {
		return err // it is about something else
	}
	if near := nearest.Name(name, known); near != "" {
		return &unknownError{err, fmt.Sprintf("Did you mean %s? '%s' has all.", output.Safe(near), list)}
	}
	return &unknownError{err, fmt.Sprintf("'%s' has all.", list)}
}

// settingFields are the fields of settings that are set, except for some by JSON name.
func settingFields(settings any, except ...string) []output.Field {
	var fields []output.Field
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name := declare.Name(v.Type().Field(i))
			f := v.Field(i)
			if name == "" || f.IsZero() || prefix == "" && slices.Contains(except, name) {
				continue
			}
			if f.Kind() == reflect.Struct {
				walk(f, prefix+name+".")
				continue
			}
			fields = append(fields, output.Field{Name: prefix + name, Value: fmt.Sprint(f.Interface())})
		}
	}
	walk(reflect.ValueOf(settings), "")
	return fields
}

// diff prints the settings that differ, the old and the new value.
func (c *call) diff(name string, before, after any) error {
	old, now := map[string]string{}, map[string]string{}
	var order []string
	note := func(into map[string]string, settings any) {
		for _, f := range settingFields(settings) {
			into[f.Name] = fmt.Sprint(f.Value)
			if !slices.Contains(order, f.Name) {
				order = append(order, f.Name)
			}
		}
	}
	note(old, before)
	note(now, after)
	var b strings.Builder
	for _, key := range order {
		if old[key] != now[key] {
			fmt.Fprintf(&b, "%s: %s -> %s\n", key, or(old[key], "default"), or(now[key], "default"))
		}
	}
	if b.Len() == 0 {
		c.note("%s: nothing changes", output.Safe(name))
		return nil
	}
	_, err := fmt.Fprint(c.Out, b.String())
	return err
}
