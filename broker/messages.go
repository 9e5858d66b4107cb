package broker

import (
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
)

// Messages returns a page of the stored messages of a topic, consumed or not. It delivers none of
// them: no lease, no attempt and no position changes. A page ends when it has maxBytes; zero means
// that only the bounds of a call apply. The error is 40402 if the topic does not exist, and 40000
// if the queue, After or Limit is invalid.
func (b served) Messages(name string, q status.MessageQuery, maxBytes int64) (status.MessagePage, error) {
	if !b.calls.Begin() {
		return status.MessagePage{}, refusal.Closed()
	}
	defer b.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.MessagePage{}, err
	}
	t, err := b.catalog.Topic(name)
	if err != nil {
		return status.MessagePage{}, err
	}
	if q.Delayed {
		return engine.BrowseDelayed(b.store, t, &q, limit, maxBytes)
	}
	return engine.BrowsePage(b.store, t, &q, limit, maxBytes)
}
