package failures

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

func newDeadLettersRedrive(a *call.App) *cobra.Command {
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
	c := a.Remote(cmd, []string{"GROUP"}, func(ctx context.Context, c *call.Call) error {
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

func redrive(ctx context.Context, c *call.Call, src deadletter.Source, o deadletter.Options, e *edits, to *receivers) error {
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
	progress, connected := call.NewProgress(c), c.Connecting(ctx)
	o.OnEvent = func(e deadletter.Event) {
		if e.Event != "begin" {
			connected()
		}
		switch {
		case e.Event == "failed":
			c.Note("%s failed: %s", output.Safe(e.MessageID), output.Safe(e.Why))
		case e.Event == "redriven" && e.SentAs != "":
			c.Note("%s was sent as %s; %s shows its deliveries", output.Safe(e.MessageID), output.Safe(e.SentAs), shell.Mention(c.Here(shell.Line(c.Command.Root().Name()+" trace", e.SentAs))))
		}
		progress.Step(e.Event == "redriven")
	}
	report, err := deadletter.Redrive(ctx, src, o)
	connected()
	progress.End()
	e.noteMarks(c)
	fields := view.ReportFields(report)
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
		err = fmt.Errorf("%s of %s dead letters were sent back before the error (%w): %w", output.Number(int64(report.Redriven)), output.Number(int64(report.Seen)), command.ErrPartly, err)
	case err == nil && (report.Failed > 0 || report.Stopped != ""):
		err = fmt.Errorf("%s of %s dead letters were sent back; the journal is %s: %w", output.Number(int64(report.Redriven)), output.Number(int64(report.Seen)), o.Journal, command.ErrPartly)
	case err == nil && report.Redriven+report.Failed+report.Returned+report.Recovered+report.Unresolved == 0 && onlyFiltered(report):
		return call.NotFound(noLetters(group, &selection{class: "-"}))
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
