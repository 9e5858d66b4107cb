package admin

import (
	"context"
	"iter"
	"net/url"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// DeadLetters returns a page of the dead letters of a group, without consuming them. The error
// matches tidegate.ErrNotFound if neither the group nor a dead letter of it exists.
func (c *Client) DeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) (status.DeadLetterPage, error) {
	v := values(&q.DeadLetterFilter)
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	yes(v, "bodies", q.Bodies)
	return get[status.DeadLetterPage](ctx, c, "DeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

// AllDeadLetters returns the dead letters of a group on all pages after q.After; q.Limit is the
// size of a page. It requests the next page when the loop reaches it. An error ends the sequence.
func (c *Client) AllDeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) iter.Seq2[status.DeadLetter, error] {
	return func(yield func(status.DeadLetter, error) bool) {
		for {
			page, err := c.DeadLetters(ctx, group, q)
			if err != nil {
				yield(status.DeadLetter{}, err)
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

// Failures returns a page of the latest failures of a group, the newest first. The error matches
// tidegate.ErrNotFound if there is no such group.
func (c *Client) Failures(ctx context.Context, group string, q status.FailureQuery) (status.FailurePage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.FailurePage](ctx, c, "Failures", group, escaped("groups", group, "failures"), v)
}

// DeadLetterClasses returns a page of the classes of the dead letters of a group. The errors are
// those of DeadLetters.
func (c *Client) DeadLetterClasses(ctx context.Context, group string, q status.DeadLetterClassQuery) (status.DeadLetterClassPage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.DeadLetterClassPage](ctx, c, "DeadLetterClasses", group, escaped("groups", group, "dead-letters", "classes"), v)
}

// RedriveDeadLetters sends dead letters back to their topics, the oldest first. The broker appends
// each dead letter to the topic and removes it from the dead letters in one write, so neither a
// crash nor a repetition creates a duplicate. A throttle of the topic ends the call early: the
// result then has Throttle and Next. If nothing was sent back, the error matches
// tidegate.ErrThrottled instead.
func (c *Client) RedriveDeadLetters(ctx context.Context, group string, s status.DeadLetterSelection) (status.DeadLetterRedrive, error) {
	return post[status.DeadLetterRedrive](ctx, c, "RedriveDeadLetters", group, escaped("groups", group, "dead-letters", "redrive"), s)
}

// PurgeDeadLetters removes dead letters permanently, up to s.Limit of them. A zero filter selects
// all. A call whose response was lost is not repeated, because the repetition could remove more
// than s.Limit.
func (c *Client) PurgeDeadLetters(ctx context.Context, group string, s status.DeadLetterSelection) (status.DeadLetterPurge, error) {
	v := values(&s.DeadLetterFilter)
	yes(v, "all", len(v) == 0)
	set(v, "dead_letter_topic", s.In)
	set(v, "after", s.After)
	setLimit(v, s.Limit)
	var out status.DeadLetterPurge
	err := c.do(ctx, httpapi.Request{
		Op: "PurgeDeadLetters", Subject: group, Method: "DELETE", Path: escaped("groups", group, "dead-letters"), Query: v, Out: &out,
	}, unlessAccepted)
	return out, err
}

func values(f *status.DeadLetterFilter) url.Values {
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
