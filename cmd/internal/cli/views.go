package cli

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

// settingFields are the fields of settings that are set, except for some by JSON name.
func settingFields(settings any, except ...string) []output.Field {
	var fields []output.Field
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name := declare.Name(v.Type().Field(i))
			f := v.Field(i)
			if name == "" || f.IsZero() || prefix == "" && slices.Contains(except, name) {
				continue
			}
			if f.Kind() == reflect.Pointer {
				f = f.Elem()
			}
			if f.Kind() == reflect.Struct {
				walk(f, prefix+name+".")
				continue
			}
			fields = append(fields, output.Field{Name: prefix + name, Value: output.Textf("%v", f.Interface())})
		}
	}
	walk(reflect.ValueOf(settings), "")
	return fields
}

// topicColumns are the columns of topic list. The broker leaves a rate out that is 0 or not known.
var topicColumns = []output.Column[status.TopicSummary]{
	{Name: "NAME", Cell: func(t status.TopicSummary) any { return t.Name }},
	{Name: "TYPE", Cell: func(t status.TopicSummary) any { return string(t.Type) }},
	{Name: "QUEUES", Cell: func(t status.TopicSummary) any { return t.Queues }},
	{Name: "BACKLOG", Cell: func(t status.TopicSummary) any { return t.Backlog.Messages }},
	{Name: "BYTES", Cell: func(t status.TopicSummary) any { return output.Bytes(t.Backlog.Bytes) }},
	{Name: "OLDEST", Cell: oldest},
	{Name: "IN/S", Cell: func(t status.TopicSummary) any { return knownRate(t.InRate) }},
	{Name: "OUT/S", Wide: true, Cell: func(t status.TopicSummary) any { return knownRate(t.OutRate) }},
	{Name: "STORED", Cell: func(t status.TopicSummary) any { return t.Stored.Messages }},
	{Name: "STORED-BYTES", Wide: true, Cell: func(t status.TopicSummary) any { return output.Bytes(t.Stored.Bytes) }},
	{Name: "DELAYED", Cell: func(t status.TopicSummary) any { return t.Delayed.Messages }},
	{Name: "HALF", Wide: true, Cell: func(t status.TopicSummary) any { return t.Half }},
	{Name: "GROUPS", Cell: func(t status.TopicSummary) any { return t.Groups }},
	{Name: "THROTTLE", Cell: func(t status.TopicSummary) any { return throttleText(t.Throttle) }},
}

// oldest is the age of the oldest message that a group has not consumed; nil if it is not known
// because no group consumes.
func oldest(t status.TopicSummary) any {
	if t.Groups == 0 && t.OldestMS == 0 {
		return nil
	}
	return milliseconds(t.OldestMS)
}

// throttleText is a throttle in one cell: empty for none.
func throttleText(t *status.Throttle) (text output.Text) {
	if t == nil {
		return text
	}
	return output.Textf("%s: %s of %s", t.Limit, output.Number(t.Value), output.Number(t.Mark))
}

// resumes is when a limit accepts sends again, as text: empty if there is no estimate.
func resumes(t *status.Throttle) string {
	least, most := time.Duration(t.ResumesLeast), time.Duration(t.ResumesMost)
	switch {
	case most == 0:
		return ""
	case most <= least+least/4:
		return "about " + output.Duration(((least + most) / 2).Round(time.Second))
	}
	return output.Duration(least.Round(time.Second)) + " to " + output.Duration(most.Round(time.Second))
}

// topicFields are the names and values of one topic.
func topicFields(t status.Topic) []output.Field {
	fields := []output.Field{
		{Name: "topic", Value: t.Name},
		{Name: "type", Value: string(t.Type)},
		{Name: "queues", Value: t.Queues},
		{Name: "backlog", Value: output.Textf("%s, %v, of the slowest group", output.Count(t.Backlog.Messages, "message"), output.Bytes(t.Backlog.Bytes))},
		{Name: "stored", Value: output.Textf("%s, %v", output.Count(t.StoredMessages, "message"), output.Bytes(t.StoredBytes))},
	}
	if t.DelayedMessages > 0 {
		fields = append(fields, output.Field{Name: "delayed", Value: output.Textf("%s, %v", output.Count(t.DelayedMessages, "message"), output.Bytes(t.DelayedBytes))})
	}
	if t.HalfMessages > 0 {
		fields = append(fields, output.Field{Name: "half messages", Value: t.HalfMessages})
	}
	if t.Throttle != nil {
		fields = append(fields, output.Field{Name: "throttled", Value: throttleText(t.Throttle)},
			output.Field{Name: "throttled since", Value: t.Throttle.Since}, output.Field{Name: "accepts again", Value: output.Textf("at %s %s", output.Number(t.Throttle.Resume), t.Throttle.Unit)},
			output.Field{Name: "expected in", Value: resumes(t.Throttle)})
	}
	fields = append(fields, settingFields(t.Topic, "type", "queues")...)
	return append(fields, output.Field{Name: "groups", Value: output.Textf("%s", cmp.Or(strings.Join(t.Groups, ", "), "none"))})
}

// limitColumns are the columns of limits.
var limitColumns = []output.Column[status.LimitState]{
	{Name: "LIMIT", Cell: func(l status.LimitState) any { return l.Limit }},
	{Name: "SUBJECT", Cell: func(l status.LimitState) any { return cmp.Or(l.Subject, "broker") }},
	{Name: "VALUE", Cell: func(l status.LimitState) any { return l.Value }},
	{Name: "MARK", Cell: func(l status.LimitState) any { return l.Mark }},
	{Name: "RESUME", Cell: func(l status.LimitState) any { return l.Resume }},
	{Name: "UNIT", Cell: func(l status.LimitState) any { return l.Unit }},
	{Name: "THROTTLES", Cell: func(l status.LimitState) any { return map[bool]string{true: "yes", false: ""}[l.On] }},
	{Name: "SINCE", Cell: func(l status.LimitState) any { return l.Since }},
	{Name: "RESUMES", Cell: func(l status.LimitState) any { return resumes(&l.Throttle) }},
}

// joined are fields in one line.
func joined(fields []output.Field) string {
	return strings.Join(mapped(fields, func(f output.Field) string { return fmt.Sprintf("%s=%v", f.Name, f.Value) }), " ")
}

// statusFields are the names and values of a server, for the screen above the problems.
func statusFields(server string, o status.Overview) []output.Field {
	state := "ready"
	if !o.Ready {
		state = "not ready: " + o.NotReady
	}
	t := o.Totals
	oldest := ""
	if t.OldestMS > 0 {
		oldest = ", the oldest is " + output.Duration(milliseconds(t.OldestMS)) + " old"
	}
	backlog := output.Textf("%s of all groups, %s of them wait for a retry%s", output.Count(t.Backlog.Messages, "message"), output.Number(t.WaitingRetry), oldest)
	return []output.Field{
		{Name: "broker", Value: output.Textf("%s, version %s, up %s", server, o.Version, output.Duration(o.Now.Sub(o.Started).Truncate(time.Second)))},
		{Name: "state", Value: state},
		{Name: "clients", Value: o.Clients},
		{Name: "topics", Value: t.Topics},
		{Name: "groups", Value: output.Textf("%s with %s", output.Number(t.Groups), output.Count(t.Subscriptions, "subscription"))},
		{Name: "stored", Value: output.Textf("%s, %v", output.Count(t.Stored.Messages, "message"), output.Bytes(t.Stored.Bytes))},
		{Name: "backlog", Value: backlog},
		{Name: "dead letters", Value: stored(t)},
		{Name: "rates", Value: rates(t)},
		{Name: "disk", Value: disk(o.Storage)},
	}
}

// stored is empty if there are no dead letters.
func stored(t status.Totals) (text output.Text) {
	if t.DeadLettersStored == 0 {
		return text
	}
	return output.Textf("%s, %s came in the last hour", output.Number(t.DeadLettersStored), output.Number(t.DeadLettersHour))
}

// rates is empty until the broker knows them.
func rates(t status.Totals) (text output.Text) {
	if t.InRate == 0 && t.OutRate == 0 {
		return text
	}
	return output.Textf("%v messages/s in, %v messages/s out", output.Rate(t.InRate), output.Rate(t.OutRate))
}

func disk(s status.Storage) output.Text {
	switch size := output.Bytes(s.DiskBytes); {
	case s.InMemory:
		return output.Textf("none: %v in memory, which the end of the broker removes", size)
	case s.FsyncP99 > 0:
		return output.Textf("%v, 99 %% of the fsyncs take at most %s", size, roundTo3(time.Duration(s.FsyncP99)))
	default:
		return output.Textf("%v", size)
	}
}

// wrong lists the problems that need an operator: throttles first, then groups by kind, the largest
// first.
func wrong(o status.Overview) []viewProblem {
	w := o.Wrong
	out := problems("throttle", "tidegate limits show", w.Throttles, throttled)
	group := func(kind string, found status.Found[status.GroupSummary], state string, of func(g status.GroupSummary) (output.Text, string)) {
		out = append(out, problems(kind, "tidegate group list --state "+state, found, func(g status.GroupSummary) viewProblem {
			text, next := of(g)
			return viewProblem{kind, g.Group + " in " + g.Topic, text, next}
		})...)
	}
	group("parked", w.Parked, "parked", func(g status.GroupSummary) (output.Text, string) {
		return output.Textf("%s with %s wait after a failed message", output.Count(g.ParkedGroups, "message group"), output.Count(g.Parked, "message")), parkedCommand(g.Group)
	})
	group("blocked", w.Blocked, "blocked", func(g status.GroupSummary) (output.Text, string) {
		return output.Textf("%s with %s waiting behind a message that is retried without end", output.Count(g.BlockedGroups, "message group"), output.Count(g.Blocked, "message")), parkedCommand(g.Group)
	})
	group("behind", w.Behind, "behind", func(g status.GroupSummary) (output.Text, string) {
		text := output.Textf("a message has waited %s for its first delivery, %s ready", output.Duration(milliseconds(g.UndeliveredMS)), output.Count(g.Ready, "message"))
		if g.Inflight == 0 && g.Waiting == 0 {
			text = output.Textf("%s ready and none in flight, the oldest message is %s old: does a consumer run?", output.Count(g.Ready, "message"), output.Duration(milliseconds(g.OldestMS)))
		}
		return text, output.Command("tidegate group show", g.Group)
	})
	group("held", w.Held, "held", func(g status.GroupSummary) (output.Text, string) {
		return output.Textf("%s: if its handler hangs, restart it", heldBy(g.Held, o.Now)), output.CommandFlags("tidegate group show", " --clients", g.Group)
	})
	group("dead-letters", w.DeadLetters, "dead", func(g status.GroupSummary) (output.Text, string) {
		return output.Textf("%s; %s came in the last hour", output.Count(g.DeadLettersStored, "dead letter"), output.Number(g.DeadLettersHour)), output.Command("tidegate dead-letters top", g.Group)
	})
	return out
}

// problems returns the problems of one kind, with a line for those that the broker left out.
func problems[T any](kind, all string, found status.Found[T], of func(T) viewProblem) []viewProblem {
	out := []viewProblem{}
	for _, v := range found.First {
		out = append(out, of(v))
	}
	if more := found.Count - int64(len(found.First)); more > 0 {
		out = append(out, viewProblem{kind, "others", output.Textf("%s more", output.Number(more)), all})
	}
	return out
}

func throttled(t status.LimitState) viewProblem {
	in := resumes(&t.Throttle)
	if in != "" {
		in = ", in " + in
	}
	text := output.Textf("sends are rejected: %s is %s of %s %s, accepted again at %s%s",
		t.Limit, output.Number(t.Value), output.Number(t.Mark), t.Unit, output.Number(t.Resume), in)
	return viewProblem{"throttle", cmp.Or(t.Subject, "broker"), text, "tidegate limits show"}
}

// problemColumns are the columns of the problems.
var problemColumns = []output.Column[viewProblem]{
	{Name: "WRONG NOW", Cell: func(p viewProblem) any { return p.Kind }},
	{Name: "SUBJECT", Cell: func(p viewProblem) any { return p.Subject }},
	{Name: "WHAT", Least: 80, Cell: func(p viewProblem) any { return p.Text }},
	{Name: "NEXT", Cell: func(p viewProblem) any { return p.Next }},
}

// roundTo3 rounds a duration to about three digits: 20.2ms.
func roundTo3(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// auditColumns are the columns of audit.
var auditColumns = []output.Column[status.AuditRecord]{
	{Name: "TIME", Cell: func(r status.AuditRecord) any { return r.Time }},
	{Name: "KEY", Cell: func(r status.AuditRecord) any { return cmp.Or(r.Key, "-") }},
	{Name: "ADDRESS", Cell: func(r status.AuditRecord) any { return r.Peer }},
	{Name: "OPERATION", Cell: func(r status.AuditRecord) any { return r.Operation }},
	{Name: "SUBJECT", Cell: func(r status.AuditRecord) any { return r.Subject }},
	{Name: "QUERY", Wide: true, Least: 24, Cell: func(r status.AuditRecord) any { return r.Query }},
	{Name: "RESULT", Least: 24, Cell: func(r status.AuditRecord) any { return r.Result }},
}

// A metric is one series of Prometheus' text format with its value.
type metric struct {
	Series string `json:"series"` // name and labels
	Value  string `json:"value"`  // a text, because +Inf and NaN are no numbers in JSON
}

// metrics returns the series of a text whose names or labels match a regular expression; empty
// matches all.
func metrics(text, match string) ([]metric, error) {
	matches, err := regexp.Compile(match)
	if err != nil {
		return nil, fmt.Errorf("--match is %q: %w", match, err)
	}
	out := []metric{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") || !matches.MatchString(line[:at]) {
			continue
		}
		out = append(out, metric{line[:at], line[at+1:]})
	}
	return out, nil
}

// Number is the value as a number, if it is one.
func (m metric) Number() any {
	if n, err := strconv.ParseFloat(m.Value, 64); err == nil && n == float64(int64(n)) {
		return int64(n)
	}
	return m.Value
}

// A viewProblem is one thing that is wrong now, with the command that shows more.
type viewProblem struct {
	Kind    string      `json:"kind"` // throttle, parked, blocked, behind, held, dead-letters
	Subject string      `json:"subject"`
	Text    output.Text `json:"text"`
	Next    string      `json:"next"` // a command
}

// problemText returns problems for a terminal, each with its text and the command that shows more.
// Lines of the text fit the terminal; a command is one line, so that it can be copied.
func problemText(list []viewProblem, columns int) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%s\n", output.Wrap(output.Safe(p.Kind)+": "+output.Safe(p.Subject), columns))
		text := output.Wrap(output.Safe(p.Text.Grouped()), columns-2)
		fmt.Fprintf(&b, "  %s\n  %s\n", strings.ReplaceAll(text, "\n", "\n  "), output.Safe(p.Next))
	}
	return b.String()
}

// body returns a body that the HTTP API returned as text or as bytes.
func body(body []byte, text string) string { return cmp.Or(text, string(body)) }

// messageColumns returns the columns of peek and find. Delayed messages have their delivery time
// instead of a place in a queue.
func messageColumns(delayed bool) []output.Column[status.StoredMessage] {
	if !delayed {
		return viewMessageColumns
	}
	columns := slices.DeleteFunc(slices.Clone(viewMessageColumns), func(c output.Column[status.StoredMessage]) bool {
		return c.Name == "QUEUE" || c.Name == "OFFSET"
	})
	return slices.Insert(columns, 2, output.Column[status.StoredMessage]{Name: "DELIVER", Usual: 10, Cell: func(m status.StoredMessage) any { return m.DeliverAt }})
}

var viewMessageColumns = []output.Column[status.StoredMessage]{
	{Name: "STORED", Usual: 11, Cell: func(m status.StoredMessage) any { return m.StoredAt }},
	{Name: "ID", Usual: 34, Cell: func(m status.StoredMessage) any { return m.ID }},
	{Name: "QUEUE", Keep: true, Usual: 3, Cell: func(m status.StoredMessage) any { return m.Queue }},
	{Name: "OFFSET", Keep: true, Usual: 9, Cell: func(m status.StoredMessage) any { return m.Offset }},
	{Name: "TAG", Usual: 12, Cell: func(m status.StoredMessage) any { return m.Tag }},
	{Name: "KEYS", Least: 60, Usual: 16, Cell: func(m status.StoredMessage) any { return m.Keys }},
	{Name: "GROUP", Wide: true, Cell: func(m status.StoredMessage) any { return m.MessageGroup }},
	{Name: "LITE-TOPIC", Wide: true, Cell: func(m status.StoredMessage) any { return m.LiteTopic }},
	{Name: "PRIORITY", Wide: true, Cell: func(m status.StoredMessage) any { return m.Priority }},
	{Name: "BORN", Wide: true, Cell: func(m status.StoredMessage) any { return m.BornAt }},
	{Name: "SIZE", Usual: 9, Cell: func(m status.StoredMessage) any { return output.Bytes(m.BodySize) }},
	{Name: "TEXT", Least: 16, Cell: func(m status.StoredMessage) any { return firstLine(body(m.Body, m.BodyText)) }},
}

// firstLine is the beginning of a body, in hexadecimal digits if it is not text.
func firstLine(body string) string {
	const most = 60
	line, _, more := strings.Cut(body, "\n")
	if !utf8.ValidString(line) {
		line = hex.EncodeToString([]byte(body[:min(len(body), most/2)]))
	}
	if text := []rune(line); len(text) > most {
		line, more = string(text[:most]), true
	}
	if more {
		line += "…"
	}
	return line
}

// messages returns the text of messages with their properties and whole bodies, for a terminal of
// the given columns; 0 means none.
func messages(ms []status.StoredMessage, columns int) string {
	var b strings.Builder
	for _, m := range ms {
		head := []string{m.StoredAt.UTC().Format(time.RFC3339), output.Safe(m.ID)}
		if at := strings.Join(place(m.Queue, m.Offset), " "); at != "" {
			head = append(head, at)
		}
		if !m.DeliverAt.IsZero() {
			head = append(head, "deliver at "+m.DeliverAt.UTC().Format(time.RFC3339))
		}
		head = append(head, labels(m.Tag, m.Keys, m.MessageGroup, m.LiteTopic, m.Priority)...)
		b.WriteString(output.Flow(head, columns, 4) + "\n")
		for _, name := range slices.Sorted(maps.Keys(m.Properties)) {
			fmt.Fprintf(&b, "  %s: %s\n", output.Safe(name), output.Safe(m.Properties[name]))
		}
		for line := range strings.Lines(body(m.Body, m.BodyText)) {
			fmt.Fprintf(&b, "    %s\n", output.Safe(strings.TrimSuffix(line, "\n")))
		}
	}
	return b.String()
}

// labels are the tag, the keys, the message group, the lite topic and the priority of a message that
// are set.
func labels(tag string, keys []string, group, lite string, priority int) (parts []string) {
	rank := ""
	if priority > 0 {
		rank = strconv.Itoa(priority)
	}
	for _, p := range [][2]string{{"tag", tag}, {"keys", strings.Join(keys, ",")}, {"group", group}, {"lite topic", lite}, {"priority", rank}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+output.Safe(p[1]))
		}
	}
	return parts
}

// bornAt returns the time in a message ID of RocketMQ 5 (rocketmq-clients, docs/message_id.md).
func bornAt(id string) (time.Time, bool) {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != 17 || b[0] != 1 {
		return time.Time{}, false
	}
	epoch := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	return epoch.Add(time.Duration(binary.BigEndian.Uint32(b[9:13])) * time.Second), true
}

// viewChanges lists the settings that differ, a line each with the old and the new value.
func viewChanges(before, after any) string {
	old, now := map[string]string{}, map[string]string{}
	var order []string
	note := func(into map[string]string, settings any) {
		for _, f := range settingFields(settings) {
			into[f.Name] = fmt.Sprint(f.Value)
			if !slices.Contains(order, f.Name) {
				order = append(order, f.Name)
			}
		}
	}
	note(old, before)
	note(now, after)
	var b strings.Builder
	for _, key := range order {
		if old[key] != now[key] {
			fmt.Fprintf(&b, "%s: %s -> %s\n", key, cmp.Or(old[key], "default"), cmp.Or(now[key], "default"))
		}
	}
	return b.String()
}

// letterColumns are the columns of dead letters.
var letterColumns = []output.Column[status.DeadLetter]{
	{Name: "ID", Cell: func(l status.DeadLetter) any { return l.MessageID }},
	{Name: "TOPIC", Cell: func(l status.DeadLetter) any { return l.Origin.Topic }},
	{Name: "DIED", Cell: func(l status.DeadLetter) any { return l.StoredAt }},
	{Name: "ATTEMPTS", Cell: func(l status.DeadLetter) any { return l.Origin.Attempts }},
	{Name: "REDRIVES", Wide: true, Cell: func(l status.DeadLetter) any { return l.Origin.Redrives }},
	{Name: "SIZE", Cell: func(l status.DeadLetter) any { return output.Bytes(l.BodySize) }},
	{Name: "TAG", Wide: true, Cell: func(l status.DeadLetter) any { return l.Tag }},
	{Name: "KEYS", Wide: true, Least: 60, Cell: func(l status.DeadLetter) any { return l.Keys }},
	{Name: "MESSAGE-GROUP", Wide: true, Cell: func(l status.DeadLetter) any { return l.MessageGroup }},
	{Name: "LITE-TOPIC", Wide: true, Cell: func(l status.DeadLetter) any { return l.LiteTopic }},
	{Name: "PRIORITY", Wide: true, Cell: func(l status.DeadLetter) any { return l.Priority }},
	{Name: "REASON", Least: 24, Cell: func(l status.DeadLetter) any { return l.Origin.Reason }},
}

// watchColumns are the columns of dead letters that have just come.
var watchColumns = []output.Column[status.DeadLetter]{
	{Name: "DIED", Usual: 11, Cell: func(l status.DeadLetter) any { return l.StoredAt }},
	{Name: "ID", Usual: 34, Cell: func(l status.DeadLetter) any { return l.MessageID }},
	{Name: "TOPIC", Cell: func(l status.DeadLetter) any { return l.Origin.Topic }},
	{Name: "REASON", Least: 24, Cell: func(l status.DeadLetter) any { return l.Origin.Reason }},
}

// letterFields are the names and values of one dead letter.
func letterFields(l status.DeadLetter) []output.Field {
	fields := []output.Field{
		{Name: "id", Value: l.MessageID},
		{Name: "reason", Value: l.Origin.Reason},
		{Name: "sent to", Value: strings.Join(append([]string{l.Origin.Topic}, place(l.Origin.Queue, l.Origin.Offset)...), ", ")},
		{Name: "attempts", Value: fmt.Sprintf("%d of group %s", l.Origin.Attempts, l.Origin.Group)},
		{Name: "redrives", Value: l.Origin.Redrives},
		{Name: "born", Value: l.BornAt},
		{Name: "died", Value: l.StoredAt},
		{Name: "message group", Value: l.MessageGroup},
		{Name: "lite topic", Value: l.LiteTopic},
		{Name: "priority", Value: l.Priority},
		{Name: "tag", Value: l.Tag},
		{Name: "keys", Value: l.Keys},
	}
	for _, name := range slices.Sorted(maps.Keys(l.Properties)) {
		fields = append(fields, output.Field{Name: output.Safe(name), Value: l.Properties[name]})
	}
	return append(fields, output.Field{Name: "body", Value: body(l.Body, l.BodyText)})
}

// A class is a class of dead letters. Bytes are known if the letters were read, as on a RocketMQ.
type class struct {
	status.DeadLetterClass
	Bytes  int64    `json:"bytes,omitempty"`
	Sample []string `json:"sample,omitempty"` // message IDs
}

// viewCounted returns the classes that the broker counted.
func viewCounted(p status.DeadLetterClassPage) []class {
	return mapped(p.Classes, func(k status.DeadLetterClass) class { return class{DeadLetterClass: k} })
}

// read returns the classes of letters that were read.
func read(classes []deadletter.Class) []class {
	rows, letters := make([]class, len(classes)), 0
	for _, k := range classes {
		letters += k.Count
	}
	for i, k := range classes {
		rows[i] = class{status.DeadLetterClass{
			Fingerprint: k.Fingerprint, Topic: k.Topic, Reason: k.Reason, Count: int64(k.Count), Share: float64(k.Count) / float64(letters),
			First: k.First, Last: k.Last, MaxRedrives: k.MaxRedrives,
		}, k.Bytes, k.Sample}
	}
	return rows
}

// classColumns are the columns of classes of dead letters.
var classColumns = []output.Column[class]{
	{Name: "CLASS", Cell: func(k class) any { return k.Fingerprint }},
	{Name: "COUNT", Cell: func(k class) any { return k.Count }},
	{Name: "SHARE", Cell: func(k class) any { return output.Share(k.Share) }},
	{Name: "TOPIC", Cell: func(k class) any { return k.Topic }},
	{Name: "FIRST", Cell: func(k class) any { return k.First }},
	{Name: "LAST", Cell: func(k class) any { return k.Last }},
	{Name: "REDRIVES", Cell: func(k class) any { return k.MaxRedrives }},
	{Name: "BYTES", Wide: true, Cell: func(k class) any { return output.Bytes(k.Bytes) }},
	{Name: "EXAMPLE", Cell: func(k class) any { return k.Example() }},
	{Name: "REASON", Least: 24, Cell: func(k class) any { return k.Reason }},
}

// Example is the message ID of one letter, empty if none is known.
func (k class) Example() string {
	if len(k.Sample) == 0 {
		return ""
	}
	return k.Sample[0]
}

// reportFields are the names and values of a redrive.
func reportFields(r deadletter.Report) []output.Field {
	sent := "sent back"
	if r.DryRun {
		sent = "would be sent back"
	}
	fields := []output.Field{{Name: "seen", Value: r.Seen}, {Name: sent, Value: r.Redriven}}
	for _, rule := range slices.Sorted(maps.Keys(r.Skipped)) {
		n := r.Skipped[rule]
		fields = append(fields, output.Field{Name: "skipped", Value: output.Textf("%s: %s", output.Number(n), rule)})
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"of them under another new ID, because two have one ID", r.Renamed}, {"failed", r.Failed}, {"dead letters again", r.Returned}, {"sent by an earlier run", r.Recovered}, {"still leased", r.Unresolved}} {
		if f.n > 0 {
			fields = append(fields, output.Field{Name: f.name, Value: f.n})
		}
	}
	return append(fields, output.Field{Name: "stopped", Value: r.Stopped})
}
