package pulsar

import (
	"maps"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// receivedAs returns what a receiver of a topic makes of a message that was sent.
func receivedAs(topic string, m *pulsar.ProducerMessage, change func(*fakeMessage)) received {
	from := &fakeMessage{topic: namespace + topic, id: &fakeID{entry: 28}, message: m, published: time.Unix(1000, 0)}
	if change != nil {
		change(from)
	}
	return fromPulsar(topic, from)
}

// A message arrives with all its fields, and other clients see the properties that their names
// promise.
func TestConvertRoundTrip(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_123)
	m := &tidegate.Message{
		ID: "0100", Topic: "orders", Tag: "new", Keys: []string{"k1", "k 2"}, MessageGroup: "customer-7", DeliverAt: now.Add(time.Hour),
		Properties: map[string]string{"p": "v", "q": "w"}, TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Body: []byte{0, 1, 255},
	}
	sent := toPulsar(m, "host-1", now)
	for name, want := range map[string]string{
		"UNIQ_KEY": "0100", "TAGS": "new", "KEYS": "k1\nk 2", "p": "v", "q": "w", "__BORNHOST": "host-1",
		"__TIDEGATE_TRACEPARENT": m.TraceContext, "__TIDEGATE_DELIVER_AT": "1700003600123",
	} {
		assert.Equal(t, name, sent.Properties[name], want)
	}
	assert.Equal(t, "number of properties", len(sent.Properties), 8)
	assert.Equal(t, "key", sent.Key, "customer-7")
	assert.Equal(t, "ordering key", sent.OrderingKey, "customer-7")
	assert.That(t, sent.DeliverAt.Equal(m.DeliverAt) && sent.EventTime.Equal(now), "times %v and %v", sent.DeliverAt, sent.EventTime)
	stored := now.Add(time.Second)
	got := receivedAs("orders", sent, func(f *fakeMessage) { f.redelivered, f.stored = 2, &stored })
	assert.That(t, got.ID == "0100" && got.Topic == "orders" && got.Tag == "new" && got.MessageGroup == "customer-7" && got.TraceContext == m.TraceContext, "received %+v", got.Message)
	assert.Slices(t, "keys", got.Keys, m.Keys)
	assert.Slices(t, "body", got.Body, m.Body)
	assert.That(t, maps.Equal(got.Properties, m.Properties), "properties %v", got.Properties)
	assert.That(t, got.bornAt.Equal(now) && got.bornHost == "host-1" && got.storedAt.Equal(stored) && got.due.Equal(m.DeliverAt), "received %+v", got)
	assert.Equal(t, "failed attempts", got.failed, 2)
	assert.Equal(t, "partition", got.queue, -1)
	sent.Payload[0], sent.Properties["p"] = 9, "changed"
	assert.That(t, m.Body[0] == 0 && m.Properties["p"] == "v", "the sent message shares memory with the caller's")
}

// An empty field has no property.
func TestConvertFewFields(t *testing.T) {
	sent := toPulsar(&tidegate.Message{ID: "0100", Topic: "orders", Body: []byte("x")}, "", time.Now())
	assert.That(t, len(sent.Properties) == 1 && sent.Key == "" && sent.DeliverAt.IsZero(), "sent %+v", sent)
	got := receivedAs("orders", sent, nil)
	assert.That(t, got.Keys == nil && got.Properties == nil && got.MessageGroup == "" && got.due.IsZero() && got.topic == "", "received %+v", got)
}

// Messages of other programs may lack an ID, and have other properties.
func TestForeignMessages(t *testing.T) {
	for name, c := range map[string]struct {
		message *pulsar.ProducerMessage
		change  func(*fakeMessage)
		check   func(r received) bool
	}{
		"no ID": {
			&pulsar.ProducerMessage{}, nil,
			func(r received) bool { return r.ID == "7:28:-1" && r.failed == 0 && r.bornAt.Equal(time.Unix(1000, 0)) },
		},
		"partition": {
			&pulsar.ProducerMessage{}, func(m *fakeMessage) { m.topic, m.id.partition = m.topic+"-partition-12", 12 },
			func(r received) bool { return r.ID == "7:28:12" && r.queue == 12 && r.Topic == "orders" },
		},
		"name like that of a partition": {
			&pulsar.ProducerMessage{Properties: map[string]string{"REAL_TOPIC": namespace + "my-partition-stuff"}},
			func(m *fakeMessage) { m.topic = namespace + "my-partition-stuff" },
			func(r received) bool { return r.queue == -1 && r.topic == namespace+"my-partition-stuff" },
		},
		"partition of such a name": {
			&pulsar.ProducerMessage{Properties: map[string]string{"REAL_TOPIC": namespace + "my-partition-stuff-partition-3"}},
			func(m *fakeMessage) { m.topic = namespace + "my-partition-stuff-partition-3" },
			func(r received) bool { return r.queue == 3 && r.topic == namespace+"my-partition-stuff" },
		},
		"retry without an ID": {
			&pulsar.ProducerMessage{Properties: map[string]string{"ORIGIN_MESSAGE_ID": "314:28:-1", "RECONSUMETIMES": "3", "REAL_TOPIC": "persistent://my-property/my-ns/test", "RETRY_TOPIC": "r"}},
			func(m *fakeMessage) { m.redelivered = 2 },
			func(r received) bool {
				return r.ID == "314:28:-1" && r.failed == 5 && r.topic == "persistent://my-property/my-ns/test" && r.Properties == nil
			},
		},
		"retry of the Java client": {
			&pulsar.ProducerMessage{Properties: map[string]string{
				"ORIGIN_MESSAGE_ID": "29:0:-1:2", "ORIGIN_MESSAGE_IDY_TIME": "29:0:-1:2", "REAL_SUBSCRIPTION": "billing", "REAL_TOPIC": namespace + "orders",
				"RECONSUMETIMES": "1", "DELAY_TIME": "1000", "p": "v",
			}}, nil,
			func(r received) bool {
				return r.ID == "29:0:-1:2" && r.failed == 1 && len(r.Properties) == 1 && r.Properties["p"] == "v"
			},
		},
		"retry of the Go client, which gives all messages of a batch one ID": {
			&pulsar.ProducerMessage{Properties: map[string]string{
				"ORIGIN_MESSAGE_ID": "29:0:0", "ORIGIN_MESSAGE_IDY_TIME": "29:0:0", "REAL_TOPIC": namespace + "orders", "RECONSUMETIMES": "1", "DELAY_TIME": "1000",
			}}, nil,
			func(r received) bool { return r.ID == "7:28:-1" && r.failed == 1 && r.Properties == nil },
		},
		"text in place of a number": {
			&pulsar.ProducerMessage{Properties: map[string]string{"RECONSUMETIMES": "many", "__TIDEGATE_DELIVER_AT": "soon"}}, nil,
			func(r received) bool { return r.failed == 0 && r.due.IsZero() },
		},
		"negative number": {
			&pulsar.ProducerMessage{Properties: map[string]string{"RECONSUMETIMES": "-4"}}, nil,
			func(r received) bool { return r.failed == 0 },
		},
		"key": {
			&pulsar.ProducerMessage{Key: "k"}, nil,
			func(r received) bool { return r.MessageGroup == "k" },
		},
		"key and ordering key": {
			&pulsar.ProducerMessage{Key: "k", OrderingKey: "o"}, nil,
			func(r received) bool { return r.MessageGroup == "o" },
		},
		"event time": {
			&pulsar.ProducerMessage{EventTime: time.Unix(500, 0)}, nil,
			func(r received) bool { return r.bornAt.Equal(time.Unix(500, 0)) },
		},
	} {
		r := receivedAs("orders", c.message, c.change)
		assert.That(t, c.check(r), "%s: received %+v", name, r)
	}
}

// The copies of a message keep what they do not change, whoever sent it. A copy of a copy keeps the
// origin.
func TestCopies(t *testing.T) {
	from := &fakeMessage{
		topic: namespace + "orders-partition-1", id: &fakeID{entry: 28, partition: 1}, published: time.Unix(1000, 0),
		message: &pulsar.ProducerMessage{Key: "k", OrderingKey: "o", Payload: []byte("x"), Properties: map[string]string{"__TIDEGATE_DELIVER_AT": "1", "p": "v"}, EventTime: time.Unix(500, 0)},
	}
	d := &tidegate.Delivery{Message: tidegate.Message{ID: "7:28:1", Topic: "orders"}, Attempt: 4, Queue: 1, Offset: -1}
	at := time.UnixMilli(2_000_000)
	retry := retryOf(from, d, "persistent://public/default/r", at.Add(-time.Minute), time.Minute)
	assert.That(t, maps.Equal(retry.Properties, map[string]string{
		"p": "v", "REAL_TOPIC": "persistent://public/default/orders", "ORIGIN_MESSAGE_ID": "7:28:1", "RETRY_TOPIC": "persistent://public/default/r",
		"RECONSUMETIMES": "4", "UNIQ_KEY": "7:28:1", "DELAY_TIME": "60000", "__TIDEGATE_DELIVER_AT": "2000000",
	}), "retry %v", retry.Properties)
	assert.That(t, retry.Key == "k" && retry.OrderingKey == "o" && string(retry.Payload) == "x" && retry.DeliverAt.Equal(at) && retry.EventTime.Equal(time.Unix(500, 0)), "retry %+v", retry)
	again := &fakeMessage{topic: "persistent://public/default/r", id: &fakeID{entry: 99}, message: retry}
	d.Attempt = 5
	letter := letterOf(again, d, "billing", "bad")
	assert.That(t, maps.Equal(letter.Properties, map[string]string{
		"p": "v", "REAL_TOPIC": "persistent://public/default/orders", "ORIGIN_MESSAGE_ID": "7:28:1", "RETRY_TOPIC": "persistent://public/default/r", "RECONSUMETIMES": "5",
		"DELAY_TIME": "60000", "UNIQ_KEY": "7:28:1", "DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "7:28:1", "DLQ_ORIGIN_QUEUE": "-1", "DLQ_ORIGIN_OFFSET": "-1",
		"DLQ_GROUP": "billing", "DLQ_ATTEMPTS": "5", "DLQ_REASON": "bad",
	}), "dead letter %v", letter.Properties)
	first := letterOf(from, d, "billing", "bad")
	assert.Equal(t, "partition of a message that was not retried", first.Properties["DLQ_ORIGIN_QUEUE"], "1")
	assert.That(t, letter.DeliverAt.IsZero(), "the dead letter has the delivery time %v", letter.DeliverAt)
	immediate := retryOf(again, d, "r", at, 0)
	assert.That(t, immediate.DeliverAt.IsZero() && immediate.Properties["__TIDEGATE_DELIVER_AT"] == "", "retry without a delay: %+v", immediate)
	bare := copyOf(&fakeMessage{topic: namespace + "orders", id: &fakeID{entry: 1}, message: &pulsar.ProducerMessage{}}, d)
	assert.That(t, len(bare.Properties) == 4, "copy of a message without properties: %v", bare.Properties)
}

// The dead letters of Apache's clients have an origin too, as far as their properties and the name of
// their topic tell it.
func TestForeignDeadLetters(t *testing.T) {
	const topic = namespace + "orders"
	for name, c := range map[string]struct {
		letters    string
		properties map[string]string
		want       tidegate.DeadLetter
		known      bool
	}{
		"of the Java client": {
			"dead", map[string]string{"REAL_TOPIC": topic, "REAL_SUBSCRIPTION": "shipping", "ORIGIN_MESSAGE_ID": "29:0:-1", "RECONSUMETIMES": "17"},
			tidegate.DeadLetter{Topic: "orders", MessageID: "29:0:-1", Queue: -1, Offset: -1, Group: "shipping", Attempts: 17}, true,
		},
		"of the Go client": {
			"orders-eu-billing-DLQ-partition-2", map[string]string{"REAL_TOPIC": topic + "-partition-3", "ORIGIN_MESSAGE_ID": "29:0:3", "RECONSUMETIMES": "17"},
			tidegate.DeadLetter{Topic: "orders", MessageID: "29:0:3", Queue: 3, Offset: -1, Group: "eu-billing", Attempts: 17}, true,
		},
		"after negative acknowledgements": {
			"billing-dlq", map[string]string{"REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": "29:0:0"},
			tidegate.DeadLetter{Topic: "orders", MessageID: "29:0:0", Queue: -1, Offset: -1, Group: "billing"}, true,
		},
		"of a message of this transport": {
			"orders-billing-DLQ", map[string]string{"REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": "29:0:0", "UNIQ_KEY": "0100", "RECONSUMETIMES": "3"},
			tidegate.DeadLetter{Topic: "orders", MessageID: "0100", Queue: -1, Offset: -1, Group: "billing", Attempts: 3}, true,
		},
		"of this transport": {
			"orders-billing-DLQ", map[string]string{"REAL_TOPIC": topic, "RECONSUMETIMES": "3", "DLQ_ORIGIN_TOPIC": "orders", "DLQ_GROUP": "billing", "DLQ_REASON": "bad"},
			tidegate.DeadLetter{Topic: "orders", Group: "billing", Reason: "bad"}, true,
		},
		"of another namespace": {"billing-dlq", map[string]string{"REAL_TOPIC": "persistent://public/other/orders"}, tidegate.DeadLetter{}, false},
		"without an origin":    {"billing-dlq", nil, tidegate.DeadLetter{}, false},
	} {
		from := &fakeMessage{topic: namespace + c.letters, id: &fakeID{entry: 28}, message: &pulsar.ProducerMessage{Properties: c.properties}, redelivered: 2}
		r := fromLetter("%DLQ%billing", "billing", namespace, from)
		got, known := r.DeadLetter()
		assert.That(t, got == c.want && known == c.known, "%s: %+v, %v; want %+v, %v", name, got, known, c.want, c.known)
		assert.Equal(t, name+": failed attempts of the dead letter", r.failed, 2)
	}
}

// The transport's own names are properties that messages to send must not have.
func TestOwnPropertiesAreRefused(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		for _, name := range []string{
			"UNIQ_KEY", "TAGS", "KEYS", "__BORNHOST", "RECONSUMETIMES", "REAL_TOPIC", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "__TIDEGATE_DELIVER_AT",
			"__TIDEGATE_X", "DELAY_TIME", "ORIGIN_MESSAGE_IDY_TIME", "REAL_SUBSCRIPTION", "DLQ_GROUP", "DLQ_REASON", "DLQ_ORIGIN_TOPIC",
		} {
			m := message("x")
			m.Properties = map[string]string{name: "v"}
			expected{class: tidegate.ClassPermanent, code: 40007}.check(t, name, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
		}
		for what, m := range map[string]struct {
			change func(*tidegate.Message)
			code   tidegate.Code
		}{
			"priority":     {func(m *tidegate.Message) { m.Priority = 3 }, 50100},
			"lite topic":   {func(m *tidegate.Message) { m.LiteTopic = "session" }, 50100},
			"dead letters": {func(m *tidegate.Message) { m.Topic = "%DLQ%billing" }, 40002},
			"no body":      {func(m *tidegate.Message) { m.Body = nil }, 41302},
			"no topic":     {func(m *tidegate.Message) { m.Topic = "" }, 40002},
		} {
			own := message("x")
			m.change(own)
			expected{class: tidegate.ClassPermanent, code: m.code}.check(t, what, c.Send(t.Context(), []*tidegate.Message{own})[0].Err)
		}
		wantBodies(t, s)
	})
}
