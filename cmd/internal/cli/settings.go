package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A subject is how commands read and write the settings T of a topic or a consumer group S.
type subject[T, S any] struct {
	noun     string // as in "topic"
	arg      string // name of the argument
	mqadmin  string
	examples map[string]string // by verb
	forms    string            // of values, below the names of the settings

	get    func(ctx context.Context, c *admin.Client, name string) (S, T, error)
	create func(ctx context.Context, c *admin.Client, name string, settings T) (S, error)

	// set changes an existing subject. wanted has all settings, patch those that change.
	set func(ctx context.Context, c *admin.Client, before S, wanted T, patch map[string]any) (S, error)

	fixed   func(before, wanted T) error // why set is not possible
	show    func(c *Call, s S) error
	unknown func(c *Call, ctx context.Context, client *admin.Client, err error) error
}

// asking returns the work of a command that uses the HTTP API within one --timeout.
func asking(work func(context.Context, *Call, *admin.Client) error) run {
	return func(ctx context.Context, c *Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		return work(ctx, c, client)
	}
}

// newPut returns the command create or set.
func newPut[T, S any](a *App, s *subject[T, S], verb string) *cobra.Command {
	var file string
	var dryRun bool
	cmd := &cobra.Command{Use: verb, Example: s.examples[verb], Annotations: map[string]string{mqAdmin: s.mqadmin}}
	cmd.Short = "Create a " + s.noun
	if verb == "set" {
		cmd.Short = "Change settings of a " + s.noun + "; the others stay"
	}
	cmd.Long = cmd.Short + ".\n\n" + output.Wrap("The settings are "+declare.Help[T]()+".", 80) + "\n" + s.forms
	a.Leaf(cmd, []string{s.arg, "[KEY=VALUE...]"}, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		name := c.Args[0]
		old, before, err := s.get(ctx, client, name)
		switch {
		case err != nil && (verb == "set" || !errors.Is(err, tidegate.ErrNotFound)):
			return s.unknown(c, ctx, client, err)
		case err == nil && verb == "create":
			return fmt.Errorf("%s %q exists; change it with %s", s.noun, name, output.Mention(c.Here(output.Command("tidegate "+cmd.Parent().Name()+" set", name)+" KEY=VALUE")))
		}
		wanted, patch, err := changed(c, before, file, c.Args[1:])
		if err != nil {
			return err
		}
		if verb == "set" {
			if err := s.fixed(before, wanted); err != nil {
				return c.Usage(err)
			}
		}
		if dryRun && verb == "create" {
			c.Note("%s %s would be new", s.noun, output.Safe(name))
			_, err = fmt.Fprint(c.Out, viewChanges(before, wanted))
			return err
		}
		if dryRun {
			return c.Diff(name, before, wanted)
		}
		var after S
		if verb == "create" {
			after, err = s.create(ctx, client, name, wanted)
		} else {
			after, err = s.set(ctx, client, old, wanted, patch)
		}
		if err != nil {
			return err
		}
		return s.show(c, after)
	}))
	cmd.Flags().StringVarP(&file, "file", "f", "", "JSON `file` with settings; arguments go before it")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes, and do nothing")
	return cmd
}

// changed returns settings with the changes of a file and of arguments, and the changes alone.
func changed[T any](c *Call, before T, file string, args []string) (wanted T, patch map[string]any, err error) {
	patch, err = declare.Patch[T](file, args)
	if err == nil && len(patch) == 0 && c.Command.Name() == "set" {
		err = errors.New("nothing to change: give KEY=VALUE or --file")
	}
	if err == nil {
		var text []byte
		if text, err = json.Marshal(patch); err == nil {
			wanted, err = declare.Merge(before, text)
		}
	}
	if v, ok := any(wanted).(interface{ Validate() error }); ok && err == nil {
		err = v.Validate()
	}
	if err != nil {
		return before, nil, c.Usage(err)
	}
	return wanted, patch, nil
}
