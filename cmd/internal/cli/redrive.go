package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/protocol"
)

func newDeadLettersRedrive(a *App) *cobra.Command {
	s := &selection{}
	o := deadletter.Options{}
	e := &edits{}
	cmd := &cobra.Command{
		Use:   "redrive",
		Short: "Send dead letters back to their topics",
		Long: `Sends dead letters back to their topics, at a limited rate, and removes them. All
groups of the topic receive them, also those that handled the message before; with
--to-group-only only GROUP does, which must not be FIFO. On RocketMQ this needs --to
with the topic of the messages, and a retry topic of GROUP for it, which RocketMQ
creates at the first retry.

--edit runs a program by the shell for each message: the body is its standard
input, and its standard output is the new body. The flags --set-... and --unset-...
change tag, keys and properties, with or without --edit. A dead letter stays, and
counts as failed, if the program fails or does not change the body, if the flags
change nothing, or if no server accepts the changed message. The edited message has
a new ID, which is printed: ID.redrive-1. All groups of the topic receive it, too:
--to-group-only sends it to GROUP alone. Filters of groups apply to the new tag and
the new properties.

The journal records each message before and after it is sent. After an
interruption the same command with the same --journal continues: no message is
sent back twice. If the journal cannot be written, for example on a full disk, the
command ends, and the same one continues when there is space.`,
		Example: `  tidegate dead-letters redrive billing --class 5f1c9a --dry-run
  tidegate dead-letters redrive billing --id ID --edit "sed s/EUR/USD/" --to-group-only --yes
  tidegate dead-letters redrive billing --class 5f1c9a --set-tag paid --set-property currency=USD --yes
  tidegate dead-letters redrive billing --to-group-only --rate 50 --yes`,
	}
	c := a.Remote(cmd, []string{"GROUP"}, func(ctx context.Context, c *Call) error {
		if err := e.check(c); err != nil {
			return err
		}
		if o.ToGroupOnly {
			if err := groupOnly(c, o.To); err != nil {
				return err
			}
		}
		src, filter, closing, err := s.source(ctx, c)
		if err != nil {
			return err
		}
		o.Filter, o.DryRun = filter, c.DryRun
		return errors.Join(redrive(ctx, c, src, o, e, s.receiversOf(ctx, c, &o)), closing())
	})
	s.registerReading(cmd)
	f := cmd.Flags()
	f.StringVar(&o.To, "to", "", "target `topic` (default: the topic of each message's send)")
	f.BoolVar(&o.ToGroupOnly, "to-group-only", false, "send to the group alone, not to the other groups of the topic")
	f.Float64Var(&o.PerSecond, "rate", 100, "most messages a second")
	f.IntVar(&o.Limit, "max", 0, "most messages of this run; 0 means all")
	f.IntVar(&o.MaxGenerations, "max-redrives", 3, "skip messages that were sent back this often, 1 to 3")
	f.Float64Var(&o.MaxFailureShare, "max-failures", 0.1, "stop if a larger share of the last 50 fails")
	f.StringVar(&o.Journal, "journal", "", "`file` of this job, new or to be continued (default: a new one in the directory of the user's state)")
	e.register(cmd)
	c.NoLimit("--max bounds the dead letters of this run")
	return c.Destructive()
}

func redrive(ctx context.Context, c *Call, src deadletter.Source, o deadletter.Options, e *edits, to *receivers) error {
	group := c.Args[0]
	if !c.DryRun {
		question := fmt.Sprintf("send the dead letters of group %s back?", output.Safe(group))
		if e.any() {
			question = fmt.Sprintf("edit the dead letters of group %s and send them back?", output.Safe(group))
		}
		if to != nil {
			question += " They go to " + to.String()
		}
		if err := c.Confirm(question, group); err != nil {
			return err
		}
		if o.Journal == "" {
			path, err := c.Journal("redrive-" + group)
			if err != nil {
				return err
			}
			o.Journal = path
		}
	}
	server, err := c.Server()
	if err != nil {
		return err
	}
	if e.any() {
		o.Edit = func(m *tidegate.Message) error {
			err := e.apply(ctx, m)
			if errors.Is(err, errUnchanged) {
				e.unchanged++
			}
			return err
		}
	}
	if e.any() && !o.ToGroupOnly || server.WithoutHTTP() {
		t, _, err := c.Transport(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = t.Close() }() // the results of its sends are known
		o.Sender = t
	}
	if o.Actor == "" {
		o.Actor = c.Env("USER")
	}
	if c.DryRun && e.any() {
		if err := e.preview(ctx, c, src, o.Filter); err != nil {
			return err
		}
	}
	if !c.DryRun {
		if err := c.SameJob(o.Journal); err != nil {
			return err
		}
		c.Note("the journal is %s", o.Journal)
	}
	progress, connected := newProgress(c), c.Connecting(ctx)
	o.OnEvent = func(e deadletter.Event) {
		if e.Event != "begin" {
			connected()
		}
		switch {
		case e.Event == "failed":
			c.Note("%s failed: %s", output.Safe(e.MessageID), output.Safe(e.Why))
		case e.Event == "redriven" && e.SentAs != "":
			trace := ""
			if !server.WithoutHTTP() {
				trace = "; " + output.Mention(c.Here(output.Command(c.Command.Root().Name()+" trace", e.SentAs))) + " shows its deliveries"
			}
			c.Note("%s was sent as %s%s", output.Safe(e.MessageID), output.Safe(e.SentAs), trace)
		}
		progress.Step(e.Event == "redriven")
	}
	report, err := deadletter.Redrive(ctx, src, o)
	connected()
	progress.End()
	e.noteMarks(c)
	fields := reportFields(report)
	if e.unchanged > 0 {
		fields = append(fields, output.Field{Name: "failed, not changed by " + e.name(), Value: e.unchanged})
	}
	if report.Redriven == 0 {
		to = nil
	}
	if to != nil {
		name := "they go to"
		if c.DryRun {
			name = "they would go to"
		}
		fields = append(fields, output.Field{Name: name, Value: to.String()})
	}
	document := struct {
		deadletter.Report
		Unchanged int        `json:"unchanged,omitempty"` // of Failed: the edit changed nothing
		To        *receivers `json:"to,omitempty"`        // nil if only the group receives them
	}{report, e.unchanged, to}
	if perr := c.Show(document, group, fields); perr != nil {
		err = errors.Join(err, perr)
	}
	again := c.Again(map[string]string{"journal": o.Journal, "yes": "true"})
	switch {
	case ctx.Err() != nil:
		c.Note("interrupted; this continues it: %s", again)
	case err != nil && report.Redriven > 0 && !c.DryRun:
		c.Note("this continues it: %s", again)
		err = fmt.Errorf("%s of %s dead letters were sent back before the error (%w): %w", output.Number(int64(report.Redriven)), output.Number(int64(report.Seen)), errPartly, err)
	case err == nil && (report.Failed > 0 || report.Stopped != ""):
		err = fmt.Errorf("%s of %s dead letters were sent back; the journal is %s: %w", output.Number(int64(report.Redriven)), output.Number(int64(report.Seen)), o.Journal, errPartly)
	case err == nil && report.Redriven+report.Failed+report.Returned+report.Recovered+report.Unresolved == 0 && onlyFiltered(report):
		return notFound(noLetters(group, &selection{class: "-"}))
	}
	return err
}

// onlyFiltered reports whether no dead letter was skipped for another reason than the selection.
func onlyFiltered(r deadletter.Report) bool {
	for rule, n := range r.Skipped {
		if n > 0 && rule != "filtered out" {
			return false
		}
	}
	return true
}

// edits are the changes that flags make in each message of a redrive.
type edits struct {
	program             string
	tag                 string
	unsetTag, unsetKeys bool
	keys, set, unset    []string

	given      map[string]bool // names of the given flags
	properties map[string]string

	unchanged int   // messages that failed because nothing changed
	marked    error // of a body that the program has given a byte order mark
}

func (e *edits) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&e.program, "edit", "", "`program` that changes the body")
	f.StringVar(&e.tag, "set-tag", "", "new `tag` of each message")
	f.BoolVar(&e.unsetTag, "unset-tag", false, "remove the tag")
	f.StringArrayVar(&e.keys, "set-key", nil, "new `key` in place of all keys; may be repeated")
	f.BoolVar(&e.unsetKeys, "unset-keys", false, "remove all keys")
	f.StringArrayVar(&e.set, "set-property", nil, "property to add or change, as `NAME=VALUE`; may be repeated")
	f.StringArrayVar(&e.unset, "unset-property", nil, "`NAME` of a property to remove; may be repeated")
}

// any reports whether a flag requests a change.
func (e *edits) any() bool { return len(e.given) > 0 }

// name returns the flag that an error about an edit names.
func (e *edits) name() string {
	if e.program != "" {
		return "--edit"
	}
	return "the flags"
}

// check reads the flags, and returns an error if no message can have the requested values.
func (e *edits) check(c *Call) error {
	fault := func(format string, args ...any) error { return usagef(c.Command, format, args...) }
	e.given, e.properties = map[string]bool{}, map[string]string{}
	for _, name := range []string{"edit", "set-tag", "unset-tag", "set-key", "unset-keys", "set-property", "unset-property"} {
		if f := c.Command.Flags().Lookup(name); f.Changed && f.Value.String() != "false" {
			e.given[name] = true
		}
	}
	switch {
	case e.given["edit"] && strings.TrimSpace(e.program) == "":
		return fault("--edit is empty; give a program, or leave the flag out")
	case e.given["set-tag"] && e.unsetTag:
		return fault("--set-tag and --unset-tag exclude each other")
	case e.given["set-tag"] && e.tag == "":
		return fault("--set-tag is empty; --unset-tag removes the tag")
	case e.given["set-key"] && e.unsetKeys:
		return fault("--set-key and --unset-keys exclude each other")
	case slices.Contains(e.keys, ""):
		return fault("--set-key is empty; --unset-keys removes all keys")
	}
	for _, p := range e.set {
		name, value, ok := strings.Cut(p, "=")
		_, twice := e.properties[name]
		switch {
		case !ok:
			return fault("--set-property is %q; the form is NAME=VALUE", p)
		case twice:
			return fault("--set-property %s is given twice; a property has one value", name)
		case value == "":
			return fault("--set-property %s has no value, and RocketMQ drops such properties; --unset-property %s removes it", name, name)
		case name == protocol.PropertyDeadLetterRedrives:
			return fault("--set-property %s: the redrive sets this property", name)
		}
		e.properties[name] = value
	}
	for _, name := range e.unset {
		switch _, both := e.properties[name]; {
		case both:
			return fault("--set-property and --unset-property exclude each other for %s", name)
		case name == "" || strings.Contains(name, "="):
			return fault("--unset-property is %q; give the name of a property", name)
		case name == protocol.PropertyDeadLetterRedrives || tidegate.ReservedProperty(name):
			return fault("--unset-property %s: the property belongs to the servers", name)
		}
	}
	m := tidegate.Message{Topic: "topic", Body: []byte{0}, Tag: e.tag, Keys: e.keys, Properties: e.properties}
	if err := m.Validate(0); err != nil {
		return fault("%v", err)
	}
	return nil
}

// errUnchanged is the error of an edit that changes nothing.
var errUnchanged = errors.New("did not change")

// apply changes a message. It returns an error that matches errUnchanged if the program does not
// change the body, or if the flags change nothing.
func (e *edits) apply(ctx context.Context, m *tidegate.Message) error {
	before := m.Clone()
	if e.program != "" {
		if err := e.run(ctx, m); err != nil {
			return err
		}
	}
	if e.given["set-tag"] || e.unsetTag {
		m.Tag = e.tag
	}
	if e.given["set-key"] || e.unsetKeys {
		m.Keys = slices.Clone(e.keys)
	}
	if m.Properties == nil {
		m.Properties = map[string]string{}
	}
	maps.Copy(m.Properties, e.properties)
	for _, name := range e.unset {
		delete(m.Properties, name)
	}
	if len(changes(before, m)) == 0 {
		return fmt.Errorf("the flags %w the message, which has these values; leave them out to send it back as it is", errUnchanged)
	}
	return nil
}

// run passes a body through the program of --edit.
func (e *edits) run(ctx context.Context, m *tidegate.Message) error {
	var stdout, stderr bytes.Buffer
	p := newProgram(ctx, e.program, nil, "TIDEGATE_MESSAGE_ID="+m.ID)
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(m.Body), &stdout, &stderr
	if err := p.Run(); err != nil {
		return fmt.Errorf("the program of --edit failed: %w: %s", err, lastLine(stderr.String()))
	}
	if bytes.Equal(m.Body, stdout.Bytes()) {
		return fmt.Errorf("the program of --edit %w the body; correct the program, or leave out --edit", errUnchanged)
	}
	if marked := declare.Marked(stdout.Bytes()); marked != nil && declare.Marked(m.Body) == nil {
		e.marked = marked
	}
	m.Body = stdout.Bytes()
	return nil
}

// noteMarks notes that the program of --edit, for example one of PowerShell, has changed the
// encoding of bodies. A body may have any bytes, so they are sent as they are.
func (e *edits) noteMarks(c *Call) {
	if e.marked != nil {
		c.Note("the program of --edit has changed the encoding of bodies, and receivers get them like that: %v", e.marked)
		e.marked = nil
	}
}

// changes returns the differences of two messages, one text each.
func changes(a, b *tidegate.Message) (lines []string) {
	if !bytes.Equal(a.Body, b.Body) {
		lines = append(lines, short(string(a.Body))+" -> "+short(string(b.Body)))
	}
	differ := func(name, a, b string) {
		if a != b {
			lines = append(lines, fmt.Sprintf("%s %s -> %s", name, orNone(a), orNone(b)))
		}
	}
	differ("tag", a.Tag, b.Tag)
	differ("keys", strings.Join(a.Keys, " "), strings.Join(b.Keys, " "))
	names := slices.AppendSeq(slices.Collect(maps.Keys(a.Properties)), maps.Keys(b.Properties))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		differ("property "+short(name), a.Properties[name], b.Properties[name])
	}
	return lines
}

func orNone(value string) string {
	if value == "" {
		return "none"
	}
	return short(value)
}

// short is the beginning of a body in one line.
func short(body string) string {
	const most = 200
	return output.Cut(body[:min(len(body), 8*most)], most)
}

// previews is the number of edits that a dry run shows.
const previews = 5

// preview edits the first dead letters of a dry run, and prints the differences.
func (e *edits) preview(ctx context.Context, c *Call, src deadletter.Source, filter deadletter.Filter) error {
	n, failed := 0, 0
	defer func() {
		e.noteMarks(c)
		if failed > 0 {
			c.Note("the edit fails for %d of the first %s; dead letters for which it fails are not sent back, and the counts below have them", failed, output.Count(int64(n), "dead letter"))
		}
	}()
	for l, err := range deadletter.List(ctx, src, filter, true) {
		if err != nil {
			return err
		}
		m := l.Message.Clone()
		var result string
		if err := e.apply(ctx, m); err != nil {
			failed++
			result = "fails: " + err.Error()
		} else {
			result = strings.Join(changes(&l.Message, m), "; ")
		}
		if _, err := fmt.Fprintf(c.Out, "%s  %s\n", output.Safe(m.ID), output.Safe(result)); err != nil {
			return err
		}
		if n++; n == previews {
			return nil
		}
	}
	return nil
}

// groupOnly returns an error if --to-group-only does not fit the other flags or the server.
func groupOnly(c *Call, to string) error {
	server, err := c.Server()
	switch {
	case err != nil:
		return err
	case server.foreign() != nil:
		return usagef(c.Command, "--to-group-only is for tidegate brokers and RocketMQ; leave the flag out, or give an address of this group alone with --to")
	case server.WithoutHTTP() && to == "":
		return usagef(c.Command, "--to-group-only needs --to TOPIC on RocketMQ, whose dead letters do not name the topic that they were sent to; "+
			"the messages go through the retry topic of this group for TOPIC")
	case !server.WithoutHTTP() && to != "":
		return usagef(c.Command, "--to-group-only sends each message to its own topic; give it or --to, not both")
	}
	return nil
}

// A receivers has the consumer groups that receive the messages of a redrive, if they are others
// than the group of the dead letters alone.
type receivers struct {
	Topics []string `json:"topics,omitempty"` // sorted; nil if they are not known, as are the groups
	Groups []string `json:"groups,omitempty"`

	advice string // how to send to the group of the dead letters alone
}

// most is the number of topics, and of letters, for which receivers are looked up.
const most = 100

// receiversOf returns the receivers of a redrive; nil if the group of the dead letters is known to
// be the only one. A failed request leaves the groups unknown: the redrive itself reports the
// fault.
func (s *selection) receiversOf(ctx context.Context, c *Call, o *deadletter.Options) *receivers {
	server, err := c.Server()
	if err != nil || o.ToGroupOnly {
		return nil
	}
	r := &receivers{advice: "a topic of group " + output.Safe(c.Args[0]) + " alone, given by --to, avoids it"}
	if o.To != "" {
		r.Topics = []string{o.To}
	}
	if server.WithoutHTTP() {
		if server.foreign() == nil && o.To != "" {
			r.advice = "--to-group-only sends to group " + output.Safe(c.Args[0]) + " alone"
		}
		return r
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return r
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	if g, err := client.Group(ctx, c.Args[0]); err == nil && o.To == "" && !g.FIFO {
		r.advice = "--to-group-only sends to group " + output.Safe(c.Args[0]) + " alone"
	}
	if o.To == "" {
		if r.Topics, err = s.topics(ctx, c.Args[0], client); err != nil {
			return r
		}
	}
	if len(r.Topics) > most {
		return r
	}
	groups := map[string]bool{}
	for _, name := range r.Topics {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return r
		}
		for _, g := range t.Groups {
			groups[g] = true
		}
	}
	if delete(groups, c.Args[0]); len(groups) == 0 && len(r.Topics) > 0 {
		return nil
	}
	groups[c.Args[0]] = true
	r.Groups = slices.Sorted(maps.Keys(groups))
	return r
}

// topics returns the topics of the original sends of the selected letters, or those of more
// letters; nil if they are not known.
func (s *selection) topics(ctx context.Context, group string, client *admin.Client) ([]string, error) {
	found := map[string]bool{}
	switch {
	case s.topic != "":
		found[s.topic] = true
	case len(s.ids) > 0 && len(s.ids) <= most:
		page, err := client.DeadLetters(ctx, group, status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: s.ids}, In: s.in, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, l := range page.DeadLetters {
			found[l.Origin.Topic] = true
		}
	default:
		page, err := client.DeadLetterClasses(ctx, group, status.DeadLetterClassQuery{In: s.in, Limit: maxClasses})
		if err != nil {
			return nil, err
		}
		in, err := client.Topic(ctx, cmp.Or(s.in, tidegate.DeadLetterTopic(group)))
		if err != nil || page.Other != nil || page.Next != "" || page.Letters != in.StoredMessages { // it has letters without a class
			return nil, err
		}
		for _, k := range page.Classes {
			if s.class == "" || s.class == k.Fingerprint {
				found[k.Topic] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// String returns the receivers with the advice, as the end of a sentence.
func (r *receivers) String() string {
	text := "all groups of "
	switch len(r.Topics) {
	case 0:
		text += "the topic of each message"
	case 1:
		text += "topic " + output.Safe(r.Topics[0])
	default:
		text += "topics " + listed(r.Topics)
	}
	if len(r.Groups) > 0 {
		text += ": " + listed(r.Groups)
	}
	return text + "; " + r.advice
}

// listed joins the first names of a list.
func listed(names []string) string {
	const first = 10
	more := ""
	if len(names) > first {
		more = fmt.Sprintf(" and %d more", len(names)-first)
		names = names[:first]
	}
	safe := make([]string, len(names))
	for i, name := range names {
		safe[i] = output.Safe(name)
	}
	return strings.Join(safe, ", ") + more
}
