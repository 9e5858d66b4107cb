package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// The exit codes of check are those of Nagios plugins.
const (
	checkOK = iota
	checkWarning
	checkCritical
	checkUnknown
)

var checkNames = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// A finding is the result of check.
type finding struct {
	Level  int         `json:"level"` // the exit code
	Status string      `json:"status"`
	Text   string      `json:"text"`
	Values []perfValue `json:"values"`
}

// A perfValue is one measured value with its bounds; -1 means no bound.
type perfValue struct {
	Name     string `json:"name"`
	Value    int64  `json:"value"`
	Warning  int64  `json:"warning"`
	Critical int64  `json:"critical"`
}

// A bound has the flags of one measured value.
type bound struct {
	name              string
	below             bool // small values are bad
	warning, critical int64
}

func (b *bound) register(c *cobra.Command, what string) {
	from := " from `N` " + what + " on"
	if b.below {
		from = " at `N` " + what + " or less"
	}
	c.Flags().Int64Var(&b.warning, b.name+"-warn", -1, "warn"+from+"; -1 means never")
	c.Flags().Int64Var(&b.critical, b.name+"-crit", -1, "critical"+from+"; -1 means never")
}

// judge adds a value to a finding.
func (b *bound) judge(f *finding, value int64) {
	f.Values = append(f.Values, perfValue{b.name, value, b.warning, b.critical})
	level, mark := checkOK, int64(0)
	reached := func(mark int64) bool { return mark >= 0 && (value == mark || value < mark == b.below) }
	switch {
	case reached(b.critical):
		level, mark = checkCritical, b.critical
	case reached(b.warning):
		level, mark = checkWarning, b.warning
	}
	if level > checkOK {
		f.raise(level, fmt.Sprintf("%s is %d, the bound is %d", b.name, value, mark))
	}
}

// raise makes a finding at least as bad as a level, with its reason.
func (f *finding) raise(level int, reason string) {
	f.Level = max(f.Level, level)
	if f.Text != "" {
		f.Text += "; "
	}
	f.Text += reason
}

// A checkCommand has the flags of check.
type checkCommand struct {
	*call
	backlog, dead, parked bound
	certificate           bound // days
	throttled             string
	since                 string
	nagios                string
}

func (a *App) check() *cobra.Command {
	k := &checkCommand{backlog: bound{name: "backlog"}, dead: bound{name: "dead-letters"}, parked: bound{name: "parked"}, certificate: bound{name: "cert-days", below: true}}
	c := &cobra.Command{
		Use: "check", GroupID: seeGroup,
		Short: "Check the broker, a topic or a group for monitoring, with Nagios' exit codes",
		Long: `Checks the broker ("broker", the default), a topic ("topic NAME"), a consumer group
("group NAME") or its new dead letters ("dead-letters GROUP"), prints one line, and
exits with Nagios' codes: 0 OK, 1 warning, 2 critical, 3 unknown. The check of a
broker with TLS can also check how long its certificate is valid.`,
		Example: `  tidegate check
  tidegate check topic orders --backlog-warn 10000 --backlog-crit 100000
  tidegate check group billing --dead-letters-warn 1 --parked-crit 1
  tidegate check dead-letters billing --since -1h --dead-letters-warn 1`,
	}
	k.call = a.remote(c, []string{"[SUBJECT]", "[NAME]"}, func(ctx context.Context, _ *call) error { return k.run(ctx) })
	k.backlog.register(c, "messages of backlog")
	k.dead.register(c, "stored dead letters")
	k.parked.register(c, "parked messages")
	k.certificate.register(c, "days of validity of the server's certificate")
	c.Flags().StringVar(&k.since, "since", "-1h", "`time` from which dead-letters GROUP counts")
	c.Flags().StringVar(&k.throttled, "throttled", "warn", "`level` of a throttle: ok, warn or crit")
	c.Flags().StringVar(&k.nagios, "format", "nagios", "`form` of the line: nagios, prometheus or json")
	return c
}

// run prints what is wrong with the arguments itself: for Nagios their exit code is unknown.
func (k *checkCommand) run(ctx context.Context) error {
	err := k.checked(ctx)
	if usage, ok := errors.AsType[command.UsageError](err); ok {
		k.note("tidegate: %v", usage)
		return command.Status(checkUnknown)
	}
	return err
}

func (k *checkCommand) checked(ctx context.Context) error {
	level, ok := map[string]int{"ok": checkOK, "warn": checkWarning, "crit": checkCritical}[k.throttled]
	if !ok {
		return command.Usagef(k.command, "--throttled is %q; it is ok, warn or crit", k.throttled)
	}
	if !slices.Contains([]string{"nagios", "prometheus", "json"}, k.nagios) {
		return command.Usagef(k.command, "--format is %q; it is nagios, prometheus or json", k.nagios)
	}
	subject := "broker"
	if len(k.args) > 0 {
		subject = k.args[0]
	}
	if named := subject == "topic" || subject == "group" || subject == "dead-letters"; !named && subject != "broker" || named != (len(k.args) == 2) {
		return command.Usagef(k.command, "the subjects are broker, topic NAME, group NAME and dead-letters GROUP")
	}
	since, err := output.ParseTime(k.since, time.Now())
	if err != nil {
		return command.Usagef(k.command, "--since: %v", err)
	}
	ctx, cancel := k.bounded(ctx)
	defer cancel()
	f := finding{}
	if err := k.find(ctx, subject, level, since, &f); err != nil {
		f.raise(checkUnknown, err.Error())
		if code := command.ExitCode(err); code == command.ExitNoAnswer || code == command.ExitNotFound {
			f.Level = checkCritical
		}
	}
	f.Status = checkNames[f.Level]
	if err := k.printFinding(subject, f); err != nil {
		return err
	}
	if f.Level != checkOK {
		return command.Status(f.Level)
	}
	return nil
}

func (k *checkCommand) find(ctx context.Context, subject string, throttled int, since time.Time, f *finding) error {
	s, err := k.server()
	if err != nil {
		return err
	}
	if subject == "broker" && (k.certificate.warning >= 0 || k.certificate.critical >= 0) {
		days, err := s.CertificateDays(ctx)
		if err != nil {
			return err
		}
		k.certificate.judge(f, days)
	}
	if s.Kind == connection.RocketMQ && subject == "broker" {
		t, _, err := k.transport(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = t.Close() }() // the ping is what counts
		return t.Ping(ctx)
	}
	client, err := k.admin(ctx)
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
		f.raise(throttled, fmt.Sprintf("%s of %s is reached", t.Limit, or(t.Subject, "the broker")))
	}
	return err
}

func (k *checkCommand) topic(ctx context.Context, client *admin.Client, throttled int, f *finding) error {
	t, err := client.Topic(ctx, k.args[1])
	if err != nil {
		return err
	}
	if t.Throttle != nil {
		f.raise(throttled, "sends are rejected: "+throttleText(t.Throttle))
	}
	k.backlog.judge(f, t.Backlog.Messages)
	return nil
}

func (k *checkCommand) group(ctx context.Context, client *admin.Client, f *finding) error {
	g, err := client.Group(ctx, k.args[1])
	if err != nil {
		return err
	}
	var backlog, dead, parked int64
	for _, s := range g.Topics {
		backlog += s.Backlog.Messages
		parked += s.Parked
	}
	for _, topic := range g.DeadLetterTopics {
		t, err := client.Topic(ctx, topic)
		if err != nil {
			return err
		}
		dead += t.StoredMessages
	}
	k.backlog.judge(f, backlog)
	k.dead.judge(f, dead)
	k.parked.judge(f, parked)
	return nil
}

// deadLetters counts the dead letters of a group since a time.
func (k *checkCommand) deadLetters(ctx context.Context, client *admin.Client, since time.Time, f *finding) error {
	if _, err := client.Group(ctx, k.args[1]); err != nil {
		return err
	}
	n := int64(0)
	for _, err := range client.AllDeadLetters(ctx, k.args[1], status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{Since: since}, Limit: 1000}) {
		if err != nil {
			return err
		}
		n++
	}
	k.dead.judge(f, n)
	return nil
}

// series are the values as Prometheus reads them from a file of the node exporter.
func (k *checkCommand) series(subject string, f finding) string {
	var b strings.Builder
	labels := fmt.Sprintf("{subject=%q,name=%q}", subject, strings.Join(k.args[min(1, len(k.args)):], ""))
	fmt.Fprintf(&b, "# HELP tidegate_check_level Result of a check: 0 OK, 1 warning, 2 critical, 3 unknown.\n# TYPE tidegate_check_level gauge\ntidegate_check_level%s %d\n", labels, f.Level)
	for _, v := range f.Values {
		name := "tidegate_check_" + strings.ReplaceAll(v.Name, "-", "_")
		fmt.Fprintf(&b, "# HELP %s A value of a check.\n# TYPE %[1]s gauge\n%[1]s%[2]s %[3]d\n", name, labels, v.Value)
	}
	return b.String()
}

func (k *checkCommand) printFinding(subject string, f finding) error {
	if k.nagios == "json" || k.json() {
		return output.Line(k.Out, f)
	}
	if k.nagios == "prometheus" {
		_, err := fmt.Fprint(k.Out, k.series(subject, f))
		return err
	}
	name := subject
	if len(k.args) > 1 {
		name += " " + output.Safe(k.args[1])
	}
	var perf []string
	for _, v := range f.Values {
		edge := func(n int64) string {
			if n < 0 {
				return ""
			}
			return fmt.Sprint(n)
		}
		perf = append(perf, fmt.Sprintf("%s=%d;%s;%s", v.Name, v.Value, edge(v.Warning), edge(v.Critical)))
	}
	line := fmt.Sprintf("TIDEGATE %s - %s: %s", f.Status, name, or(output.Safe(f.Text), "no bound is reached"))
	if len(perf) > 0 {
		line += " | " + strings.Join(perf, " ")
	}
	_, err := fmt.Fprintln(k.Out, line)
	return err
}
