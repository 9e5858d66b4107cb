package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/check"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A checkCommand has the flags of check.
type checkCommand struct {
	*call.Call
	backlog, dead, parked check.Bound
	blocked               check.Bound
	age                   check.Bound // seconds
	certificate           check.Bound // days
	throttled             string
	since                 string
	nagios                string
}

func newCheck(a *call.App) *cobra.Command {
	k := &checkCommand{age: check.Bound{Name: "age", Unit: " s"}, backlog: check.Bound{Name: "backlog"}, dead: check.Bound{Name: "dead-letters"}, parked: check.Bound{Name: "parked"}, blocked: check.Bound{Name: "blocked"}, certificate: check.Bound{Name: "cert-days", Below: true}}
	c := &cobra.Command{
		Use: "check", GroupID: call.SeeGroup,
		Short: "Check the broker, a topic or a group for monitoring, with Nagios' exit codes",
		Long: `Checks the broker ("broker", the default), a topic ("topic NAME"), a consumer group
("group NAME") or its new dead letters ("dead-letters GROUP"), prints one line, and
exits with Nagios' codes: 0 OK, 1 warning, 2 critical, 3 unknown. The check of a
broker with TLS can also check how long its certificate is valid.`,
		Example: `  tidegate check
  tidegate check topic orders --backlog-warn 10000 --backlog-crit 100000
  tidegate check group billing --dead-letters-warn 1 --parked-crit 1
  tidegate check group billing --age-warn 5m --age-crit 1h
  tidegate check dead-letters billing --since -1h --dead-letters-warn 1`,
	}
	k.Call = a.Remote(c, []string{"[SUBJECT]", "[NAME]"}, func(ctx context.Context, _ *call.Call) error { return k.run(ctx) })
	k.Machine = true
	k.backlog.Register(c, "messages of backlog")
	k.age.RegisterTime(c, "the oldest message that a group has not consumed")
	k.dead.Register(c, "stored dead letters")
	k.parked.Register(c, "parked messages")
	k.blocked.Register(c, "messages of blocked message groups")
	k.certificate.Register(c, "days of validity of the server's certificate")
	c.Flags().StringVar(&k.since, "since", "-1h", "`time` from which dead-letters GROUP counts")
	c.Flags().StringVar(&k.throttled, "throttled", "warn", "`level` of a throttle: ok, warn or crit")
	c.Flags().StringVar(&k.nagios, "format", "nagios", "`form` of the line: nagios, prometheus or json")
	return c
}

// run prints the errors of arguments itself: their exit code for Nagios is unknown.
func (k *checkCommand) run(ctx context.Context) error {
	err := k.checked(ctx)
	if usage, ok := errors.AsType[command.UsageError](err); ok {
		k.Note("tidegate: %v", usage)
		return command.Status(check.Unknown)
	}
	return err
}

func (k *checkCommand) checked(ctx context.Context) error {
	level, ok := map[string]int{"ok": check.OK, "warn": check.Warning, "crit": check.Critical}[k.throttled]
	if !ok {
		return command.Usagef(k.Command, "--throttled is %q; it is ok, warn or crit", k.throttled)
	}
	if !slices.Contains([]string{"nagios", "prometheus", "json"}, k.nagios) {
		return command.Usagef(k.Command, "--format is %q; it is nagios, prometheus or json", k.nagios)
	}
	subject := "broker"
	if len(k.Args) > 0 {
		subject = k.Args[0]
	}
	if named := subject == "topic" || subject == "group" || subject == "dead-letters"; !named && subject != "broker" || named != (len(k.Args) == 2) {
		return command.Usagef(k.Command, "the subjects are broker, topic NAME, group NAME and dead-letters GROUP")
	}
	since, err := output.ParseTime(k.since, time.Now())
	if err != nil {
		return command.Usagef(k.Command, "--since: %v", err)
	}
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	f := check.Finding{}
	if err := k.find(ctx, subject, level, since, &f); err != nil {
		f.Raise(check.Unknown, err.Error())
		if code := command.ExitCode(err); code == command.ExitNoAnswer || code == command.ExitNotFound {
			f.Level = check.Critical
		}
	}
	f.Status = check.Names[f.Level]
	if err := k.printFinding(subject, f); err != nil {
		return err
	}
	if f.Level != check.OK {
		return command.Status(f.Level)
	}
	return nil
}

func (k *checkCommand) find(ctx context.Context, subject string, throttled int, since time.Time, f *check.Finding) error {
	s, err := k.Server()
	if err != nil {
		return err
	}
	if subject == "broker" && (k.certificate.Warning >= 0 || k.certificate.Critical >= 0) {
		days, err := s.CertificateDays(ctx)
		if err != nil {
			return err
		}
		k.certificate.Judge(f, days)
	}
	if s.WithoutHTTP() && subject == "broker" {
		t, _, err := k.Transport(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = t.Close() }() // only the ping counts
		return t.Ping(ctx)
	}
	client, err := k.Admin(ctx)
	if err != nil {
		return err
	}
	switch subject {
	case "topic":
		return k.topic(ctx, client, throttled, f)
	case "group":
		return k.group(ctx, client, f)
	case "dead-letters":
		return k.deadLetters(ctx, client, since, f)
	}
	if err := client.Ready(ctx); err != nil {
		return err
	}
	state, err := client.Throttles(ctx)
	for _, t := range state.Throttles {
		f.Raise(throttled, fmt.Sprintf("%s of %s is reached", t.Limit, cmp.Or(t.Subject, "the broker")))
	}
	return err
}

func (k *checkCommand) topic(ctx context.Context, client *admin.Client, throttled int, f *check.Finding) error {
	t, err := client.Topic(ctx, k.Args[1])
	if err != nil {
		return err
	}
	if t.Throttle != nil {
		f.Raise(throttled, fmt.Sprintf("sends are rejected: %s", view.ThrottleText(t.Throttle)))
	}
	k.backlog.Judge(f, t.Backlog.Messages)
	summaries, _, err := client.TopicSummaries(ctx, admin.ListQuery{Match: t.Name})
	if err != nil {
		return err
	}
	oldest := int64(0)
	for _, s := range summaries {
		oldest = max(oldest, s.OldestMS)
	}
	k.age.Judge(f, oldest/1000)
	return nil
}

func (k *checkCommand) group(ctx context.Context, client *admin.Client, f *check.Finding) error {
	g, err := client.Group(ctx, k.Args[1])
	if err != nil {
		return err
	}
	var backlog, dead, parked, blocked int64
	for _, s := range g.Topics {
		backlog += s.Backlog.Messages
		parked += s.Parked
		blocked += s.BlockedGroups + s.Blocked // the failed messages, and those behind them
	}
	for _, topic := range g.DeadLetterTopics {
		t, err := client.Topic(ctx, topic)
		if err != nil {
			return err
		}
		dead += t.StoredMessages
	}
	k.backlog.Judge(f, backlog)
	k.dead.Judge(f, dead)
	k.parked.Judge(f, parked)
	k.blocked.Judge(f, blocked)
	return k.groupAge(ctx, client, f)
}

// groupAge judges the oldest message of a group in all its topics, as the broker counted it within
// the last second.
func (k *checkCommand) groupAge(ctx context.Context, client *admin.Client, f *check.Finding) error {
	oldest := int64(0)
	for at := (httpapi.Cursor{}); ; {
		q := admin.ListQuery{Match: k.Args[1], Limit: 1000, After: at.After}
		page, next, err := client.GroupSummaries(ctx, q)
		if err != nil {
			return err
		}
		for _, s := range page {
			oldest = max(oldest, s.OldestMS)
		}
		if more, err := at.Advance(next); err != nil {
			return err
		} else if !more {
			k.age.Judge(f, oldest/1000)
			return nil
		}
	}
}

// deadLetters counts the dead letters of a group since a time.
func (k *checkCommand) deadLetters(ctx context.Context, client *admin.Client, since time.Time, f *check.Finding) error {
	if _, err := client.Group(ctx, k.Args[1]); err != nil {
		return err
	}
	n := int64(0)
	for at := (httpapi.Cursor{}); ; {
		q := status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{Since: since}, After: at.After}
		page, err := client.CountDeadLetters(ctx, k.Args[1], q)
		if err != nil {
			return err
		}
		n += page.Count
		if more, err := at.Advance(page.Next); err != nil {
			return err
		} else if !more {
			k.dead.Judge(f, n)
			return nil
		}
	}
}

func (k *checkCommand) printFinding(subject string, f check.Finding) error {
	name := strings.Join(k.Args[min(1, len(k.Args)):], "")
	switch {
	case k.nagios == "json" || k.JSON():
		f.Subject, f.Name, f.Text, f.Values = subject, name, cmp.Or(f.Text, check.NoBound), call.NotNil(f.Values)
		return output.Line(k.Out, f)
	case k.nagios == "prometheus":
		_, err := fmt.Fprint(k.Out, f.Series(subject, name))
		return err
	case name != "":
		subject += " " + output.Safe(name)
	}
	_, err := fmt.Fprintln(k.Out, f.Line(subject))
	return err
}
