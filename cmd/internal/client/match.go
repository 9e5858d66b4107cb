package client

import (
	"fmt"
	"slices"

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
	changes := view.Changes(before, after)
	if changes == "" {
		c.note("%s: nothing changes", output.Safe(name))
		return nil
	}
	_, err := fmt.Fprint(c.Out, changes)
	return err
}
