package broker

import (
	"strconv"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/fingerprint"
)

// Failures returns a page of the latest failures of a group, the newest first. It reads the IDs of
// the messages from the store. The error is 40403 if there is no such group, and 40000 if After or
// Limit is invalid.
func (b served) Failures(group string, q status.FailureQuery) (status.FailurePage, error) {
	if !b.calls.Begin() {
		return status.FailurePage{}, refusal.Closed()
	}
	defer b.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.FailurePage{}, err
	}
	var before uint64
	if q.After != "" {
		if before, err = strconv.ParseUint(q.After, 10, 64); err != nil || before == 0 {
			return status.FailurePage{}, refusal.New(tidegate.CodeBadRequest, "after",
				"%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", q.After)
		}
	}
	if _, err := b.catalog.Group(group); err != nil {
		return status.FailurePage{}, err
	}
	page, dropped, more := b.env.Failures.Page(group, q.Topic, before, limit)
	out := status.FailurePage{Failures: make([]status.Failure, len(page)), Dropped: dropped}
	for i := range page {
		f := &page[i]
		out.Failures[i] = failure(f)
		if m, ok, err := b.store.Header(f.Place); err == nil && ok { // else it was removed, or is corrupt
			out.Failures[i].MessageID = m.ID
		}
	}
	if more {
		out.Next = strconv.FormatUint(page[len(page)-1].Number, 10)
	}
	return out, nil
}

// failure returns a failure without the ID of its message.
func failure(f *deadletter.Failure) status.Failure {
	out := status.Failure{
		Time: f.At, Topic: f.Topic, Queue: int(f.Place.Queue), Offset: f.Place.Offset, Attempt: f.Attempt, Client: f.Client,
		Reason: f.Reason, Cause: f.Cause, Fate: f.Fate, Delay: settings.Duration(f.Delay),
	}
	if f.Reason != "" {
		out.Fingerprint = fingerprint.Of(f.Topic, f.Reason)
	}
	return out
}
