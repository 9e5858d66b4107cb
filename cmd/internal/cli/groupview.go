package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A progress is the state of a group in one topic.
type progress struct {
	Group string `json:"group"`
	status.Subscription
}

// listColumns are the columns of group list. The broker leaves a rate out that is 0 or not known.
var listColumns = []output.Column[status.GroupSummary]{
	{Name: "GROUP", Cell: func(g status.GroupSummary) any { return g.Group }},
	{Name: "TOPIC", Cell: func(g status.GroupSummary) any { return cmp.Or(g.Topic, "-") }},
	{Name: "READY", Cell: func(g status.GroupSummary) any { return g.Ready }},
	{Name: "FLIGHT", Cell: func(g status.GroupSummary) any { return g.Inflight }},
	{Name: "RETRY", Cell: func(g status.GroupSummary) any { return g.WaitingRetry }},
	{Name: "PARKED", Cell: func(g status.GroupSummary) any { return g.Parked }},
	{Name: "BLOCKED", Cell: func(g status.GroupSummary) any { return g.Blocked }},
	{Name: "BACKLOG", Cell: func(g status.GroupSummary) any { return g.Backlog.Messages }},
	{Name: "BYTES", Wide: true, Cell: func(g status.GroupSummary) any { return output.Bytes(g.Backlog.Bytes) }},
	{Name: "OLDEST", Cell: func(g status.GroupSummary) any { return milliseconds(g.OldestMS) }},
	{Name: "UNDELIVERED", Wide: true, Cell: func(g status.GroupSummary) any { return milliseconds(g.UndeliveredMS) }},
	{Name: "OUT/S", Cell: func(g status.GroupSummary) any { return knownRate(g.OutRate) }},
	{Name: "DRAINS", Cell: drains},
	{Name: "CLIENTS", Wide: true, Cell: func(g status.GroupSummary) any { return g.Clients }},
	{Name: "WAITING", Wide: true, Cell: func(g status.GroupSummary) any { return g.Waiting }},
	{Name: "ACKED", Wide: true, Cell: func(g status.GroupSummary) any { return g.Acked }},
	{Name: "FILTERED", Wide: true, Cell: func(g status.GroupSummary) any { return g.Filtered }},
	{Name: "REDELIVERED", Wide: true, Cell: func(g status.GroupSummary) any { return g.Redelivered }},
	{Name: "DIED", Wide: true, Cell: func(g status.GroupSummary) any { return g.DeadLetters }},
	{Name: "DEAD", Cell: func(g status.GroupSummary) any { return g.DeadLettersStored }},
	{Name: "DEAD/H", Wide: true, Cell: func(g status.GroupSummary) any { return g.DeadLettersHour }},
	{Name: "NOTE", Cell: func(g status.GroupSummary) any { return progressNote(g.Group, g.ParkedGroups, g.BlockedGroups, g.Held) }},
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func knownRate(r float64) output.Rate {
	if r == 0 {
		return -1
	}
	return output.Rate(r)
}

// drains is the time in which a group finishes its backlog if nothing else is sent; nil if that is
// not known.
func drains(g status.GroupSummary) any {
	switch {
	case g.Backlog.Messages == 0:
		return time.Duration(0)
	case g.OutRate == 0:
		return nil
	}
	return time.Duration(float64(g.Backlog.Messages) / g.OutRate * float64(time.Second)).Round(time.Second)
}

// groupColumns are the columns of the topics in group show.
var groupColumns = []output.Column[progress]{
	{Name: "GROUP", Cell: func(p progress) any { return p.Group }},
	{Name: "TOPIC", Cell: func(p progress) any { return cmp.Or(p.Topic, "-") }},
	{Name: "READY", Cell: func(p progress) any { return p.Ready }},
	{Name: "FLIGHT", Cell: func(p progress) any { return p.Inflight }},
	{Name: "RETRY", Cell: func(p progress) any { return p.WaitingRetry }},
	{Name: "PARKED", Cell: func(p progress) any { return p.Parked }},
	{Name: "BLOCKED", Cell: func(p progress) any { return p.Blocked }},
	{Name: "BACKLOG", Cell: func(p progress) any { return p.Backlog.Messages }},
	{Name: "BYTES", Wide: true, Cell: func(p progress) any { return output.Bytes(p.Backlog.Bytes) }},
	{Name: "ACKED", Wide: true, Cell: func(p progress) any { return p.Acked }},
	{Name: "FILTERED", Cell: func(p progress) any { return p.Filtered }},
	{Name: "REDELIVERED", Wide: true, Cell: func(p progress) any { return p.Redelivered }},
	{Name: "DIED", Cell: func(p progress) any { return p.DeadLetters }},
}

// heldBy names the client that holds its messages longest.
func heldBy(h *status.Holding, now time.Time) output.Text {
	client := "a client from before the restart of the broker"
	if h.Client != "" {
		client = "client " + h.Client
	}
	return output.Textf("%s has held %s for %s", client, output.Count(h.Messages, "message"), output.Duration(now.Sub(h.Since).Truncate(time.Second)))
}

// progressNote is the next command for a group that needs help.
func progressNote(group string, parked, blocked int64, held *status.Holding) any {
	switch {
	case parked > 0:
		return output.Textf("%s parked: %s", output.Count(parked, "message group"), parkedCommand(group))
	case blocked > 0:
		return output.Textf("%s blocked: %s", output.Count(blocked, "message group"), parkedCommand(group))
	case held.Long(time.Now()):
		return heldBy(held, time.Now())
	}
	return ""
}

// attempts is a maximum of attempts.
func attempts(n int) any {
	if n < 0 {
		return "none"
	}
	return n
}

// ladder is the retry schedule of a group with the sum of its waits.
func ladder(g settings.Group) output.Text {
	if g.FIFO {
		return output.Textf("%s each", output.Duration(g.Interval(1)))
	}
	n := g.MaxAttempts - 1
	if n < 0 {
		n = len(g.Ladder())
	}
	var waits []string
	var sum time.Duration
	for attempt := 1; attempt <= n && attempt <= 100; attempt++ {
		sum += g.Interval(attempt)
		if attempt <= 8 {
			waits = append(waits, output.Duration(g.Interval(attempt)))
		}
	}
	text := strings.Join(waits, " ")
	if n > 8 {
		text += fmt.Sprintf(" … (%d waits)", n)
	}
	return output.Textf("%s, %s in all", cmp.Or(text, "no retry"), output.Duration(sum))
}

// sentence returns one sentence with the reason why a group has not consumed a message, or that it
// has consumed it.
func sentence(f *status.Fate, style output.TimeStyle, now time.Time) string {
	text := viewSentence(f, style, now)
	if f.Topic != "" {
		text += " (it was redriven to the group alone)"
	}
	return text
}

func viewSentence(f *status.Fate, style output.TimeStyle, now time.Time) string {
	at := func(t time.Time) string {
		if style == output.Relative {
			return style.Time(t, now)
		}
		return "at " + style.Time(t, now)
	}
	again := attempt(f.Attempt+1, f.MaxAttempts)
	because := ""
	if reason := lastReason(f); reason != "" {
		because = ", because: " + output.Safe(reason)
	}
	group := output.Safe(f.Group)
	switch f.State {
	case "new":
		text := group + " has not received it: it is the next of its queue"
		if f.Ahead > 0 {
			text = fmt.Sprintf("%s has not received it: %s of its queue come first", group, output.Count(f.Ahead, "message"))
		}
		if f.Behind != nil {
			text += ", and " + theMessage(f.Behind) + " of its message group is not done"
		}
		return text + "; " + waiting(f.Waiting)
	case "ready":
		if f.Behind != nil {
			return fmt.Sprintf("%s holds it until %s of its message group is done", group, theMessage(f.Behind))
		}
		return fmt.Sprintf("%s delivers it to the next receive (%s); %s", group, again, waiting(f.Waiting))
	case "held":
		return fmt.Sprintf("%s holds it until %s of its message group is done", group, theMessage(f.Behind))
	case "inflight":
		text := fmt.Sprintf("%s has delivered it (%s), and its lease ends %s", group, attempt(f.Attempt, f.MaxAttempts), at(f.Due))
		if f.Owner != "" {
			text += " unless client " + output.Safe(f.Owner) + " extends it"
		}
		return text
	case "waiting_retry":
		if f.Blocked {
			return fmt.Sprintf("%s retries it without end, next %s (attempt %d), and its message group waits for it%s", group, at(f.Due), f.Attempt+1, because)
		}
		return fmt.Sprintf("%s retries it %s (%s)%s", group, at(f.Due), again, because)
	case "parked":
		redrive := output.Mention(output.Command("tidegate parked redrive", f.Group))
		if f.Behind != nil {
			return fmt.Sprintf("%s has parked its message group: it waits for %s%s; %s releases it", group, theMessage(f.Behind), because, redrive)
		}
		return fmt.Sprintf("%s has parked it and its message group %s, after %s%s; %s releases them", group, at(f.Due), output.Count(int64(f.Attempt), "attempt"), because, redrive)
	case "leaving":
		return group + " is writing it to the dead letters"
	case "dead_letter":
		if f.DeadLetter == nil {
			return group + " has given it up: its dead letter was sent back or purged, or it was sent again through a retry topic"
		}
		return fmt.Sprintf("%s has given it up after %s: it is a dead letter since %s%s; %s shows it",
			group, output.Count(int64(f.Attempt), "attempt"), style.Time(f.DeadLetter.StoredAt, now), because, output.Mention(output.Command("tidegate dead-letters show", f.Group, f.DeadLetter.MessageID)))
	}
	return group + " is done with it: it was acknowledged, or a filter, the start position or a rewind has skipped it"
}

// lastReason is the reason of a dead letter or a parked message group, or else that of the last
// failure.
func lastReason(f *status.Fate) string {
	if f.Reason != "" || len(f.Failures) == 0 {
		return f.Reason
	}
	return f.Failures[len(f.Failures)-1].Reason
}

// failed returns one sentence about a failed delivery: the failure, its reason, and the action of
// the broker.
func failed(f *status.Failure, style output.TimeStyle, now time.Time) string {
	what := map[string]string{
		"failed": "failed", "timeout": "was not settled before its lease ended", "negative_ack": "was returned for a later delivery",
		"dead_letter": "was given up by the consumer", "reconsume_later": "was sent to the retry topic by the consumer",
	}[f.Cause]
	client := ""
	if f.Client != "" {
		client = " at client " + output.Safe(f.Client)
	}
	text := fmt.Sprintf("%s: attempt %d%s %s", style.Time(f.Time, now), f.Attempt, client, cmp.Or(what, output.Safe(f.Cause)))
	if f.Reason != "" {
		text += ": " + output.Safe(f.Reason)
	}
	after := " after " + output.Duration(time.Duration(f.Delay))
	then := map[string]string{
		"retry": "delivered again" + after, "blocked": "delivered again" + after + ", and its message group waits", "dead_letter": "it became a dead letter",
		"parked": "its message group is parked", "retry_topic": "delivered again" + after + " from the retry topic", "removed": "it was removed",
	}[f.Fate]
	return text + "; " + cmp.Or(then, output.Safe(f.Fate))
}

// attempt is "attempt 3 of 17", or "attempt 3" without a maximum.
func attempt(n, most int) string {
	if most <= 0 || n > most {
		return fmt.Sprintf("attempt %d", n)
	}
	return fmt.Sprintf("attempt %d of %d", n, most)
}

func waiting(n int64) string {
	switch n {
	case 0:
		return "no consumer waits for messages"
	case 1:
		return "1 receive waits for messages"
	}
	return fmt.Sprintf("%v receives wait for messages", output.Number(n))
}

// theMessage names a message: by its ID, or by its place if it has none.
func theMessage(m *status.StoredMessage) string {
	if m == nil {
		return "an earlier message"
	}
	return "message " + cmp.Or(output.Safe(m.ID), fmt.Sprintf("%d of queue %d", m.Offset, m.Queue))
}

// viewRedriven has the messages before and after a redrive with a new ID, which an edited dead
// letter has.
type viewRedriven struct {
	As    string `json:"redriven_as,omitempty"`   // ID of the message that was sent back
	First string `json:"redriven_from,omitempty"` // ID of the message before all redrives
}

// Text returns a line for each message with the command that traces it.
func (r viewRedriven) Text(trace func(id string) string) (text string) {
	if r.First != "" {
		text += fmt.Sprintf("  it was sent back for the dead letter of message %s: %s\n", output.Safe(r.First), trace(r.First))
	}
	if r.As != "" {
		text += fmt.Sprintf("  its dead letter was sent back as message %s: %s\n", output.Safe(r.As), trace(r.As))
	}
	return text
}

// trace returns the text of a trace in one topic: the messages, each with the beginning of its body
// and a sentence for each group.
func trace(topic, id string, t *status.Trace, style output.TimeStyle, now time.Time) string {
	var b strings.Builder
	name := output.Safe(topic)
	if !t.DeliverAt.IsZero() {
		fmt.Fprintf(&b, "message %s waits for its delivery time in topic %s: %s\n", output.Safe(id), name, style.Time(t.DeliverAt, now))
	}
	if t.Half {
		fmt.Fprintf(&b, "message %s belongs to a transaction in topic %s that was neither committed nor rolled back: no group receives it\n", output.Safe(id), name)
	}
	for i := range t.Messages {
		m := &t.Messages[i]
		fmt.Fprintf(&b, "message %s in topic %s, queue %d, offset %d, stored %s", output.Safe(m.ID), name, m.Queue, m.Offset, style.Time(m.StoredAt, now))
		if m.MessageGroup != "" {
			fmt.Fprintf(&b, ", message group %s", output.Safe(m.MessageGroup))
		}
		b.WriteString("\n")
		if body := body(m.Body, m.BodyText); body != "" {
			fmt.Fprintf(&b, "  its body has %v: %s\n", output.Bytes(m.BodySize), output.Safe(firstLine(body)))
		}
		for g := range m.Groups {
			fmt.Fprintf(&b, "  %s\n", sentence(&m.Groups[g], style, now))
			for i := range m.Groups[g].Failures {
				fmt.Fprintf(&b, "    %s\n", failed(&m.Groups[g].Failures[i], style, now))
			}
		}
		group, letters := strings.CutPrefix(topic, tidegate.DeadLetterTopic(""))
		switch {
		case len(m.Groups) > 0:
		case letters:
			fmt.Fprintf(&b, "  it is a dead letter of group %s there\n", output.Safe(group))
		default:
			b.WriteString("  no group receives from the topic\n")
		}
	}
	return b.String()
}

// sentences are the texts of the values of status.Subscription.Why, and their parts. The web
// console has the same ones, with the same keys (files/en.js of internal/console).
var sentences = map[string]string{
	"why parked":      "Parked after the last attempt: {0} message groups, {1} messages. Look at the reason, then release them.",
	"why blocked":     "Blocked by a message that is retried without end: {0} message groups, {1} messages behind it. Look at the reason.",
	"why filtered":    "No message has matched the filter of the consumer: it skipped all {0} since {1}. Compare the filter with the tags and properties of the messages.",
	"why throttled":   "Nothing is left for the group, and the broker rejects new messages of the topic for a limit.",
	"why idle":        "Nothing is left for the group: it has acknowledged, skipped by a filter or passed everything.",
	"why no_consumer": "Ready: {0}, in flight: none. No consumer receives them: start a consumer of this group.",
	"why retrying":    "Waiting for their retry: {0}. Nothing else is left to deliver.",
	"why working":     "{0} in flight, {1} ready.",
	"holds":           "holds {0}, the first for {1}, since {2}.",
	"if it hangs":     "If its handler hangs, restart it. Each message is delivered again when its lease ends: the first at {0}, unless the client extends it.",
	"lost client":     "A client from before the restart of the broker",
}

func phrase(key string, values ...any) output.Text {
	return output.Textf(argument.ReplaceAllStringFunc(sentences[key], func(found string) string {
		return fmt.Sprintf("%%[%d]v", found[1]-'0'+1) // {0} is the first
	}), values...)
}

var argument = regexp.MustCompile(`\{\d\}`)

// why is the one sentence about why a group does not consume a topic, and the command that shows
// more, if there is one.
func why(group string, s *status.Subscription, now time.Time) (text output.Text, next string) {
	key := "why " + s.Why
	show := func(flags string) string { return output.CommandFlags("tidegate group show", flags, group) }
	switch s.Why {
	case "parked":
		return phrase(key, output.Number(s.ParkedGroups), output.Number(s.Parked)), parkedCommand(group)
	case "blocked":
		return phrase(key, output.Number(s.BlockedGroups), output.Number(s.Blocked)), parkedCommand(group)
	case "held":
		return holding(s.Held, now), show(" --clients")
	case "filtered":
		return phrase(key, output.Number(s.Filtered), output.UTC.Time(s.CountsSince, now)), "tidegate clients list" + output.Flag("group", group) + " -o wide"
	case "throttled":
		return phrase(key), "tidegate limits show"
	case "idle":
		return phrase(key), ""
	case "no_consumer":
		return phrase(key, output.Number(s.Ready)), show(" --clients")
	case "retrying":
		return phrase(key, output.Number(s.WaitingRetry)), show(" --schedule")
	case "working":
		return phrase(key, output.Number(s.Inflight), output.Number(s.Ready)), ""
	}
	return text, "" // an older broker, or a newer one
}

func parkedCommand(group string) string { return output.Command("tidegate parked list", group) }

// holding is the sentence about the client that has held messages longest.
func holding(h *status.Holding, now time.Time) (text output.Text) {
	if h == nil {
		return text
	}
	client := phrase("lost client")
	if h.Client != "" {
		client = output.Textf("Client %s", h.Client)
	}
	return output.Textf("%s %s %s", client, phrase("holds", output.Count(h.Messages, "message"), output.Duration(now.Sub(h.Since).Truncate(time.Second)), output.UTC.Time(h.Since, now)),
		phrase("if it hangs", output.UTC.Time(h.Until, now)))
}

// redelivery has the settings that decide when a failing message is delivered.
type redelivery struct {
	MaxAttempts int                             // negative means no maximum
	Wait        func(attempt int) time.Duration // after the failed attempt
	Steps       int                             // of the retry schedule; the last one repeats
	FIFO        bool                            // successors of the message group wait
	Exhausted   string                          // the fate after the last attempt
	Handler     time.Duration                   // of each attempt
	Lease       time.Duration                   // 0 means not known
	Retention   time.Duration                   // of the topic; 0 means none or not known
}

// A schedule lists the deliveries of a message whose handler always fails.
type schedule struct {
	Attempts []scheduledAttempt `json:"attempts"`
	End      string             `json:"end"`
	Findings []string           `json:"findings"` // settings that are probably wrong
}

// A scheduledAttempt is one delivery.
type scheduledAttempt struct {
	Attempt int    `json:"attempt"`
	Wait    string `json:"wait"`  // after the failed attempt before
	After   string `json:"after"` // since the begin of the first one

	wait, after time.Duration
}

// endless is the number of attempts that are listed if there is no maximum.
const endless = 20

// scheduleOf lists the attempts and judges them.
func scheduleOf(r redelivery) schedule {
	n := r.MaxAttempts
	if n < 0 {
		n = endless
	}
	s := schedule{Attempts: []scheduledAttempt{}, Findings: []string{}}
	var begin time.Duration
	for attempt := 1; attempt <= n; attempt++ {
		a := scheduledAttempt{Attempt: attempt}
		if attempt > 1 {
			a.wait = r.Wait(attempt - 1)
			begin += r.Handler + a.wait
		}
		a.after = begin
		a.Wait, a.After = a.wait.String(), a.after.String()
		s.Attempts = append(s.Attempts, a)
	}
	end := begin + r.Handler
	if r.MaxAttempts < 0 {
		s.End = fmt.Sprintf("no maximum: it is retried every %s", output.Duration(r.Wait(n)))
	} else {
		s.End = fmt.Sprintf("%s after %s, %s after the begin of the first one", r.Exhausted, output.Count(int64(n), "attempt"), output.Duration(end))
	}
	s.judge(r, end)
	return s
}

// judge adds the findings.
func (s *schedule) judge(r redelivery, end time.Duration) {
	find := func(format string, args ...any) { s.Findings = append(s.Findings, fmt.Sprintf(format, args...)) }
	n := len(s.Attempts)
	if n == 1 {
		find("max_attempts is 1: a message that fails once is not retried")
	}
	if r.MaxAttempts > 0 && !r.FIFO && r.Steps >= n && n > 1 {
		find("the retry schedule has %d waits, and %s use %d of them", r.Steps, output.Count(int64(n), "attempt"), n-1)
	}
	if r.Retention > 0 {
		for _, a := range s.Attempts {
			if a.after > r.Retention {
				find("attempt %d comes %s after the first, and the topic keeps messages for %s", a.Attempt, output.Duration(a.after), output.Duration(r.Retention))
				break
			}
		}
	}
	if r.Lease > 0 && r.Handler > r.Lease {
		find("the handler takes %s and the lease ends after %s: a consumer that does not extend the lease receives the message twice at the same time",
			output.Duration(r.Handler), output.Duration(r.Lease))
	}
	if r.FIFO && n > 1 {
		find("the successors in the message group wait for up to %s", output.Duration(end))
	}
	if r.MaxAttempts < 0 && r.FIFO {
		find("a message that always fails stops its message group without end")
	}
}

// scheduleColumns are the columns of a schedule.
var scheduleColumns = []output.Column[scheduledAttempt]{
	{Name: "ATTEMPT", Cell: func(a scheduledAttempt) any { return a.Attempt }},
	{Name: "WAIT", Cell: func(a scheduledAttempt) any { return a.wait }},
	{Name: "AFTER", Cell: func(a scheduledAttempt) any { return a.after }},
}

// A groupQueue is the progress of a group in one queue.
type groupQueue struct {
	Topic string `json:"topic"`
	status.GroupQueue
}

// groupQueueColumns are the columns of group show --queues.
var groupQueueColumns = []output.Column[groupQueue]{
	{Name: "TOPIC", Cell: func(q groupQueue) any { return q.Topic }},
	{Name: "QUEUE", Keep: true, Cell: func(q groupQueue) any { return q.Queue }},
	{Name: "BEGIN", Keep: true, Cell: func(q groupQueue) any { return q.Begin }},
	{Name: "CURSOR", Keep: true, Cell: func(q groupQueue) any { return q.Cursor }},
	{Name: "END", Keep: true, Cell: func(q groupQueue) any { return q.End }},
	{Name: "UNDELIVERED", Cell: func(q groupQueue) any { return q.Undelivered }},
	{Name: "UNFINISHED", Cell: func(q groupQueue) any { return q.Unfinished }},
	{Name: "OLDEST", Cell: func(q groupQueue) any { return q.Oldest }},
}

// queueColumns are the columns of topic show --queues.
var queueColumns = []output.Column[status.Queue]{
	{Name: "QUEUE", Keep: true, Cell: func(q status.Queue) any { return q.Queue }},
	{Name: "BEGIN", Keep: true, Cell: func(q status.Queue) any { return q.Begin }},
	{Name: "END", Keep: true, Cell: func(q status.Queue) any { return q.End }},
	{Name: "MESSAGES", Cell: func(q status.Queue) any { return q.Messages }},
	{Name: "OLDEST", Cell: func(q status.Queue) any { return q.Oldest }},
	{Name: "NEWEST", Cell: func(q status.Queue) any { return q.Newest }},
}

// rewindColumns are the columns of a rewind and of its plan.
var rewindColumns = []output.Column[status.QueueRewind]{
	{Name: "QUEUE", Keep: true, Cell: func(q status.QueueRewind) any { return q.Queue }},
	{Name: "FROM", Keep: true, Cell: func(q status.QueueRewind) any { return q.From }},
	{Name: "TO", Keep: true, Cell: func(q status.QueueRewind) any { return q.To }},
	{Name: "AGAIN", Cell: func(q status.QueueRewind) any { return max(0, q.From-q.To) }},
	{Name: "SKIPPED", Cell: func(q status.QueueRewind) any { return max(0, q.To-q.From) }},
	{Name: "DROPPED", Cell: func(q status.QueueRewind) any { return q.Dropped }},
}

// rewound is the text about a rewind: how many offsets it passes in each direction, and how many
// unfinished messages the group loses.
func rewound(queues []status.QueueRewind) output.Text {
	var again, skipped, dropped int64
	for _, q := range queues {
		again += max(0, q.From-q.To)
		skipped += max(0, q.To-q.From)
		dropped += q.Dropped
	}
	return output.Textf("%s back, %s forward, %s taken from the group",
		output.Count(again, "offset"), output.Count(skipped, "offset"), output.Count(dropped, "unfinished message"))
}

// A due counts the messages of a group in a topic that are due in a period.
type due struct {
	Topic string `json:"topic"`
	status.DueBucket
}

// dueColumns are the columns of group show --schedule.
var dueColumns = []output.Column[due]{
	{Name: "TOPIC", Cell: func(d due) any { return d.Topic }},
	{Name: "DUE", Cell: func(d due) any { return within(d.Until) }},
	{Name: "RETRIES", Cell: func(d due) any { return d.WaitingRetry }},
	{Name: "LEASES-END", Cell: func(d due) any { return d.Inflight }},
}

func within(until *settings.Duration) string {
	switch {
	case until == nil:
		return "later"
	case *until == 0:
		return "now"
	}
	return "within " + output.Duration(time.Duration(*until))
}
