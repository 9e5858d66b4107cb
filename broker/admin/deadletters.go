package admin

import (
	"context"
	"iter"
	"net/url"
	"time"

	"github.com/tidegate/tidegate/internal/httpapi"
)

// A DeadLetterFilter selects dead letters of a group. A dead letter must match all fields that are
// not zero. The zero value selects all.
type DeadLetterFilter struct {
	Topic      string    `json:"topic,omitempty"`       // topic of the original send
	MessageIDs []string  `json:"message_ids,omitempty"` // any of these
	Reason     string    `json:"reason,omitempty"`      // a part of the reason
	Since      time.Time `json:"since,omitzero"`        // it became a dead letter at this time or later
	Before     time.Time `json:"before,omitzero"`       // it became a dead letter before this time
}

// A DeadLetterQuery selects a page of dead letters.
type DeadLetterQuery struct {
	DeadLetterFilter
	In     string // topic with the dead letters, see Group.DeadLetterTopics; empty means %DLQ%group
	After  string // Next of the previous page; empty means the first page
	Limit  int    // at most 1000; 0 means 100
	Bodies bool   // include the bodies
}

// A DeadLetterPage is one page of dead letters, the oldest first. A page that is not the last can
// have fewer dead letters than Limit, or none.
type DeadLetterPage struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Next        string       `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A DeadLetter is a stored dead letter.
type DeadLetter struct {
	MessageID    string            `json:"message_id"`
	Queue        int               `json:"queue"` // queue of the dead letter, as is Offset
	Offset       int64             `json:"offset"`
	StoredAt     time.Time         `json:"stored_at"` // time at which it became a dead letter
	BornAt       time.Time         `json:"born_at"`
	BornHost     string            `json:"born_host,omitempty"`
	Origin       Origin            `json:"origin"`
	MessageGroup string            `json:"message_group,omitempty"`
	Tag          string            `json:"tag,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	BodySize     int               `json:"body_size"`
	Body         []byte            `json:"body,omitempty"` // nil unless the query asks for bodies
}

// An Origin is the message that became a dead letter, with its group, its attempts and the reason.
type Origin struct {
	Topic    string `json:"topic"`
	Queue    int    `json:"queue"`
	Offset   int64  `json:"offset"`
	Group    string `json:"group"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"`
	Redrives int    `json:"redrives"` // number of earlier redrives
}

// A DeadLetterSelection selects the dead letters of a redrive or purge.
type DeadLetterSelection struct {
	DeadLetterFilter
	In    string `json:"dead_letter_topic,omitempty"` // topic with the dead letters; empty means %DLQ%group
	After string `json:"after,omitempty"`             // Next of the previous result; empty means from the oldest
	Limit int    `json:"limit,omitempty"`             // dead letters of this call, at most 100 000; 0 means 1000

	// To is the target topic of a redrive. Empty means the topic of each message's original send.
	To string `json:"to,omitempty"`

	// MaxRedrives excludes messages with at least that many earlier redrives. Zero means no bound.
	// For redrives only.
	MaxRedrives int `json:"max_redrives,omitempty"`
}

// A DeadLetterRedrive is the result of [Client.RedriveDeadLetters].
type DeadLetterRedrive struct {
	Redriven int64     `json:"redriven"`
	NoTarget int64     `json:"no_target"`          // not sent: the topic does not exist or does not accept the message
	TooOften int64     `json:"too_often"`          // not sent because of MaxRedrives
	Next     string    `json:"next,omitempty"`     // position to continue at; empty at the end
	Throttle *Throttle `json:"throttle,omitempty"` // the throttle that ended the call before Limit; nil if none did
}

// A DeadLetterPurge is the result of [Client.PurgeDeadLetters].
type DeadLetterPurge struct {
	Purged int64  `json:"purged"`
	Next   string `json:"next,omitempty"` // position to continue at; empty at the end
}

// DeadLetters returns a page of the dead letters of a group, without consuming them. The error
// matches tidegate.ErrNotFound if neither the group nor a dead letter of it exists.
func (c *Client) DeadLetters(ctx context.Context, group string, q DeadLetterQuery) (DeadLetterPage, error) {
	v := q.values()
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	number(v, "limit", q.Limit)
	yes(v, "bodies", q.Bodies)
	return get[DeadLetterPage](ctx, c, "DeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

// AllDeadLetters returns the dead letters of a group on all pages after q.After; q.Limit is the
// size of a page. It requests the next page when the loop reaches it. An error ends the sequence.
func (c *Client) AllDeadLetters(ctx context.Context, group string, q DeadLetterQuery) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for {
			page, err := c.DeadLetters(ctx, group, q)
			if err != nil {
				yield(DeadLetter{}, err)
				return
			}
			for _, d := range page.DeadLetters {
				if !yield(d, nil) {
					return
				}
			}
			if q.After = page.Next; q.After == "" {
				return
			}
		}
	}
}

// RedriveDeadLetters sends dead letters back to their topics, the oldest first. The broker appends
// each dead letter to the topic and removes it from the dead letters in one write, so neither a
// crash nor a repetition creates a duplicate. A throttle of the topic ends the call early: the
// result then has Throttle and Next. If nothing was sent back, the error matches
// tidegate.ErrThrottled instead.
func (c *Client) RedriveDeadLetters(ctx context.Context, group string, s DeadLetterSelection) (DeadLetterRedrive, error) {
	return post[DeadLetterRedrive](ctx, c, "RedriveDeadLetters", group, escaped("groups", group, "dead-letters", "redrive"), s)
}

// PurgeDeadLetters removes dead letters permanently, up to s.Limit of them. A zero filter selects
// all. A call whose response was lost is not repeated, because the repetition could remove more
// than s.Limit.
func (c *Client) PurgeDeadLetters(ctx context.Context, group string, s DeadLetterSelection) (DeadLetterPurge, error) {
	v := s.values()
	yes(v, "all", len(v) == 0)
	set(v, "dead_letter_topic", s.In)
	set(v, "after", s.After)
	number(v, "limit", s.Limit)
	var out DeadLetterPurge
	err := c.do(ctx, httpapi.Request{
		Op: "PurgeDeadLetters", Subject: group, Method: "DELETE", Path: escaped("groups", group, "dead-letters"), Query: v, Out: &out,
	}, unlessAccepted)
	return out, err
}

func (f *DeadLetterFilter) values() url.Values {
	v := url.Values{}
	set(v, "topic", f.Topic)
	for _, id := range f.MessageIDs {
		v.Add("message_id", id)
	}
	set(v, "reason", f.Reason)
	moment(v, "since", f.Since)
	moment(v, "before", f.Before)
	return v
}
