package client

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
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

// diff prints the settings that differ, the old and the new value.
func (c *call) diff(name string, before, after any) error {
	old, now := map[string]string{}, map[string]string{}
	var order []string
	note := func(into map[string]string, settings any) {
		for _, f := range view.SettingFields(settings) {
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
