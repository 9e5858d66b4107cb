package cli

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
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// The levels are the exit codes of those of Nagios plugins.
const (
	checkOK = iota
	warning
	critical
	checkUnknown
)

// noBound is the text of a finding without a reason.
const noBound = "no bound is reached"

// names are those of the levels.
var names = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// A finding is the result of a check.
type finding struct {
	Subject string       `json:"subject"`
	Name    string       `json:"name,omitempty"` // of the subject
	Level   int          `json:"level"`          // the exit code
	Status  string       `json:"status"`
	Text    string       `json:"text"`
	Values  []checkValue `json:"values"`
}

// A checkValue is one measured value with its bounds; -1 means no bound.
type checkValue struct {
	Name     string `json:"name"`
	Value    int64  `json:"value"`
	Warning  int64  `json:"warning"`
	Critical int64  `json:"critical"`
}

// A bound has the flags of one measured value.
type bound struct {
	Name              string
	Unit              string // of the value in texts; empty for a number of things
	Below             bool   // small values are bad
	Warning, Critical int64
}

// Register adds the flags.
func (b *bound) Register(c *cobra.Command, what string) {
	from := " from `N` " + what + " on"
	if b.Below {
		from = " at `N` " + what + " or less"
	}
	c.Flags().Int64Var(&b.Warning, b.Name+"-warn", -1, "warn"+from+" (default: never)")
	c.Flags().Int64Var(&b.Critical, b.Name+"-crit", -1, "critical"+from+" (default: never)")
	for _, name := range []string{"-warn", "-crit"} {
		c.Flags().Lookup(b.Name + name).DefValue = "0" // the text has it
	}
}

// RegisterTime adds the flags of a time, whose value is in seconds.
func (b *bound) RegisterTime(c *cobra.Command, what string) {
	b.Warning, b.Critical = -1, -1
	c.Flags().Var((*seconds)(&b.Warning), b.Name+"-warn", "warn if "+what+" is at least this `time` old")
	c.Flags().Var((*seconds)(&b.Critical), b.Name+"-crit", "critical if "+what+" is at least this `time` old")
}

// seconds is the flag of a time in whole seconds; -1 means that it is not given.
type seconds int64

// Type is the name of the value in the help.
func (s *seconds) Type() string { return "time" }

// String returns the value.
func (s *seconds) String() string {
	if *s < 0 {
		return ""
	}
	return (time.Duration(*s) * time.Second).String()
}

// Set reads the value.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return errors.New("it is a time of at least 1s, as in 5m")
	}
	*s = seconds(d / time.Second)
	return nil
}

// Judge adds a value to a finding.
func (b *bound) Judge(f *finding, value int64) {
	f.Values = append(f.Values, checkValue{b.Name, value, b.Warning, b.Critical})
	level, mark := checkOK, int64(0)
	reached := func(mark int64) bool { return mark >= 0 && (value == mark || value < mark == b.Below) }
	switch {
	case reached(b.Critical):
		level, mark = critical, b.Critical
	case reached(b.Warning):
		level, mark = warning, b.Warning
	}
	if level > checkOK {
		f.Raise(level, fmt.Sprintf("%s is %d%s, the bound is %d%[3]s", b.Name, value, b.Unit, mark))
	}
}

// Raise makes a finding at least as bad as a level, with its reason.
func (f *finding) Raise(level int, reason string) {
	f.Level = max(f.Level, level)
	if f.Text != "" {
		f.Text += "; "
	}
	f.Text += reason
}

// Series are the values as Prometheus reads them from a file of the node exporter.
func (f *finding) Series(subject, name string) string {
	var b strings.Builder
	labels := fmt.Sprintf("{subject=%q,name=%q}", subject, name)
	fmt.Fprintf(&b, "# HELP tidegate_check_level Result of a check: 0 OK, 1 warning, 2 critical, 3 unknown.\n# TYPE tidegate_check_level gauge\ntidegate_check_level%s %d\n", labels, f.Level)
	for _, v := range f.Values {
		name := "tidegate_check_" + strings.ReplaceAll(v.Name, "-", "_")
		fmt.Fprintf(&b, "# HELP %s A value of a check.\n# TYPE %[1]s gauge\n%[1]s%[2]s %[3]d\n", name, labels, v.Value)
	}
	return b.String()
}

// Line is the line of Nagios: the level, the reasons and the values.
func (f *finding) Line(subject string) string {
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
	line := fmt.Sprintf("TIDEGATE %s - %s: %s", f.Status, subject, cmp.Or(output.Safe(f.Text), noBound))
	if len(perf) > 0 {
		line += " | " + strings.Join(perf, " ")
	}
	return line
}

// A checkCommand has the flags of check.
type checkCommand struct {
	*Call
	backlog, dead, parked bound
	blocked               bound
	age                   bound // seconds
	certificate           bound // days
	throttled             string
	since                 string
	nagios                string
}

func newCheck(a *App) *cobra.Command {
	k := &checkCommand{age: bound{Name: "age", Unit: " s"}, backlog: bound{Name: "backlog"}, dead: bound{Name: "dead-letters"}, parked: bound{Name: "parked"}, blocked: bound{Name: "blocked"}, certificate: bound{Name: "cert-days", Below: true}}
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
  tidegate check group billing --age-warn 5m --age-crit 1h
  tidegate check dead-letters billing --since -1h --dead-letters-warn 1`,
	}
	k.Call = a.Remote(c, []string{"[SUBJECT]", "[NAME]"}, func(ctx context.Context, _ *Call) error { return k.run(ctx) })
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
	if usage, ok := errors.AsType[UsageError](err); ok {
		k.Note("tidegate: %v", usage)
		return commandStatus(checkUnknown)
	}
	return err
}

func (k *checkCommand) checked(ctx context.Context) error {
	level, ok := map[string]int{"ok": checkOK, "warn": warning, "crit": critical}[k.throttled]
	if !ok {
		return usagef(k.Command, "--throttled is %q; it is ok, warn or crit", k.throttled)
	}
	if !slices.Contains([]string{"nagios", "prometheus", "json"}, k.nagios) {
		return usagef(k.Command, "--format is %q; it is nagios, prometheus or json", k.nagios)
	}
	subject := "broker"
	if len(k.Args) > 0 {
		subject = k.Args[0]
	}
	if named := subject == "topic" || subject == "group" || subject == "dead-letters"; !named && subject != "broker" || named != (len(k.Args) == 2) {
		return usagef(k.Command, "the subjects are broker, topic NAME, group NAME and dead-letters GROUP")
	}
	since, err := output.ParseTime(k.since, time.Now())
	if err != nil {
		return usagef(k.Command, "--since: %v", err)
	}
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	f := finding{}
	if err := k.find(ctx, subject, level, since, &f); err != nil {
		f.Raise(checkUnknown, err.Error())
		if code := exitCode(err); code == exitNoAnswer || code == exitNotFound {
			f.Level = critical
		}
	}
	f.Status = names[f.Level]
	if err := k.printFinding(subject, f); err != nil {
		return err
	}
	if f.Level != checkOK {
		return commandStatus(f.Level)
	}
	return nil
}

func (k *checkCommand) find(ctx context.Context, subject string, throttled int, since time.Time, f *finding) error {
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

func (k *checkCommand) topic(ctx context.Context, client *admin.Client, throttled int, f *finding) error {
	t, err := client.Topic(ctx, k.Args[1])
	if err != nil {
		return err
	}
	if t.Throttle != nil {
		f.Raise(throttled, fmt.Sprintf("sends are rejected: %s", throttleText(t.Throttle)))
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

func (k *checkCommand) group(ctx context.Context, client *admin.Client, f *finding) error {
	g, err := client.Group(ctx, k.Args[1])
	if err != nil {
		return err
	}
	var dead, parked, blocked, oldest int64
	for _, s := range g.Topics {
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
	k.backlog.Judge(f, backlogOf(g))
	k.dead.Judge(f, dead)
	k.parked.Judge(f, parked)
	k.blocked.Judge(f, blocked)
	// The oldest message in all topics, as the broker counted it within the last second.
	err = httpapi.Pages("", func(after string) (string, error) {
		page, next, err := client.GroupSummaries(ctx, admin.ListQuery{Match: k.Args[1], Limit: 1000, After: after})
		for _, s := range page {
			oldest = max(oldest, s.OldestMS)
		}
		return next, err
	})
	if err == nil {
		k.age.Judge(f, oldest/1000)
	}
	return err
}

// deadLetters counts the dead letters of a group since a time.
func (k *checkCommand) deadLetters(ctx context.Context, client *admin.Client, since time.Time, f *finding) error {
	if _, err := client.Group(ctx, k.Args[1]); err != nil {
		return err
	}
	n, err := count(ctx, k.Call, client, k.Args[1], status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{Since: since}})
	if err == nil {
		k.dead.Judge(f, n)
	}
	return err
}

func (k *checkCommand) printFinding(subject string, f finding) error {
	name := strings.Join(k.Args[min(1, len(k.Args)):], "")
	switch {
	case k.nagios == "json" || k.JSON():
		f.Subject, f.Name, f.Text, f.Values = subject, name, cmp.Or(f.Text, noBound), notNil(f.Values)
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
