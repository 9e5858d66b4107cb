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
	yes(v, "text", q.Text)
	order(v, q.Newest)
	return get[status.DeadLetterPage](ctx, c, "DeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

// AllDeadLetters returns the dead letters of a group on all pages after q.After; q.Limit is the
// size of a page. It requests the next page when the loop reaches it. An error ends the sequence.
func (c *Client) AllDeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) iter.Seq2[status.DeadLetter, error] {
	return func(yield func(status.DeadLetter, error) bool) {
		for at := (httpapi.Cursor{After: q.After}); ; {
			q.After = at.After
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
			if more, err := at.Advance(page.Next); !more {
				if err != nil {
					yield(status.DeadLetter{}, err)
				}
				return
			}
		}
	}
}

// Leases returns a page of the unfinished messages of a group in a topic. The error matches
// tidegate.ErrNotFound if there is no such group or topic, or if the group has not received from
// the topic.
func (c *Client) Leases(ctx context.Context, group, topic string, q status.LeaseQuery) (status.LeasePage, error) {
	v := url.Values{}
	set(v, "state", q.State)
	if q.ByDue {
		v.Set("sort", "due")
	}
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.LeasePage](ctx, c, "Leases", group, escaped("groups", group, "topics", topic, "leases"), v)
}

// Schedule returns when the retries of a group in a topic come, and when its leases end. The errors
// are those of Leases.
func (c *Client) Schedule(ctx context.Context, group, topic string) (status.Schedule, error) {
	return get[status.Schedule](ctx, c, "Schedule", group, escaped("groups", group, "topics", topic, "schedule"), nil)
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

// CountDeadLetters counts the dead letters that a query selects. Limit and Bodies have no effect. A
// call looks at a bounded number of messages: add the counts until Next is empty. The errors are
// those of DeadLetters.
func (c *Client) CountDeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) (status.DeadLetterCount, error) {
	v := values(&q.DeadLetterFilter)
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	order(v, q.Newest)
	yes(v, "count", true)
	return get[status.DeadLetterCount](ctx, c, "CountDeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

func order(v url.Values, newest bool) {
	if newest {
		v.Set("order", "newest")
	}
}

// RedriveDeadLetters sends dead letters back to their topics, in the selected order. The broker
// appends each dead letter to the topic and removes it from the dead letters in one write, so
// neither a crash nor a repetition creates a duplicate. A throttle of the topic ends the call
// early: the result then has Throttle and Next. If nothing was sent back, the error matches
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
	order(v, s.Newest)
	yes(v, "dry_run", s.DryRun)
	set(v, "sent_as", s.SentAs)
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
	set(v, "fingerprint", f.Fingerprint)
	moment(v, "since", f.Since)
	moment(v, "before", f.Before)
	return v
}
