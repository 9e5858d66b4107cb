package deadletter

import (
	"maps"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
)

func message(id string, properties ...string) *store.Message {
	m := &store.Message{Message: tidegate.Message{ID: id}}
	for i := 0; i < len(properties); i += 2 {
		if m.Properties == nil {
			m.Properties = map[string]string{}
		}
		m.Properties[properties[i]] = properties[i+1]
	}
	return m
}

// The properties of a retry count only in the retry topic of the group itself.
func TestOriginOfARetry(t *testing.T) {
	t.Parallel()
	retried := []string{protocol.PropertyRealTopic, "orders", protocol.PropertyOriginMessageID, "first", protocol.PropertyReconsumeTimes, "3"}
	for _, c := range []struct {
		naming     settings.RetryNaming
		topic      string // of the message
		properties []string
		from       string
		times      int
		to, id     string
	}{
		{settings.RetryNaming292, "orders", nil, "orders", 0, "orders", "m"},
		{settings.RetryNaming292, "orders-g-RETRY", retried, "orders", 3, "orders", "first"},
		{settings.RetryNaming292, "orders-h-RETRY", retried, "orders-h-RETRY", 0, "orders-h-RETRY", "m"},
		{settings.RetryNaming292, "%DLQ%g", retried, "%DLQ%g", 0, "%DLQ%g", "m"},
		{settings.RetryNaming292, "orders-g-RETRY", nil, "orders", 0, "orders-g-RETRY", "m"}, // sent there by a client
		{settings.RetryNaming272, "g-RETRY", retried, "orders", 3, "orders", "first"},
		{settings.RetryNaming272, "g-RETRY", nil, "g-RETRY", 0, "g-RETRY", "m"},
		{settings.RetryNaming272, "g-RETRY", []string{protocol.PropertyReconsumeTimes, "-1"}, "g-RETRY", 0, "g-RETRY", "m"},
	} {
		config := &settings.RetryTopic{Enabled: true, Naming: c.naming}
		m := message("m", c.properties...)
		if from, times := Origin(config, m, c.topic, "g"); from != c.from || times != c.times {
			t.Errorf("%s, %s with %v: origin %s after %d retries, want %s after %d", c.naming, c.topic, c.properties, from, times, c.from, c.times)
		}
		if to, id := Sent(config, m, c.topic, "g"); to != c.to || id != c.id {
			t.Errorf("%s, %s with %v: sent to %s as %s, want %s as %s", c.naming, c.topic, c.properties, to, id, c.to, c.id)
		}
	}
}

func TestApplyRetry(t *testing.T) {
	t.Parallel()
	due := time.Unix(5, 0)
	for name, c := range map[string]struct {
		retry Retry
		want  []string
	}{
		"first": {Retry{ID: "new", Times: 1, From: "orders", Due: due},
			[]string{"k", "v", protocol.PropertyRealTopic, "orders", protocol.PropertyOriginMessageID, "m", protocol.PropertyRetryTopic, "to", protocol.PropertyReconsumeTimes, "1"}},
		"second": {Retry{ID: "new", Times: 2, Due: due},
			[]string{"k", "v", protocol.PropertyRetryTopic, "to", protocol.PropertyReconsumeTimes, "2"}},
		"dead letter": {Retry{ID: "new", Times: 16, Dead: true},
			[]string{"k", "v", protocol.PropertyReconsumeTimes, "16"}},
	} {
		m := message("m", "k", "v")
		before := m.Properties
		c.retry.Apply(m, "to")
		if want := message("", c.want...).Properties; m.ID != "new" || !m.DeliverAt.Equal(c.retry.Due) || !maps.Equal(m.Properties, want) {
			t.Errorf("%s: %s, due %v, with %v, want %v", name, m.ID, m.DeliverAt, m.Properties, want)
		}
		assert.That(t, len(before) == 1, "%s: the properties of the original have changed: %v", name, before)
	}
}
