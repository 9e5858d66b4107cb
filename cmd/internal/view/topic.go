package view

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// SettingFields are the fields of settings that are set, except for some by JSON name.
func SettingFields(settings any, except ...string) []output.Field {
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

// TopicColumns are the columns of topic list. The broker leaves a rate out that is 0 or not known.
var TopicColumns = []output.Column[status.TopicSummary]{
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
	{Name: "THROTTLE", Cell: func(t status.TopicSummary) any { return ThrottleText(t.Throttle) }},
}

// oldest is the age of the oldest message that a group has not consumed; nil if it is not known
// because no group consumes.
func oldest(t status.TopicSummary) any {
	if t.Groups == 0 && t.OldestMS == 0 {
		return nil
	}
	return milliseconds(t.OldestMS)
}

// ThrottleText is a throttle in one cell: empty for none.
func ThrottleText(t *status.Throttle) (text output.Text) {
	if t == nil {
		return text
	}
	return output.Textf("%s: %s of %s", t.Limit, output.Number(t.Value), output.Number(t.Mark))
}

// Resumes is when a limit accepts sends again, as text: empty if there is no estimate.
func Resumes(t *status.Throttle) string {
	least, most := time.Duration(t.ResumesLeast), time.Duration(t.ResumesMost)
	switch {
	case most == 0:
		return ""
	case most <= least+least/4:
		return "about " + output.Duration(((least + most) / 2).Round(time.Second))
	}
	return output.Duration(least.Round(time.Second)) + " to " + output.Duration(most.Round(time.Second))
}

// TopicFields are the names and values of one topic.
func TopicFields(t status.Topic) []output.Field {
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
		fields = append(fields, output.Field{Name: "throttled", Value: ThrottleText(t.Throttle)},
			output.Field{Name: "throttled since", Value: t.Throttle.Since}, output.Field{Name: "accepts again", Value: output.Textf("at %s %s", output.Number(t.Throttle.Resume), t.Throttle.Unit)},
			output.Field{Name: "expected in", Value: Resumes(t.Throttle)})
	}
	fields = append(fields, SettingFields(t.Topic, "type", "queues")...)
	return append(fields, output.Field{Name: "groups", Value: output.Textf("%s", cmp.Or(strings.Join(t.Groups, ", "), "none"))})
}

// LimitColumns are the columns of limits.
var LimitColumns = []output.Column[status.LimitState]{
	{Name: "LIMIT", Cell: func(l status.LimitState) any { return l.Limit }},
	{Name: "SUBJECT", Cell: func(l status.LimitState) any { return cmp.Or(l.Subject, "broker") }},
	{Name: "VALUE", Cell: func(l status.LimitState) any { return l.Value }},
	{Name: "MARK", Cell: func(l status.LimitState) any { return l.Mark }},
	{Name: "RESUME", Cell: func(l status.LimitState) any { return l.Resume }},
	{Name: "UNIT", Cell: func(l status.LimitState) any { return l.Unit }},
	{Name: "THROTTLES", Cell: func(l status.LimitState) any { return map[bool]string{true: "yes", false: ""}[l.On] }},
	{Name: "SINCE", Cell: func(l status.LimitState) any { return l.Since }},
	{Name: "RESUMES", Cell: func(l status.LimitState) any { return Resumes(&l.Throttle) }},
}

// Joined are fields in one line.
func Joined(fields []output.Field) string {
	text := ""
	for _, f := range fields {
		if text != "" {
			text += " "
		}
		text += fmt.Sprintf("%s=%v", f.Name, f.Value)
	}
	return text
}
