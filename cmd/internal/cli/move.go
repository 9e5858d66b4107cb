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
	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/producer"
)

// A moveCommand has the flags of move.
type moveCommand struct {
	*Call
	group, to, toTopic, journalFile, deadTopic, as, targetType string
	lite                                                       []string
	otherGroups, follow                                        bool
	workers                                                    int
	wait, lease                                                time.Duration
	rate                                                       float64
}

// newMove returns move.
func newMove(a *App) *cobra.Command {
	m := &moveCommand{}
	cmd := &cobra.Command{
		Use: "move", GroupID: operateGroup,
		Short: "Carry the messages of a topic, as one group sees them, to another server",
		Long: `Carries the messages that a consumer group has not consumed to the same topic of
another server, a tidegate broker or a RocketMQ 5: it receives each message, sends
it to the target, records that in the journal and acknowledges it. The target
topic and group have to exist; if not, the command prints how to create them.

Each message is carried at least once, with its ID, which becomes a key too, and
its message group, in order. A message that was moved before, or that has the ID of
another one of the job, gets a new ID, because a tidegate broker drops an ID that it
stored minutes ago; the key stays. Jobs with different journals give a message the
same ID, so that a message that both carry is stored once. Two different messages
with one ID in two jobs are then stored once, too, if the second job follows within
the duplicate window of the target: wait for its end before it. Waiting retries and
delayed messages are carried when they are due: the command waits for them, up to
--wait without a message, or without end with --follow. Stop the consumers of the
group first, and let the producers send to the target.

While a server is away or throttles, the command waits for it and extends the leases
of the messages in hand. A message that the target rejects stays at the source, with
the later ones of its message group, and the command ends with the exit code of a
part; after 100 of them it ends.

The same command with the same --journal continues after an interruption. If the
interrupted command was killed, it first waits for the end of its leases. If the
journal cannot be written, for example on a full disk, the command ends: the source
has removed what the target has, and the same command carries the rest later.
Dead letters stay unless --dead-letters names a topic of the target for them.

From a topic of type LITE the command carries the messages of one lite topic after the
other, in their order, to the lite topic of the same name. A tidegate broker lists its
lite topics. A RocketMQ does not: name each with --lite. Their consumers must have
stopped, or share them; in a group whose lite topics have one consumer at a time the
command takes them.`,
		Example: `  tidegate move orders --group billing --to cluster --dry-run
  tidegate move orders --group billing --to cluster --journal move-orders.jsonl --yes`,
	}
	m.Call = a.Remote(cmd, []string{"TOPIC"}, func(ctx context.Context, _ *Call) error { return m.run(ctx) })
	f := cmd.Flags()
	f.StringVar(&m.group, "group", "", "consumer `group` whose messages are moved; required")
	f.StringVar(&m.to, "to", "", "`context` of the target ('tidegate context add'); required")
	f.StringVar(&m.toTopic, "to-topic", "", "`topic` of the target (default: the same name)")
	f.StringVar(&m.targetType, "target-type", "", "`type` of the target topic, if it is DELAY and the source is a RocketMQ")
	f.StringVar(&m.journalFile, "journal", "", "`file` of this job, new or to be continued (default: a new one in the directory of the user's state)")
	f.StringVar(&m.deadTopic, "dead-letters", "", "carry the group's dead letters too, to this `topic` of the target")
	f.StringVar(&m.as, "as", "", "with --dead-letters from a RocketMQ: the consumer `group` that receives them")
	f.StringArrayVar(&m.lite, "lite", nil, "from a RocketMQ: carry the messages of the lite topic with this `name`; may be repeated")
	f.BoolVar(&m.otherGroups, "other-groups", false, "continue although other groups have received from the topic; they are not moved")
	f.BoolVar(&m.follow, "follow", false, "continue when there are no messages")
	f.DurationVar(&m.wait, "wait", 30*time.Second, "end when no message arrives for this `time`")
	f.DurationVar(&m.lease, "lease", time.Minute, "`time` for which a received message is invisible to others, and in which it has to be sent")
	f.IntVar(&m.workers, "workers", 0, "receives at the same time, of up to 32 messages each (default 4, and 1 where more would lose the order of message groups)")
	f.Float64Var(&m.rate, "rate", 0, "most messages a second; 0 means no limit")
	return m.Destructive()
}

func (m *moveCommand) run(ctx context.Context) error {
	switch {
	case m.group == "" || m.to == "":
		return usagef(m.Command, "--group and --to are required")
	case m.workers < 0 || m.rate < 0 || m.lease < 10*time.Second:
		return usagef(m.Command, "--workers and --rate must not be negative, and --lease is at least 10s")
	}
	if err := checkLite(m.lite); err != nil {
		return m.Usage(err)
	}
	m.toTopic = cmp.Or(m.toTopic, m.Args[0])
	source, err := m.Server()
	if err != nil {
		return err
	}
	if f := source.foreign(); len(m.lite) > 0 && f != nil {
		return usagef(m.Command, "--lite names lite topics, and %s has none", f.name)
	}
	if len(m.lite) > 0 && !source.WithoutHTTP() {
		return usagef(m.Command, "--lite is for a RocketMQ; a tidegate broker lists its lite topics, and the command carries the messages of all of them")
	}
	other := &Call{App: m.App, Command: m.Command}
	other.of(m.to)
	target, err := other.Server()
	if err != nil {
		return err
	}
	if source.Address() == target.Address() && m.toTopic == m.Args[0] {
		return usagef(m.Command, "the source and the target are the same topic of %s", source.Address())
	}
	state, err := m.inspect(ctx, source)
	if err != nil {
		return err
	}
	to, err := target.Transport(ctx)
	if err != nil {
		return m.Usage(err)
	}
	return errors.Join(m.between(ctx, source, target, to, state), to.Close())
}

// inspect returns the state of the source, which a RocketMQ does not report.
func (m *moveCommand) inspect(ctx context.Context, source Server) (*moveState, error) {
	if source.WithoutHTTP() {
		shows := output.Mention("mqadmin consumerProgress -g "+output.Quote(m.group)) + " shows"
		if f := source.support(); f != nil {
			shows = output.Mention(f.Backlog) + " shows"
		}
		m.Note("the source does not report its backlog: the move ends %v after the last message (--wait); %s other groups and the remaining messages", m.wait, shows)
		return nil, nil //nolint:nilnil // there is no state
	}
	client, err := m.Admin(ctx)
	if err != nil {
		return nil, err
	}
	bounded, cancel := m.Bounded(ctx)
	defer cancel()
	s, err := inspect(bounded, client, m.Args[0], m.group)
	if err != nil {
		return nil, err
	}
	if len(s.Others) > 0 && !m.otherGroups {
		return nil, usagef(m.Command, "other groups have received from %s too: %s. The target would have each message once for all groups; move the group that is furthest behind, or add --other-groups to move %s alone",
			m.Args[0], output.Safe(fmt.Sprint(s.Others)), m.group)
	}
	return &s, nil
}

func (m *moveCommand) between(ctx context.Context, source, target Server, to Transport, state *moveState) error {
	bounded, cancel := m.BoundedAt(ctx, target.Host())
	err := to.Ping(bounded, m.toTopic)
	cancel()
	if err != nil && !errors.Is(err, tidegate.ErrTopicNotFound) {
		return err
	}
	if state != nil && (err != nil || m.DryRun) {
		m.missing(ctx, target, state, err != nil)
	}
	if err != nil {
		return &targetError{err}
	}
	if m.DryRun {
		if state == nil {
			m.Note("the target topic exists; the source does not report more")
			return nil
		}
		document, fields := state.Plan()
		return m.Show(document, m.Args[0], fields)
	}
	question := fmt.Sprintf("move the messages of %s that group %s has not consumed to %s?", output.Safe(m.Args[0]), output.Safe(m.group), output.Safe(target.Address()))
	if err := m.Confirm(question, m.Args[0]); err != nil {
		return err
	}
	if target.foreign() != nil {
		if err := m.createGroup(ctx, target, to); err != nil {
			return err
		}
	}
	if m.journalFile == "" {
		if m.journalFile, err = m.Journal("move-" + m.Args[0] + "-" + m.group); err != nil {
			return err
		}
	}
	if err := m.SameJob(m.journalFile); err != nil {
		return err
	}
	m.Note("the journal is %s", m.journalFile)
	err = m.carry(ctx, source, to, state)
	if err != nil && !errors.Is(err, errLeft) {
		text := "this continues it"
		if ctx.Err() != nil {
			text = "interrupted; this continues it"
		}
		m.Note("%s: %s", text, m.again())
	}
	return err
}

// createGroup makes sure that the target keeps the messages: a foreign server discards those that
// no group of the topic needs.
func (m *moveCommand) createGroup(ctx context.Context, target Server, to Transport) error {
	ctx, cancel := m.BoundedAt(ctx, target.Host())
	defer cancel()
	return createGroup(ctx, to, m.toTopic, m.group)
}

// again is the command that continues the job.
func (m *moveCommand) again() string {
	return m.Again(map[string]string{"journal": m.journalFile, "yes": "true"})
}

// errLeft is the error of a move that leaves messages at the source.
var errLeft = fmt.Errorf("not all messages were carried: %w", errPartly)

// missing prints how to create the topic and the group that the target lacks.
func (m *moveCommand) missing(ctx context.Context, target Server, state *moveState, topic bool) {
	ofTopic, ofGroup := state.Creates(target, m.to, m.toTopic, m.group)
	if topic {
		m.Note("to create the topic on the target: %s", ofTopic)
	}
	if ofGroup == "" {
		return
	}
	switch known, err := m.targetHasGroup(ctx, target); {
	case err != nil:
		m.Note("to create the group on the target, if it is missing: %s", ofGroup)
	case !known:
		m.Note("to create the group on the target: %s", ofGroup)
	}
}

// targetHasGroup reports whether the target has the group. It returns an error if the target does
// not report it.
func (m *moveCommand) targetHasGroup(ctx context.Context, target Server) (bool, error) {
	client, err := target.Admin(ctx, 1)
	if err != nil {
		return false, err
	}
	bounded, cancel := m.BoundedAt(ctx, client.Endpoint())
	defer cancel()
	_, err = client.Group(bounded, m.group)
	if known := err == nil; known || errors.Is(err, tidegate.ErrNotFound) {
		return known, client.Close()
	}
	return false, errors.Join(err, client.Close())
}

// A targetError is the error of a topic that the target does not have.
type targetError struct{ error }

func (e *targetError) Unwrap() error { return e.error }

// Hint replaces the hint about the source.
func (e *targetError) Hint() string { return "Create the topic on the target, and repeat the command." }

func (m *moveCommand) carry(ctx context.Context, source Server, to Transport, state *moveState) error {
	from, err := m.from(ctx, state)
	if err != nil {
		return err
	}
	p, err := producer.New(to, producer.Options{MaxThrottles: producer.UntilContextEnds})
	if err != nil {
		return errors.Join(err, from.Close())
	}
	j, err := openCarryJournal(m.journalFile)
	if err != nil {
		return errors.Join(err, p.Close(), from.Close())
	}
	if until := j.LeasedUntil(); until.After(time.Now()) {
		m.Note("an earlier run of this job still leases messages, until %s; this run waits for them", until.Local().Format(time.TimeOnly))
	}
	progress := newProgress(m.Call)
	if m.workers == 0 {
		m.workers = 4
		if state == nil || !state.Parallel() {
			m.workers = 1
		}
	}
	o := carryOptions{
		Source: from, Target: p, Group: m.group, Topic: m.Args[0], ToTopic: m.toTopic, Workers: m.workers, Lease: m.lease,
		Wait: time.Second, Journal: j, Places: state != nil, Delay: m.targetType == "DELAY" || state != nil && state.Topic.Type == "DELAY",
		OnMoved: func() { progress.Step(true) }, Note: func(text string) { m.Note("%s", output.Safe(text)) }, Done: func(ctx context.Context, idle time.Duration) (bool, error) { return m.done(ctx, state, idle) },
	}
	if m.rate > 0 {
		o.Pace = rate.NewLimiter(rate.Limit(m.rate), 32).WaitN
	}
	report, err := carry(ctx, o)
	progress.End()
	err = errors.Join(err, j.Close(), p.Close())
	var letters deadletter.Report
	if err == nil && m.deadTopic != "" {
		letters, err = m.letters(ctx, from, to, source)
	}
	return errors.Join(m.result(ctx, report, letters, state, err), from.Close())
}

// from returns the connection to the source.
func (m *moveCommand) from(ctx context.Context, state *moveState) (Transport, error) {
	t, _, err := m.Transport(ctx)
	if err != nil {
		return nil, err
	}
	var l *liteTransport
	switch {
	case len(m.lite) > 0:
		l, err = newLiteTransport(t, m.group, m.Args[0], named(m.lite))
	case state != nil && state.Topic.Type == settings.TopicLite:
		l, err = newLiteTransport(t, m.group, m.Args[0], withBacklog(m.Admins, m.group, m.Args[0], mostLite(state.Group.Group)))
	default:
		return t, nil
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	l.search = len(m.lite) == 0
	return l, nil
}

// done reports whether the source has no further message for the group.
func (m *moveCommand) done(ctx context.Context, state *moveState, idle time.Duration) (bool, error) {
	if !m.follow && idle >= m.wait {
		return true, nil
	}
	if state == nil || m.follow {
		return false, nil
	}
	now, err := inspect(ctx, m.Admins, m.Args[0], m.group)
	return err == nil && now.Left() == 0, err
}

// letters carries the dead letters. A redrive with another server as its target removes each letter
// when the target has it.
func (m *moveCommand) letters(ctx context.Context, from, to Transport, source Server) (deadletter.Report, error) {
	var src deadletter.Source = deadletter.Broker{Client: m.Admins, Group: m.group}
	if source.WithoutHTTP() {
		if m.as == "" && source.foreign() != nil {
			m.as = m.group // all groups that receive them share the queue or subscription
		}
		if m.as == "" {
			return deadletter.Report{}, usagef(m.Command, "dead letters of a RocketMQ need --as GROUP, a consumer group for this purpose only")
		}
		src = deadletter.Queue{Transport: from, Group: m.group, As: m.as}
	}
	keep := func(msg *tidegate.Message) error {
		keys := msg.Keys
		if msg.Keys = append(slices.Clip(keys), msg.ID); msg.Validate(0) != nil {
			msg.Keys = keys // the ID does not fit
		}
		return nil
	}
	return deadletter.Redrive(ctx, src, deadletter.Options{To: m.deadTopic, Edit: keep, Sender: to, Journal: m.journalFile + ".dead-letters", PerSecond: 1000, Actor: m.Env("USER")})
}

// result prints the report. A move that leaves messages ends with the exit code of a part.
func (m *moveCommand) result(ctx context.Context, r carryReport, letters deadletter.Report, state *moveState, err error) error {
	left := int64(0)
	if state != nil {
		bounded, cancel := m.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		now, ierr := inspect(bounded, m.Admins, m.Args[0], m.group)
		err = errors.Join(err, ierr)
		state, left = &now, now.Left()
	}
	document, fields := printReport(r, letters.Redriven, state)
	if perr := m.Show(document, m.Args[0], fields); perr != nil {
		return errors.Join(err, perr)
	}
	switch {
	case err != nil:
		return err
	case r.Aside > 0:
		return fmt.Errorf("the target rejects %s, which stay; correct them or the target, and then this carries them: %s: %w", output.Count(r.Aside, "message"), m.again(), errLeft)
	case letters.Failed > 0:
		return fmt.Errorf("%s not carried; the journal %s.dead-letters has the reasons; this carries them: %s: %w", output.Count(int64(letters.Failed), "dead letter"), m.journalFile, m.again(), errLeft)
	case left > 0:
		return fmt.Errorf("%s left; this carries them: %s: %w", output.Count(left, "message"), m.again(), errLeft)
	}
	return nil
}

// A moveState is a topic of a tidegate broker as one group sees it.
type moveState struct {
	Topic  status.Topic        `json:"-"`
	Group  status.Group        `json:"-"`
	Others []string            `json:"other_groups,omitempty"` // that have received from the topic
	Sees   status.Subscription `json:"-"`
	Dead   int64               `json:"dead_letters"`
}

// inspect reads the state. The error matches tidegate.ErrNotFound or tidegate.ErrTopicNotFound if
// the topic or the group does not exist.
func inspect(ctx context.Context, client *admin.Client, topic, group string) (s moveState, err error) {
	if s.Topic, err = client.Topic(ctx, topic); err != nil {
		return s, err
	}
	if s.Group, err = client.Group(ctx, group); err != nil {
		return s, err
	}
	for _, g := range s.Topic.Groups {
		if g != group {
			s.Others = append(s.Others, g)
		}
	}
	s.Sees = status.Subscription{Topic: topic, Ready: s.Topic.StoredMessages, Backlog: status.Backlog{Messages: s.Topic.StoredMessages}}
	if i := slices.IndexFunc(s.Group.Topics, func(x status.Subscription) bool { return x.Topic == topic }); i >= 0 {
		s.Sees = s.Group.Topics[i]
	}
	for _, name := range s.Group.DeadLetterTopics {
		t, err := client.Topic(ctx, name)
		if err != nil && !errors.Is(err, tidegate.ErrTopicNotFound) {
			return s, err
		}
		s.Dead += t.StoredMessages
	}
	return s, nil
}

// Left is the number of messages that a move can still carry.
func (s moveState) Left() int64 {
	return s.Sees.Backlog.Messages - s.Sees.Parked + s.Topic.DelayedMessages
}

// Parallel reports whether several receives at the same time keep the order of message groups: the
// topic has none, or the broker delivers one message of a group at a time.
func (s moveState) Parallel() bool {
	return s.Topic.Topic.WithDefaults().Type != settings.TopicFIFO || s.Group.FIFO
}

// Creates returns the commands that create the topic and the group on the target. ofGroup is empty
// if one command creates both.
func (s moveState) Creates(target Server, context, topic, group string) (ofTopic, ofGroup string) {
	t, g := s.Topic.Topic.WithDefaults(), s.Group.Group.WithDefaults()
	if f := target.support(); f != nil {
		return f.Create(target, topic, group)
	}
	if target.Kind == connectionRocketMQ {
		of := s.Group.Group
		if of.Lite.Topic != "" {
			of.Lite.Topic = topic
		}
		return anyCluster.topic(topic, t), anyCluster.group(group, of, t.Type == settings.TopicFIFO)
	}
	var retry []string
	for _, d := range g.Retry {
		retry = append(retry, d.String())
	}
	set := []string{group, fmt.Sprintf("max_attempts=%d", g.MaxAttempts)}
	if g.FIFO {
		set = append(set, "fifo=true")
	}
	asTopic := []string{topic, fmt.Sprintf("type=%s", t.Type)}
	if t.Type == settings.TopicLite {
		set = append(set, "lite.topic="+topic, fmt.Sprintf("lite.max_topics=%d", mostLite(g)), fmt.Sprintf("lite.exclusive=%v", g.Lite.Exclusive))
		asTopic = append(asTopic, fmt.Sprintf("lite.expiry=%v", t.Lite.Expiry), fmt.Sprintf("lite.max_topics=%d", t.Lite.MaxTopics))
	} else {
		asTopic = append(asTopic, fmt.Sprintf("queues=%d", t.Queues))
	}
	if len(retry) > 0 {
		set = append(set, "retry="+strings.Join(retry, " "))
	}
	at := output.Flag("context", context)
	return output.CommandFlags("tidegate topic create", at, asTopic...),
		output.CommandFlags("tidegate group create", at, set...)
}

// never are the properties of messages that no move carries.
const never = "numbers of failed attempts (they begin with 1 again), times of storage and birth, queues and offsets"

// Plan returns the parts of a topic that a move would carry and those that stay, as a JSON document
// and as fields.
func (s moveState) Plan() (document map[string]any, fields []output.Field) {
	document = map[string]any{
		"ready": s.Sees.Ready, "inflight": s.Sees.Inflight, "waiting_retry": s.Sees.WaitingRetry, "delayed": s.Topic.DelayedMessages,
		"dead_letters": s.Dead, "stays": s.stays(), "not_carried": never,
	}
	fields = []output.Field{
		{Name: "ready", Value: s.Sees.Ready}, {Name: "in flight", Value: s.Sees.Inflight}, {Name: "waiting for a retry", Value: s.Sees.WaitingRetry},
		{Name: "delayed", Value: s.Topic.DelayedMessages}, {Name: "dead letters", Value: s.Dead},
	}
	for _, line := range s.stays() {
		fields = append(fields, output.Field{Name: "stays", Value: output.Textf("%s", line)})
	}
	return document, append(fields, output.Field{Name: "not carried", Value: output.Textf("%s", never)})
}

// stays describes the messages that a move does not carry, one line for each kind.
func (s moveState) stays() []string {
	var lines []string
	for _, x := range []struct {
		n    int64
		text string
	}{
		{s.Topic.HalfMessages, "of unresolved transactions: ready when their producer commits them"},
		{s.Sees.Parked, "parked: ready after " + output.Mention(output.Command("tidegate parked redrive", s.Group.Name))},
	} {
		if x.n > 0 {
			lines = append(lines, fmt.Sprintf("%s %s", output.Count(x.n, "message"), x.text))
		}
	}
	return lines
}

// Print returns the result of a run: as a JSON document and as fields. letters is the number of
// carried dead letters; now is the state of the source, or nil if it reports none.
func printReport(r carryReport, letters int, now *moveState) (document map[string]any, fields []output.Field) {
	document = map[string]any{
		"moved": r.Moved, "sent_by_an_earlier_run": r.Earlier, "failed_before": r.Attempts, "unacknowledged": r.Unacked,
		"dead_letters_moved": letters, "not_carried": never,
	}
	fields = []output.Field{{Name: "moved", Value: r.Moved}}
	add := func(name, key string, n int64) {
		if document[key] = n; n > 0 {
			fields = append(fields, output.Field{Name: name, Value: n})
		}
	}
	add("sent by an earlier run", "sent_by_an_earlier_run", r.Earlier)
	add("stored under a new ID (another message of the job has theirs)", "new_ids", r.Renamed)
	add("without their ID as a key, which did not fit", "without_id_as_key", r.Keyless)
	add("rejected by the target, they stay", "set_aside", r.Aside)
	add("behind those in their message group, they stay", "behind_set_aside", r.Behind)
	add("dead letters", "dead_letters_moved", int64(letters))
	add("had failed before (attempts begin with 1 again)", "failed_before", r.Attempts)
	if now == nil {
		return document, fields
	}
	add("left, ready", "left_ready", now.Sees.Ready)
	add("left, in flight", "left_inflight", now.Sees.Inflight)
	add("left, waiting for a retry", "left_waiting_retry", now.Sees.WaitingRetry)
	add("left, delayed", "left_delayed", now.Topic.DelayedMessages)
	add("dead letters that stay", "dead_letters", now.Dead)
	document["stays"] = now.stays()
	for _, line := range now.stays() {
		fields = append(fields, output.Field{Name: "stays", Value: output.Textf("%s", line)})
	}
	return document, fields
}
