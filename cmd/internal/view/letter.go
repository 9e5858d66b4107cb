package view

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

// LetterColumns are the columns of dead letters.
var LetterColumns = []output.Column[status.DeadLetter]{
	{Name: "ID", Cell: func(l status.DeadLetter) any { return l.MessageID }},
	{Name: "TOPIC", Cell: func(l status.DeadLetter) any { return l.Origin.Topic }},
	{Name: "DIED", Cell: func(l status.DeadLetter) any { return l.StoredAt }},
	{Name: "ATTEMPTS", Cell: func(l status.DeadLetter) any { return l.Origin.Attempts }},
	{Name: "REDRIVES", Wide: true, Cell: func(l status.DeadLetter) any { return l.Origin.Redrives }},
	{Name: "SIZE", Cell: func(l status.DeadLetter) any { return output.Bytes(l.BodySize) }},
	{Name: "TAG", Wide: true, Cell: func(l status.DeadLetter) any { return l.Tag }},
	{Name: "KEYS", Wide: true, Least: 60, Cell: func(l status.DeadLetter) any { return l.Keys }},
	{Name: "MESSAGE-GROUP", Wide: true, Cell: func(l status.DeadLetter) any { return l.MessageGroup }},
	{Name: "REASON", Least: 24, Cell: func(l status.DeadLetter) any { return l.Origin.Reason }},
}

// WatchColumns are the columns of dead letters that have just come.
var WatchColumns = []output.Column[status.DeadLetter]{
	{Name: "DIED", Usual: 11, Cell: func(l status.DeadLetter) any { return l.StoredAt }},
	{Name: "ID", Usual: 34, Cell: func(l status.DeadLetter) any { return l.MessageID }},
	{Name: "TOPIC", Cell: func(l status.DeadLetter) any { return l.Origin.Topic }},
	{Name: "REASON", Least: 24, Cell: func(l status.DeadLetter) any { return l.Origin.Reason }},
}

// LetterFields are the names and values of one dead letter.
func LetterFields(l status.DeadLetter) []output.Field {
	fields := []output.Field{
		{Name: "id", Value: l.MessageID},
		{Name: "reason", Value: l.Origin.Reason},
		{Name: "sent to", Value: fmt.Sprintf("%s, queue %d, offset %d", l.Origin.Topic, l.Origin.Queue, l.Origin.Offset)},
		{Name: "attempts", Value: fmt.Sprintf("%d of group %s", l.Origin.Attempts, l.Origin.Group)},
		{Name: "redrives", Value: l.Origin.Redrives},
		{Name: "born", Value: l.BornAt},
		{Name: "died", Value: l.StoredAt},
		{Name: "message group", Value: l.MessageGroup},
		{Name: "tag", Value: l.Tag},
		{Name: "keys", Value: l.Keys},
	}
	for _, name := range slices.Sorted(maps.Keys(l.Properties)) {
		fields = append(fields, output.Field{Name: output.Safe(name), Value: l.Properties[name]})
	}
	return append(fields, output.Field{Name: "body", Value: Body(l.Body, l.BodyText)})
}

// A Class is a class of dead letters. Bytes are known if the letters were read, as on a RocketMQ.
type Class struct {
	status.DeadLetterClass
	Bytes  int64    `json:"bytes,omitempty"`
	Sample []string `json:"sample,omitempty"` // message IDs
}

// Counted returns the classes that the broker counted.
func Counted(p status.DeadLetterClassPage) []Class {
	rows := make([]Class, len(p.Classes))
	for i, k := range p.Classes {
		rows[i].DeadLetterClass = k
	}
	return rows
}

// Read returns the classes of letters that were read.
func Read(classes []deadletter.Class) []Class {
	rows, letters := make([]Class, len(classes)), 0
	for _, k := range classes {
		letters += k.Count
	}
	for i, k := range classes {
		rows[i] = Class{status.DeadLetterClass{
			Fingerprint: k.Fingerprint, Topic: k.Topic, Reason: k.Reason, Count: int64(k.Count), Share: float64(k.Count) / float64(letters),
			First: k.First, Last: k.Last, MaxRedrives: k.MaxRedrives,
		}, k.Bytes, k.Sample}
	}
	return rows
}

// ClassColumns are the columns of classes of dead letters.
var ClassColumns = []output.Column[Class]{
	{Name: "CLASS", Cell: func(k Class) any { return k.Fingerprint }},
	{Name: "COUNT", Cell: func(k Class) any { return k.Count }},
	{Name: "SHARE", Cell: func(k Class) any { return output.Share(k.Share) }},
	{Name: "TOPIC", Cell: func(k Class) any { return k.Topic }},
	{Name: "FIRST", Cell: func(k Class) any { return k.First }},
	{Name: "LAST", Cell: func(k Class) any { return k.Last }},
	{Name: "REDRIVES", Cell: func(k Class) any { return k.MaxRedrives }},
	{Name: "BYTES", Wide: true, Cell: func(k Class) any { return output.Bytes(k.Bytes) }},
	{Name: "EXAMPLE", Cell: func(k Class) any { return k.Example() }},
	{Name: "REASON", Least: 24, Cell: func(k Class) any { return k.Reason }},
}

// Example is the message ID of one letter, empty if none is known.
func (k Class) Example() string {
	if len(k.Sample) == 0 {
		return ""
	}
	return k.Sample[0]
}

// ReportFields are the names and values of a redrive.
func ReportFields(r deadletter.Report) []output.Field {
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
