package view

import (
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// StatusFields are the names and values of a server, for the screen above the problems.
func StatusFields(server string, o status.Overview) []output.Field {
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

// Wrong lists the problems that need an operator: throttles first, then groups by kind, the largest
// first.
func Wrong(o status.Overview) []Problem {
	w := o.Wrong
	out := problems("throttle", "tidegate limits show", w.Throttles, throttled)
	out = append(out, problems("parked", "tidegate group list --state parked", w.Parked, func(g status.GroupSummary) Problem {
		return Problem{"parked", g.Group + " in " + g.Topic, output.Textf("%s with %s wait after a failed message", output.Count(g.ParkedGroups, "message group"), output.Count(g.Parked, "message")),
			parkedCommand(g.Group)}
	})...)
	out = append(out, problems("blocked", "tidegate group list --state blocked", w.Blocked, func(g status.GroupSummary) Problem {
		return Problem{"blocked", g.Group + " in " + g.Topic, blockedText(g.BlockedGroups, g.Blocked), parkedCommand(g.Group)}
	})...)
	out = append(out, problems("behind", "tidegate group list --state behind", w.Behind, func(g status.GroupSummary) Problem {
		text := output.Textf("a message has waited %s for its first delivery, %s ready", output.Duration(milliseconds(g.UndeliveredMS)), output.Count(g.Ready, "message"))
		if g.Inflight == 0 && g.Waiting == 0 {
			text = output.Textf("%s ready and none in flight, the oldest message is %s old: does a consumer run?", output.Count(g.Ready, "message"), output.Duration(milliseconds(g.OldestMS)))
		}
		return Problem{"behind", g.Group + " in " + g.Topic, text, shell.Line("tidegate group show", g.Group)}
	})...)
	out = append(out, problems("held", "tidegate group list --state held", w.Held, func(g status.GroupSummary) Problem {
		return Problem{"held", g.Group + " in " + g.Topic, output.Textf("%s: if its handler hangs, restart it", HeldBy(g.Held, o.Now)), shell.LineFlags("tidegate group show", " --clients", g.Group)}
	})...)
	return append(out, problems("dead-letters", "tidegate group list --state dead", w.DeadLetters, func(g status.GroupSummary) Problem {
		return Problem{"dead-letters", g.Group + " in " + g.Topic, output.Textf("%s; %s came in the last hour", output.Count(g.DeadLettersStored, "dead letter"), output.Number(g.DeadLettersHour)), shell.Line("tidegate dead-letters top", g.Group)}
	})...)
}

// problems returns the problems of one kind, with a line for those that the broker left out.
func problems[T any](kind, all string, found status.Found[T], of func(T) Problem) []Problem {
	out := []Problem{}
	for _, v := range found.First {
		out = append(out, of(v))
	}
	if more := found.Count - int64(len(found.First)); more > 0 {
		out = append(out, Problem{kind, "others", output.Textf("%s more", output.Number(more)), all})
	}
	return out
}

func throttled(t status.LimitState) Problem {
	subject := t.Subject
	if subject == "" {
		subject = "broker"
	}
	in := Resumes(&t.Throttle)
	if in != "" {
		in = ", in " + in
	}
	text := output.Textf("sends are rejected: %s is %s of %s %s, accepted again at %s%s",
		t.Limit, output.Number(t.Value), output.Number(t.Mark), t.Unit, output.Number(t.Resume), in)
	return Problem{"throttle", subject, text, "tidegate limits show"}
}

// ProblemColumns are the columns of the problems.
var ProblemColumns = []output.Column[Problem]{
	{Name: "WRONG NOW", Cell: func(p Problem) any { return p.Kind }},
	{Name: "SUBJECT", Cell: func(p Problem) any { return p.Subject }},
	{Name: "WHAT", Least: 80, Cell: func(p Problem) any { return p.Text }},
	{Name: "NEXT", Cell: func(p Problem) any { return p.Next }},
}

// roundTo3 rounds a duration to about three digits: 20.2ms.
func roundTo3(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
