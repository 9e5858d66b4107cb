package cli

import (
	"bytes"
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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
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
	var asMqadmin bool
	at := cluster{}
	cmd := &cobra.Command{
		Use: "export", GroupID: operateGroup,
		Short: "Print topics, groups and address settings as a file for apply, or as commands of mqadmin",
		Long: `Prints topics, groups and address settings as a file for 'tidegate apply'.

With --mqadmin it prints the commands of RocketMQ's mqadmin that create the topics
and groups on a RocketMQ cluster, for a shell: the type and the queues of each topic,
and the order, the maximum of attempts and the retry schedule of each group. Each
broker of the cluster gets that number of queues. A group is ordered if it is FIFO
here, or has received from a FIFO topic. Comments name the settings that RocketMQ
lacks. Groups that their first receive created are included; topics of dead letters
are not, because RocketMQ creates its own.`,
		Example: `  tidegate export > cluster.yaml
  tidegate export --mqadmin --name-server 10.0.0.1:9876 --cluster DefaultCluster > create.sh`,
	}
	a.Leaf(cmd, nil, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		if flags := c.Command.Flags(); !asMqadmin && (flags.Changed("name-server") || flags.Changed("cluster")) {
			return usagef(c.Command, "--name-server and --cluster belong to --mqadmin")
		}
		if asMqadmin {
			return at.export(ctx, c, client)
		}
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
	f := cmd.Flags()
	f.BoolVar(&asMqadmin, "mqadmin", false, "print commands of RocketMQ's mqadmin")
	f.StringVar(&at.nameServer, "name-server", anyCluster.nameServer, "with --mqadmin: `address` of the name server of the cluster; several are separated by ;")
	f.StringVar(&at.name, "cluster", anyCluster.name, "with --mqadmin: `name` of the cluster")
	return cmd
}

// A cluster is a RocketMQ for which commands are printed.
type cluster struct{ nameServer, name string }

// anyCluster has the words that an operator replaces.
var anyCluster = cluster{"NAMESERVER", "CLUSTER"}

// unlimited is the maximum of retries that stands for none, which RocketMQ does not have.
const unlimited = 1_000_000

// topic returns the command that creates a topic.
func (at cluster) topic(name string, t settings.Topic) string {
	t = t.WithDefaults()
	command := fmt.Sprintf("mqadmin updateTopic -n %s -c %s -t %s -r %d -w %d -a +message.type=%s",
		output.Quote(at.nameServer), output.Quote(at.name), output.Quote(name), t.Queues, t.Queues, t.Type)
	if expiry := time.Duration(t.Lite.Expiry); expiry > 0 && expiry <= maxLiteExpiration {
		command += fmt.Sprintf(",+lite.topic.expiration=%d", (expiry+time.Minute-1)/time.Minute)
	}
	return command
}

// maxLiteExpiration is the longest expiry of lite topics that RocketMQ 5.5 has, except for none.
const maxLiteExpiration = 30 * 24 * time.Hour

// group returns the command that creates a consumer group. ordered is for a group whose topic is
// FIFO.
func (at cluster) group(name string, g settings.Group, ordered bool) string {
	retries := g.WithDefaults().MaxAttempts - 1
	if retries < 0 {
		retries = unlimited
	}
	command := fmt.Sprintf("mqadmin updateSubGroup -n %s -c %s -g %s -r %d", output.Quote(at.nameServer), output.Quote(at.name), output.Quote(name), retries)
	if g.FIFO || ordered {
		command += " -o true"
	}
	if g.Lite.Topic != "" {
		attributes := fmt.Sprintf("+lite.bind.topic=%s,+lite.sub.client.quota=%d", g.Lite.Topic, g.Lite.WithDefaults().MaxTopics)
		if g.Lite.Exclusive {
			attributes += ",+lite.sub.model=Exclusive"
		}
		command += " --attributes " + output.Quote(attributes)
	}
	if schedule := g.Ladder(); !slices.Equal(schedule, (settings.Group{FIFO: g.FIFO}).Ladder()) {
		var next []string
		for _, d := range schedule {
			next = append(next, strconv.FormatInt(d.Milliseconds(), 10))
		}
		command += " -p " + output.Quote(`{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[`+strings.Join(next, ",")+`]}}`)
	}
	return command
}

// export prints the commands for all topics and groups of a tidegate broker.
func (at cluster) export(ctx context.Context, c *Call, client *admin.Client) error {
	topics, terr := client.Topics(ctx)
	groups, gerr := client.Groups(ctx)
	addresses, aerr := client.AllAddressSettings(ctx)
	if err := cmp.Or(terr, gerr, aerr); err != nil {
		return err
	}
	commands, lacks := at.creates(topics, groups, addresses)
	if c.JSON() {
		return c.Show(map[string]any{"commands": notNil(commands), "not_carried": notNil(lacks)}, "", nil)
	}
	for _, line := range lacks {
		commands = append(commands, "# RocketMQ lacks "+line)
	}
	for _, line := range commands {
		if _, err := fmt.Fprintln(c.Out, line); err != nil {
			return err
		}
	}
	return nil
}

// creates returns the commands that create topics and groups, and the settings that RocketMQ lacks.
func (at cluster) creates(topics []status.Topic, groups []status.Group, addresses []status.Address) (commands, lacks []string) {
	ofDeadLetters, fifo := map[string]bool{}, map[string]bool{}
	for _, g := range groups {
		for _, name := range g.DeadLetterTopics {
			ofDeadLetters[name] = true
		}
	}
	for _, t := range topics {
		if strings.HasPrefix(t.Name, "%") || t.AutoCreated || ofDeadLetters[t.Name] {
			continue
		}
		fifo[t.Name] = t.Type == settings.TopicFIFO
		commands = append(commands, at.topic(t.Name, t.Topic))
		lacks = append(lacks, differing("topic "+t.Name, t.Topic.WithDefaults(), settings.Topic{}.WithDefaults(), "type", "queues", "lite")...)
		usual, l := settings.Topic{Type: t.Type}.WithDefaults().Lite, t.Topic.WithDefaults().Lite
		if l.MaxTopics != usual.MaxTopics {
			lacks = append(lacks, output.Safe(fmt.Sprintf("lite.max_topics=%d of topic %s", l.MaxTopics, t.Name)))
		}
		if time.Duration(l.Expiry) > maxLiteExpiration {
			lacks = append(lacks, output.Safe(fmt.Sprintf("lite.expiry=%v of topic %s", l.Expiry, t.Name)))
		}
	}
	for _, g := range groups {
		ordered := slices.ContainsFunc(g.Topics, func(s status.Subscription) bool { return fifo[s.Topic] })
		commands = append(commands, at.group(g.Name, g.Group, ordered))
		lacks = append(lacks, differing("group "+g.Name, g.Group.WithDefaults(), settings.Group{}.WithDefaults(), "fifo", "max_attempts", "retry", "fifo_retry_interval", "lite")...)
	}
	for _, a := range addresses {
		lacks = append(lacks, differing("address settings "+a.Match, a.Address, settings.Address{})...)
	}
	return commands, lacks
}

// differing returns the settings of a subject that differ from the defaults, each one with its
// value, except for those that are named.
func differing(subject string, have, defaults any, except ...string) (lines []string) {
	values, usual := fieldsOf(have), fieldsOf(defaults)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(except, name) && !bytes.Equal(values[name], usual[name]) {
			lines = append(lines, output.Safe(fmt.Sprintf("%s=%s of %s", name, values[name], subject)))
		}
	}
	return lines
}

// fieldsOf returns the fields of settings in JSON.
func fieldsOf(settings any) (fields map[string]json.RawMessage) {
	text, err := json.Marshal(settings)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		panic(err) // settings have a form in JSON
	}
	return fields
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
