package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
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

// hinted adds RocketMQ's own commands to the error of a topic that does not exist on a RocketMQ.
func (c *Call) hinted(err error) error {
	if !errors.Is(err, tidegate.ErrTopicNotFound) {
		return err
	}
	if _, has := errors.AsType[command.Hinted](err); has {
		return err
	}
	if s, serr := connection.Resolve(c.Connection, c.Env, io.Discard, c.opener()); serr != nil || s.Kind != connection.RocketMQ {
		return err
	}
	return &unknownError{err, "'mqadmin topicList -n NAMESERVER' has all topics; 'mqadmin updateTopic -n NAMESERVER -c CLUSTER -t NAME' creates one."}
}

// Diff prints the settings that differ, the old and the new value.
func (c *Call) Diff(name string, before, after any) error {
	if view.Changes(before, after) == "" {
		c.Note("%s: nothing changes", output.Safe(name))
	}
	return c.Changes(before, after)
}

// Changes prints the settings that differ.
func (c *Call) Changes(before, after any) error {
	_, err := fmt.Fprint(c.Out, view.Changes(before, after))
	return err
}

// UnknownGroup adds the most similar groups to the error of a group that does not exist.
func (c *Call) UnknownGroup(ctx context.Context, client *admin.Client, err error) error {
	if !errors.Is(err, tidegate.ErrNotFound) {
		return err
	}
	groups, lerr := client.Groups(ctx)
	if lerr != nil {
		return err
	}
	var names []string
	for _, g := range groups {
		names = append(names, g.Name)
	}
	return unknown(err, c.Args[0], names, c.Here("tidegate group list"))
}

// UnknownTopic adds the most similar topics to the error of a topic that does not exist.
func (c *Call) UnknownTopic(ctx context.Context, client *admin.Client, err error) error {
	if !errors.Is(err, tidegate.ErrTopicNotFound) {
		return err
	}
	topics, lerr := client.Topics(ctx)
	if lerr != nil {
		return err
	}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	return unknown(err, c.Args[len(c.Args)-1], names, c.Here("tidegate topic list"))
}

// NotNil returns a list that is [] in JSON if it is empty.
func NotNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// MatchFlag adds --match.
func MatchFlag(c *cobra.Command, at *string) {
	c.Flags().StringVar(at, "match", "", "`pattern` of names, with * for any text")
}

// MatchNote is the part of a text about an empty list that names the pattern of --match.
func MatchNote(pattern string) string {
	if pattern == "" {
		return ""
	}
	return " with a name like " + output.Safe(pattern)
}

// A notFoundError is the error of a subject that does not exist.
type notFoundError struct{ text string }

func (e *notFoundError) Error() string { return e.text }

// Is makes the error one of a missing subject, for the exit code.
func (e *notFoundError) Is(target error) bool { return target == tidegate.ErrNotFound }

// NotFound is an error with the exit code of a subject that does not exist.
func NotFound(text string) error { return &notFoundError{text} }
