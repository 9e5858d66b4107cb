package deadletter

import (
	"cmp"
	"maps"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Retry is a message for a retry topic, or a retried message for the dead letter topic. It is
// stored as a message of its own.
type Retry struct {
	ID    string
	Times int       // retries, including this one
	From  string    // topic of the original send if this is the first retry, and empty otherwise
	Due   time.Time // delivery time; zero means at once
	Dead  bool      // it goes to the dead letter topic
}

// Apply turns the original message into the retry, for the topic named to.
func (r *Retry) Apply(m *store.Message, to string) {
	p := maps.Clone(m.Properties)
	if p == nil {
		p = map[string]string{}
	}
	if r.From != "" {
		p[protocol.PropertyRealTopic], p[protocol.PropertyOriginMessageID] = r.From, m.ID
	}
	if !r.Dead {
		p[protocol.PropertyRetryTopic] = to
	}
	p[protocol.PropertyReconsumeTimes] = strconv.Itoa(r.Times)
	m.ID, m.DeliverAt, m.Properties = r.ID, r.Due, p
}

// RealTopic returns the topic of the original send of a message. For messages that are not from a
// retry topic, this is topic.
func RealTopic(m *store.Message, topic string) string {
	return cmp.Or(m.Properties[protocol.PropertyRealTopic], topic)
}

// Origin returns the topic of the original send of a message in topic, and how often the group has
// retried it since. The properties of the message count only if topic is the group's own retry
// topic. In all other topics, dead letters and retries of other groups are ordinary messages.
func Origin(c *settings.RetryTopic, m *store.Message, topic, group string) (from string, times int) {
	from, retry := c.Original(topic, group)
	if !retry {
		return topic, 0
	}
	if from == "" { // one retry topic for all topics of the group
		from = RealTopic(m, topic)
	}
	times, _ = strconv.Atoi(m.Properties[protocol.PropertyReconsumeTimes]) // only the broker writes it
	return from, max(times, 0)
}

// Sent returns topic and ID of the original send of a message in topic. As in Origin, the
// properties count only in the group's own retry topic.
func Sent(c *settings.RetryTopic, m *store.Message, topic, group string) (to, id string) {
	if _, retry := c.Original(topic, group); !retry {
		return topic, m.ID
	}
	return RealTopic(m, topic), cmp.Or(m.Properties[protocol.PropertyOriginMessageID], m.ID)
}
