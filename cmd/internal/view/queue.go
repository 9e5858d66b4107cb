package view

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A GroupQueue is the progress of a group in one queue.
type GroupQueue struct {
	Topic string `json:"topic"`
	status.GroupQueue
}

// GroupQueueColumns are the columns of group show --queues.
var GroupQueueColumns = []output.Column[GroupQueue]{
	{Name: "TOPIC", Cell: func(q GroupQueue) any { return q.Topic }},
	{Name: "QUEUE", Keep: true, Cell: func(q GroupQueue) any { return q.Queue }},
	{Name: "BEGIN", Keep: true, Cell: func(q GroupQueue) any { return q.Begin }},
	{Name: "CURSOR", Keep: true, Cell: func(q GroupQueue) any { return q.Cursor }},
	{Name: "END", Keep: true, Cell: func(q GroupQueue) any { return q.End }},
	{Name: "UNDELIVERED", Cell: func(q GroupQueue) any { return q.Undelivered }},
	{Name: "UNFINISHED", Cell: func(q GroupQueue) any { return q.Unfinished }},
	{Name: "OLDEST", Cell: func(q GroupQueue) any { return q.Oldest }},
}

// QueueColumns are the columns of topic show --queues.
var QueueColumns = []output.Column[status.Queue]{
	{Name: "QUEUE", Keep: true, Cell: func(q status.Queue) any { return q.Queue }},
	{Name: "BEGIN", Keep: true, Cell: func(q status.Queue) any { return q.Begin }},
	{Name: "END", Keep: true, Cell: func(q status.Queue) any { return q.End }},
	{Name: "MESSAGES", Cell: func(q status.Queue) any { return q.Messages }},
	{Name: "OLDEST", Cell: func(q status.Queue) any { return q.Oldest }},
	{Name: "NEWEST", Cell: func(q status.Queue) any { return q.Newest }},
}

// RewindColumns are the columns of a rewind and of its plan.
var RewindColumns = []output.Column[status.QueueRewind]{
	{Name: "QUEUE", Keep: true, Cell: func(q status.QueueRewind) any { return q.Queue }},
	{Name: "FROM", Keep: true, Cell: func(q status.QueueRewind) any { return q.From }},
	{Name: "TO", Keep: true, Cell: func(q status.QueueRewind) any { return q.To }},
	{Name: "AGAIN", Cell: func(q status.QueueRewind) any { return max(0, q.From-q.To) }},
	{Name: "SKIPPED", Cell: func(q status.QueueRewind) any { return max(0, q.To-q.From) }},
	{Name: "DROPPED", Cell: func(q status.QueueRewind) any { return q.Dropped }},
}

// Rewound is the text about a rewind: how many offsets it passes in each direction, and how many
// unfinished messages the group loses.
func Rewound(queues []status.QueueRewind) output.Text {
	var again, skipped, dropped int64
	for _, q := range queues {
		again += max(0, q.From-q.To)
		skipped += max(0, q.To-q.From)
		dropped += q.Dropped
	}
	return output.Textf("%s back, %s forward, %s taken from the group",
		output.Count(again, "offset"), output.Count(skipped, "offset"), output.Count(dropped, "unfinished message"))
}

// A Due counts the messages of a group in a topic that are due in a period.
type Due struct {
	Topic string `json:"topic"`
	status.DueBucket
}

// DueColumns are the columns of group show --schedule.
var DueColumns = []output.Column[Due]{
	{Name: "TOPIC", Cell: func(d Due) any { return d.Topic }},
	{Name: "DUE", Cell: func(d Due) any { return within(d.Until) }},
	{Name: "RETRIES", Cell: func(d Due) any { return d.WaitingRetry }},
	{Name: "LEASES-END", Cell: func(d Due) any { return d.Inflight }},
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
