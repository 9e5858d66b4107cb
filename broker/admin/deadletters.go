package admin

import (
	"context"
	"iter"
	"net/url"
	"time"

	"github.com/tidegate/tidegate/internal/httpapi"
)

// A DeadLetterFilter chooses dead letters of a group: those that match every field which is not
// zero. The zero value chooses all.
type DeadLetterFilter struct {
	Topic      string    // that the message was sent to
	MessageIDs []string  // any of these
	Reason     string    // the reason contains it
	Since      time.Time // it became a dead letter then or later
	Before     time.Time // it became a dead letter earlier
}

// A DeadLetterQuery says which dead letters a page has.
type DeadLetterQuery struct {
	DeadLetterFilter
	In     string // the topic that holds them, see Group.DeadLetterTopics; empty: %DLQ%group
	After  string // Next of the page before; empty: the oldest
	Limit  int    // at most 1000; 0: 100
	Bodies bool   // with bodies
}

// A DeadLetterPage is one page of dead letters, the oldest first. It can have fewer than Limit,
// even none, although it is not the last page.
type DeadLetterPage struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Next        string       `json:"next,omitempty"` // After of the next page; empty: this is the last one
}

// A DeadLetter is a dead letter where it lies.
type DeadLetter struct {
	MessageID    string            `json:"message_id"`
	Queue        int               `json:"queue"` // among the dead letters, as is Offset
	Offset       int64             `json:"offset"`
	StoredAt     time.Time         `json:"stored_at"` // when it became one
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

// An Origin is where a dead letter comes from and why it is one.
type Origin struct {
	Topic    string `json:"topic"`
	Queue    int    `json:"queue"`
	Offset   int64  `json:"offset"`
	Group    string `json:"group"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"`
	Redrives int    `json:"redrives"` // how often it had been sent back before
}

// A DeadLetterSelection says which dead letters are sent back or removed.
type DeadLetterSelection struct {
	DeadLetterFilter
	In    string // the topic that holds them; empty: %DLQ%group
	After string // Next of the result before; empty: the oldest
	Limit int    // dead letters of this call, at most 100 000; 0: 1000

	// To is the topic to send to; empty: the one that each was sent to. Redrives only.
	To string

	// MaxRedrives leaves those that were sent back that often before; 0: no bound. Redrives only.
	MaxRedrives int
}

type redriveRequest struct {
	Topic       string    `json:"topic,omitempty"`
	MessageIDs  []string  `json:"message_ids,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	Before      time.Time `json:"before,omitzero"`
	After       string    `json:"after,omitempty"`
	Limit       int       `json:"limit,omitempty"`
	To          string    `json:"to,omitempty"`
	In          string    `json:"dead_letter_topic,omitempty"`
	MaxRedrives int       `json:"max_redrives,omitempty"`
}

// A DeadLetterRedrive is what [Client.RedriveDeadLetters] did.
type DeadLetterRedrive struct {
	Redriven int64     `json:"redriven"`
	NoTarget int64     `json:"no_target"`          // stayed: their topic does not exist, or does not take them
	TooOften int64     `json:"too_often"`          // stayed because of MaxRedrives
	Next     string    `json:"next,omitempty"`     // where to continue; empty: that was all
	Throttle *Throttle `json:"throttle,omitempty"` // why it stopped before Limit; nil: it did not
}

// A DeadLetterPurge is what [Client.PurgeDeadLetters] did.
type DeadLetterPurge struct {
	Purged int64  `json:"purged"`
	Next   string `json:"next,omitempty"` // where to continue; empty: that was all
}

// DeadLetters returns a page of the dead letters of a group, without consuming them. The error
// matches tidegate.ErrNotFound if there is neither such a group nor a dead letter of it.
func (c *Client) DeadLetters(ctx context.Context, group string, q DeadLetterQuery) (DeadLetterPage, error) {
	v := q.values()
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	number(v, "limit", q.Limit)
	yes(v, "bodies", q.Bodies)
	return get[DeadLetterPage](ctx, c, "DeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

// AllDeadLetters returns the dead letters of a group over all pages, from q.After on; q.Limit is
// the size of a page. It asks for the next page when the loop gets there. An error ends it.
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

// RedriveDeadLetters sends dead letters back, the oldest first. Each becomes the newest message of
// its topic and leaves the dead letters in one write of the broker, so neither a crash nor a
// repetition makes two of one. A throttle of the topic ends the call early: the result then has
// Throttle and Next, or the error matches tidegate.ErrThrottled if nothing was sent back.
func (c *Client) RedriveDeadLetters(ctx context.Context, group string, s DeadLetterSelection) (DeadLetterRedrive, error) {
	return post[DeadLetterRedrive](ctx, c, "RedriveDeadLetters", group, escaped("groups", group, "dead-letters", "redrive"), redriveRequest{
		Topic: s.Topic, MessageIDs: s.MessageIDs, Reason: s.Reason, Since: s.Since, Before: s.Before,
		After: s.After, Limit: s.Limit, To: s.To, In: s.In, MaxRedrives: s.MaxRedrives,
	})
}

// PurgeDeadLetters removes dead letters permanently, up to s.Limit of them; a filter that is zero
// chooses all. A call whose response was lost is not repeated, since it could remove more than
// s.Limit.
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
