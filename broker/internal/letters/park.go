package letters

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A ParkedGroup is a parked or blocked message group of a topic.
type ParkedGroup struct {
	consume.ParkedGroup
	Topic     *topic.Topic
	MessageID string // of the failed message; empty if it does not exist any more
}

func (g *ParkedGroup) compare(topic, messageGroup string) int {
	return cmp.Or(strings.Compare(g.Topic.Name(), topic), strings.Compare(g.MessageGroup, messageGroup))
}

// Parked returns up to limit message groups that are parked or blocked and that wanted selects,
// after a position, by topic and name, and the position of the next page, which is empty on the
// last one.
func (l *Letters) Parked(subs []*subscription.Subscription, wanted func(*consume.ParkedGroup) bool, after string, limit int) (page []ParkedGroup, next string, err error) {
	for _, s := range subs {
		for _, g := range s.ParkedGroups() {
			if wanted(&g) {
				page = append(page, ParkedGroup{ParkedGroup: g, Topic: s.Consumed().Topic()})
			}
		}
	}
	slices.SortFunc(page, func(x, y ParkedGroup) int { return x.compare(y.Topic.Name(), y.MessageGroup) })
	if after != "" {
		name, group, _ := strings.Cut(after, "/") // no name of a topic has a slash
		page = slices.DeleteFunc(page, func(g ParkedGroup) bool { return g.compare(name, group) <= 0 })
	}
	if len(page) > limit {
		page = page[:limit:limit]
		next = page[limit-1].Topic.Name() + "/" + page[limit-1].MessageGroup
	}
	for i := range page {
		m, ok, err := l.Store.Header(page[i].Place)
		if err != nil {
			return nil, "", refusal.Store(err)
		}
		if ok {
			page[i].MessageID = m.ID
		}
	}
	return page, next, nil
}

// RedriveParked sends parked message groups on, in order, the failed message first or, with
// deadLetter, without it, and returns their numbers when this is on disk. messageGroup names the
// only one; empty means all. With an error the result has the message groups that were sent on.
func (l *Letters) RedriveParked(ctx context.Context, subs []*subscription.Subscription, messageGroup string, deadLetter bool) (groups, messages int64, err error) {
	for _, s := range subs {
		if ctx.Err() != nil {
			return groups, messages, context.Cause(ctx)
		}
		g, m, err := s.RedriveParked(messageGroup, deadLetter)
		groups += g
		messages += m
		if err != nil {
			return groups, messages, err
		}
	}
	return groups, messages, nil
}
