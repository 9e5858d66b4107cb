package failures

import (
	"bytes"
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
	var edit string
	cmd := &cobra.Command{
		Use:   "redrive",
		Short: "Send dead letters back to their topics",
		Long: `Sends dead letters back to their topics, at a limited rate, and removes them. All
groups of the topic receive them; with --to-group-only only GROUP does, which must
not be FIFO. A message that was sent back three times is skipped, and the run stops
if too many fail.

--edit runs a program by the shell for each message: the body is its standard
input, and its standard output is the new body. A program that fails or that does
not change the body leaves the dead letter as it is, and the dead letter counts as
failed. The edited message has a new ID, which is printed: ID.redrive-1. All groups
of the topic receive it: --edit and --to-group-only exclude each other.

The journal records each message before and after it is sent. After an
interruption the same command with the same --journal continues: no message is
sent back twice.`,
		Example: `  tidegate dead-letters redrive billing --class 5f1c9a --dry-run
  tidegate dead-letters redrive billing --id ID --edit "sed s/EUR/USD/" --yes
  tidegate dead-letters redrive billing --to-group-only --rate 50 --yes`,
	}
	c := a.Remote(cmd, []string{"GROUP"}, func(ctx context.Context, c *call.Call) error {
		if o.ToGroupOnly {
			if err := groupOnly(c, o.To, edit); err != nil {
				return err
			}
		}
		src, filter, closing, err := s.source(ctx, c)
		if err != nil {
			return err
		}
		o.Filter, o.DryRun = filter, c.DryRun
		return errors.Join(redrive(ctx, c, src, o, edit), closing())
	})
	s.registerReading(cmd)
	f := cmd.Flags()
	f.StringVar(&o.To, "to", "", "target `topic` (default: the topic of each message's send)")
	f.BoolVar(&o.ToGroupOnly, "to-group-only", false, "send to the group alone, not to the other groups of the topic")
	f.Float64Var(&o.PerSecond, "rate", 100, "most messages a second")
	f.IntVar(&o.Limit, "max", 0, "most messages of this run; 0 means all")
	f.IntVar(&o.MaxGenerations, "max-redrives", 3, "skip messages that were sent back this often, 1 to 3")
	f.Float64Var(&o.MaxFailureShare, "max-failures", 0.1, "stop if a larger share of the last 50 fails")
	f.StringVar(&edit, "edit", "", "`program` that changes the body")
	f.StringVar(&o.Journal, "journal", "", "`file` of this job, new or to be continued (default: a new one in the directory of the user's state)")
	c.NoLimit("--max bounds the dead letters of this run")
	return c.Destructive()
}

func redrive(ctx context.Context, c *call.Call, src deadletter.Source, o deadletter.Options, program string) error {
	group := c.Args[0]
	if !c.DryRun {
		if err := c.Confirm(fmt.Sprintf("send the dead letters of group %s back?", output.Safe(group)), group); err != nil {
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
	unchanged := 0
	if program != "" {
		o.Edit = func(m *tidegate.Message) error {
			err := edit(ctx, program, m)
			if errors.Is(err, errUnchanged) {
				unchanged++
			}
			return err
		}
	}
	if program != "" || server.WithoutHTTP() {
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
	if c.DryRun && program != "" {
		if err := previewEdit(ctx, c, src, o, program); err != nil {
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
			c.Note("%s was sent as %s; %s shows its deliveries", output.Safe(e.MessageID), output.Safe(e.SentAs), shell.Mention(shell.Line(c.Command.Root().Name()+" trace", e.SentAs)))
		}
		progress.Step(e.Event == "redriven")
	}
	report, err := deadletter.Redrive(ctx, src, o)
	connected()
	progress.End()
	fields := view.ReportFields(report)
	if unchanged > 0 {
		fields = append(fields, output.Field{Name: "failed, not changed by --edit", Value: unchanged})
	}
	document := struct {
		deadletter.Report
		Unchanged int `json:"unchanged,omitempty"` // of Failed: --edit did not change the body
	}{report, unchanged}
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

// previews is the number of edits that a dry run shows.
const previews = 5

// previewEdit runs the program of --edit for the first dead letters, and prints the bodies before
// and after it.
func previewEdit(ctx context.Context, c *call.Call, src deadletter.Source, o deadletter.Options, program string) error {
	n, failed := 0, 0
	defer func() {
		if failed > 0 {
			c.Note("--edit fails for %d of the first %s; dead letters for which it fails are not sent back, and the counts below have them", failed, output.Count(int64(n), "dead letter"))
		}
	}()
	for l, err := range deadletter.List(ctx, src, o.Filter, true) {
		if err != nil {
			return err
		}
		m := l.Message.Clone()
		var result string
		if err := edit(ctx, program, m); err != nil {
			failed++
			result = "fails: " + err.Error()
		} else {
			result = short(string(l.Message.Body)) + " -> " + short(string(m.Body))
		}
		if _, err := fmt.Fprintf(c.Out, "%s  %s\n", output.Safe(m.ID), result); err != nil {
			return err
		}
		if n++; n == previews {
			return nil
		}
	}
	return nil
}

// short is the beginning of a body in one line.
func short(body string) string {
	const most = 200
	return output.Cut(body[:min(len(body), 8*most)], most)
}

// errUnchanged is the error of a program that printed its input.
var errUnchanged = errors.New("the program of --edit did not change the body; correct the program, or leave out --edit")

// edit passes a body through a program. It returns errUnchanged if the program does not change the
// body.
func edit(ctx context.Context, program string, m *tidegate.Message) error {
	var stdout, stderr bytes.Buffer
	p := shell.New(ctx, program, nil, "TIDEGATE_MESSAGE_ID="+m.ID)
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(m.Body), &stdout, &stderr
	if err := p.Run(); err != nil {
		return fmt.Errorf("the program of --edit failed: %w: %s", err, call.LastLine(stderr.String()))
	}
	if bytes.Equal(m.Body, stdout.Bytes()) {
		return errUnchanged
	}
	m.Body = stdout.Bytes()
	return nil
}
