package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A declaration has the topics, groups and address settings of a file. Other parts of a file for
// tidegate serve --config are ignored.
type declaration struct {
	Topics          map[string]json.RawMessage `json:"topics,omitempty"`
	Groups          map[string]json.RawMessage `json:"groups,omitempty"`
	AddressSettings map[string]json.RawMessage `json:"address_settings,omitempty"`
}

func newApply(a *App) *cobra.Command {
	var pruning, automatic bool
	cmd := &cobra.Command{
		Use: "apply", GroupID: operateGroup,
		Short: "Create and change topics, groups and address settings as a file declares them",
		Long: `Creates and changes topics, groups and address settings as a YAML file declares
them: the parts topics, groups and address_settings of a file for 'tidegate serve
--config'. A setting that the file does not name keeps its value. --dry-run prints
the changes.

Without --prune nothing is deleted. With --prune, each part of the file also deletes
the subjects that it does not name, with their messages. apply asks before, or needs
--yes. Auto-created groups and topics, and topics with dead letters or retries, stay
unless --prune-auto-created is given too.`,
		Example: `  tidegate apply cluster.yaml --dry-run
  tidegate apply cluster.yaml
  tidegate apply cluster.yaml --prune --dry-run`,
	}
	c := a.Remote(cmd, []string{"FILE"}, func(ctx context.Context, c *Call) error {
		if automatic && !pruning {
			return usagef(c.Command, "--prune-auto-created belongs to --prune")
		}
		d, err := declared(c, c.Args[0])
		if err != nil {
			return c.Usage(err)
		}
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		var extra []surplus
		if pruning {
			err = c.within(ctx, func(ctx context.Context) error {
				extra, err = undeclared(ctx, client, d, automatic)
				return err
			})
			if err == nil {
				err = agreed(c, extra)
			}
			if err != nil {
				return err
			}
		}
		changed, err := applyAll(ctx, c, client, d)
		if err != nil {
			return err
		}
		if changed == 0 && len(extra) == 0 {
			c.Note("nothing changes")
		}
		return prune(ctx, c, extra)
	})
	cmd.Flags().BoolVar(&pruning, "prune", false, "delete subjects that the file does not name")
	cmd.Flags().BoolVar(&automatic, "prune-auto-created", false, "with --prune: also delete auto-created subjects")
	return c.Destructive()
}

// declared reads a file; - is the standard input.
func declared(c *Call, path string) (f declare.File, err error) {
	var text []byte
	if path == "-" {
		path = "standard input"
		text, err = io.ReadAll(c.In)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return f, err
	}
	return declare.Read(path, text)
}

// A kind is one sort of subject: how its settings are read and written.
type kind[T any] struct {
	name string
	get  func(ctx context.Context, name string) (T, error)
	put  func(ctx context.Context, name string, settings T) error
}

func applyAll(ctx context.Context, c *Call, client *admin.Client, d declare.File) (changed int, err error) {
	topics := kind[settings.Topic]{"topic", func(ctx context.Context, name string) (settings.Topic, error) {
		t, err := client.Topic(ctx, name)
		return t.Topic, err
	}, func(ctx context.Context, name string, s settings.Topic) error {
		_, err := client.PutTopic(ctx, name, s)
		return err
	}}
	groups := kind[settings.Group]{"group", func(ctx context.Context, name string) (settings.Group, error) {
		g, err := client.Group(ctx, name)
		return g.Group, err
	}, func(ctx context.Context, name string, s settings.Group) error {
		_, err := client.PutGroup(ctx, name, s)
		return err
	}}
	addresses := kind[settings.Address]{"address settings", func(ctx context.Context, match string) (settings.Address, error) {
		s, err := client.AddressSettings(ctx, match)
		return s.Address, err
	}, func(ctx context.Context, match string, s settings.Address) error {
		_, err := client.PutAddressSettings(ctx, match, s)
		return err
	}}
	err = errors.Join(
		applyKind(ctx, c, topics, d.Topics, &changed),
		applyKind(ctx, c, groups, d.Groups, &changed),
		applyKind(ctx, c, addresses, d.Addresses, &changed),
	)
	return changed, err
}

// applyKind applies the subjects of one kind in the order of their names, until one fails.
func applyKind[T any](ctx context.Context, c *Call, k kind[T], subjects map[string]declare.Subject, changed *int) error {
	for _, name := range slices.Sorted(maps.Keys(subjects)) {
		s := subjects[name]
		if err := applyOne(ctx, c, k, name, s.Text, changed); err != nil {
			return fmt.Errorf("%s: %s %s: %w", s.Place(err.Error()), k.name, name, err)
		}
	}
	return nil
}

func applyOne[T any](ctx context.Context, c *Call, k kind[T], name string, text json.RawMessage, changed *int) error {
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	before, err := k.get(ctx, name)
	missing := errors.Is(err, tidegate.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	wanted, err := declare.Merge(before, text)
	if err != nil {
		return c.Usage(err)
	}
	if !missing && reflect.DeepEqual(wanted, before) {
		return nil
	}
	if v, ok := any(wanted).(interface{ Validate() error }); ok {
		err = v.Validate()
	}
	if topic, ok := any(wanted).(settings.Topic); ok && !missing && err == nil {
		err = fixed(any(before).(settings.Topic), topic) //nolint:forcetypeassert // both are T
	}
	if err != nil {
		return c.Usage(err)
	}
	*changed++
	fmt.Fprintf(c.Out, "%s %s: %s\n", k.name, name, map[bool]string{true: "new", false: "changed"}[missing])
	if !reflect.DeepEqual(wanted, before) {
		if err := c.Diff(name, before, wanted); err != nil {
			return err
		}
	}
	if c.DryRun {
		return nil
	}
	return k.put(ctx, name, wanted)
}

func newExport(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use: "export", GroupID: operateGroup,
		Short:   "Print topics, groups and address settings as a file for apply",
		Example: "  tidegate export > cluster.yaml",
	}, nil, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		d, err := exported(ctx, client)
		if err != nil {
			return err
		}
		if c.JSON() {
			return c.Show(d, "", nil)
		}
		asJSON, err := json.Marshal(d)
		if err != nil {
			return err
		}
		var parts map[string]any
		if err := yaml.Unmarshal(asJSON, &parts); err != nil { // JSON is YAML
			return err
		}
		e := yaml.NewEncoder(c.Out)
		return errors.Join(e.Encode(parts), e.Close())
	}))
}

// exported reads all settings. Auto-created topics and groups are left out: it creates them again.
func exported(ctx context.Context, client *admin.Client) (d declaration, err error) {
	topics, terr := client.Topics(ctx)
	groups, gerr := client.Groups(ctx)
	addresses, aerr := client.AllAddressSettings(ctx)
	if err := cmp.Or(terr, gerr, aerr); err != nil {
		return d, err
	}
	d = declaration{map[string]json.RawMessage{}, map[string]json.RawMessage{}, map[string]json.RawMessage{}}
	keep := func(into map[string]json.RawMessage, name string, settings any, created bool) {
		if !created {
			text, merr := json.Marshal(settings)
			into[name], err = text, errors.Join(err, merr)
		}
	}
	for _, t := range topics {
		keep(d.Topics, t.Name, t.Topic, t.AutoCreated)
	}
	for _, g := range groups {
		keep(d.Groups, g.Name, g.Group, g.AutoCreated)
	}
	for _, s := range addresses {
		keep(d.AddressSettings, s.Match, s.Address, false)
	}
	return d, err
}

// A surplus is a topic, a group or address settings that the broker has and a file does not.
type surplus struct {
	kind, name, contents string
	remove               func(ctx context.Context, name string) error
}

// undeclared returns the subjects that a file does not declare, of the kinds of which the file
// declares at least one. Auto-created subjects are only in the list if automatic is true.
func undeclared(ctx context.Context, client *admin.Client, d declare.File, automatic bool) (all []surplus, err error) {
	add := func(declared map[string]declare.Subject, s surplus, created bool) {
		if _, ok := declared[s.name]; !ok && len(declared) > 0 && (automatic || !created) {
			all = append(all, s)
		}
	}
	groups, gerr := client.Groups(ctx)
	topics, terr := client.Topics(ctx)
	addresses, aerr := client.AllAddressSettings(ctx)
	for _, g := range groups {
		add(d.Groups, surplus{"group", g.Name, fmt.Sprintf("a backlog of %s", output.Count(backlogOf(g), "message")), client.DeleteGroup}, g.AutoCreated)
	}
	for _, t := range topics {
		ofGroup := strings.HasPrefix(t.Name, "%") // dead letters and retries
		contents := output.Count(t.StoredMessages+t.DelayedMessages+t.HalfMessages, "message").String()
		add(d.Topics, surplus{"topic", t.Name, contents, client.DeleteTopic}, t.AutoCreated || ofGroup)
	}
	for _, s := range addresses {
		add(d.Addresses, surplus{"address settings", s.Match, "no messages", client.DeleteAddressSettings}, false)
	}
	return all, cmp.Or(gerr, terr, aerr)
}

// agreed asks for the removal of subjects, if there are any.
func agreed(c *Call, all []surplus) error {
	if len(all) == 0 || c.DryRun {
		return nil
	}
	names := mapped(all, func(s surplus) string { return fmt.Sprintf("%s %s with %s", s.kind, output.Safe(s.name), s.contents) })
	return c.Confirm("remove "+strings.Join(names, ", ")+"?", c.Args[0])
}

// prune removes subjects until one fails. Those that another operator removed are no error.
func prune(ctx context.Context, c *Call, all []surplus) error {
	for _, s := range all {
		if _, err := fmt.Fprintf(c.Out, "%s %s: removed, with %s\n", s.kind, output.Safe(s.name), s.contents); err != nil {
			return err
		}
		if c.DryRun {
			continue
		}
		err := c.within(ctx, func(ctx context.Context) error { return s.remove(ctx, s.name) })
		if err != nil && !errors.Is(err, tidegate.ErrNotFound) && !errors.Is(err, tidegate.ErrTopicNotFound) {
			return fmt.Errorf("%s %s: %w", s.kind, output.Safe(s.name), err)
		}
	}
	return nil
}
