package admin

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// A ParkedQuery selects a page of parked message groups.
type ParkedQuery struct {
	Topic string // empty means all topics
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A ParkedPage is one page of parked message groups, by topic and name.
type ParkedPage struct {
	Groups []ParkedGroup `json:"groups"`
	Next   string        `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A ParkedGroup is a parked message group: one of its messages failed in its last attempt, and that
// message and its successors wait for RedriveParked.
type ParkedGroup struct {
	Topic        string    `json:"topic"`
	MessageGroup string    `json:"message_group"`
	Since        time.Time `json:"since"`
	Reason       string    `json:"reason"`
	MessageID    string    `json:"message_id"` // of the failed message; Queue, Offset and Attempts too
	Queue        int       `json:"queue"`
	Offset       int64     `json:"offset"`
	Attempts     int       `json:"attempts"`
	Messages     int64     `json:"messages"` // waiting messages, including the failed one
}

// A ParkedSelection selects the parked message groups of a redrive, and sets whether their failed
// messages become dead letters.
type ParkedSelection struct {
	Topic        string `json:"topic,omitempty"`         // empty means all
	MessageGroup string `json:"message_group,omitempty"` // empty means all of the topic
	DeadLetter   bool   `json:"dead_letter,omitempty"`   // true: the failed message becomes a dead letter; false: it is delivered first
}

// A ParkedRedrive is the result of [Client.RedriveParked].
type ParkedRedrive struct {
	MessageGroups int64 `json:"message_groups"`
	Messages      int64 `json:"messages"`
}

// Parked returns a page of the parked message groups of a consumer group.
func (c *Client) Parked(ctx context.Context, group string, q ParkedQuery) (ParkedPage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "after", q.After)
	number(v, "limit", q.Limit)
	return get[ParkedPage](ctx, c, "Parked", group, escaped("groups", group, "parked"), v)
}

// RedriveParked makes the messages of parked message groups ready again, in order. Their attempts
// count from 1 again.
func (c *Client) RedriveParked(ctx context.Context, group string, s ParkedSelection) (ParkedRedrive, error) {
	return post[ParkedRedrive](ctx, c, "RedriveParked", group, escaped("groups", group, "parked", "redrive"), s)
}

func set(v url.Values, key, value string) {
	if value != "" {
		v.Set(key, value)
	}
}

func number(v url.Values, key string, n int) {
	if n != 0 {
		v.Set(key, strconv.Itoa(n))
	}
}

func moment(v url.Values, key string, t time.Time) {
	if !t.IsZero() {
		v.Set(key, t.Format(time.RFC3339Nano))
	}
}

func yes(v url.Values, key string, on bool) {
	if on {
		v.Set(key, "true")
	}
}
