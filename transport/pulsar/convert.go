package pulsar

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
)

// Properties of the messages. Messages to send must not have the names as properties:
// tidegate.ReservedProperty or ownProperty is true for them.
const (
	propertyID       = "UNIQ_KEY"
	propertyTag      = "TAGS"
	propertyKeys     = "KEYS" // separated by line breaks, which a key cannot contain
	propertyBornHost = "__BORNHOST"
	propertyTrace    = reserved + "TRACEPARENT"
	propertyDue      = reserved + "DELIVER_AT" // milliseconds since 1970

	// Those of retried messages in the TDMQ document.
	propertyReconsumed = "RECONSUMETIMES" // failed attempts before the copy
	propertyRealTopic  = "REAL_TOPIC"
	propertyOriginID   = "ORIGIN_MESSAGE_ID"
	propertyRetryTopic = "RETRY_TOPIC"

	// The others that Apache's clients write.
	propertyDelay    = "DELAY_TIME"              // of the retry, in milliseconds
	propertyIDY      = "ORIGIN_MESSAGE_IDY_TIME" // repeats ORIGIN_MESSAGE_ID
	propertyRealName = "REAL_SUBSCRIPTION"       // of the Java client only

	reserved = "__TIDEGATE_"
)

// ownProperty reports whether this transport or Apache's clients use the name.
func ownProperty(name string) bool {
	return strings.HasPrefix(name, reserved) || name == propertyDelay || name == propertyIDY || name == propertyRealName
}

// The properties of dead letters that tidegate.Message.DeadLetter reads.
const (
	deadLetterTopic     = "DLQ_ORIGIN_TOPIC"
	deadLetterMessageID = "DLQ_ORIGIN_MESSAGE_ID"
	deadLetterQueue     = "DLQ_ORIGIN_QUEUE"
	deadLetterOffset    = "DLQ_ORIGIN_OFFSET"
	deadLetterGroup     = "DLQ_GROUP"
	deadLetterAttempts  = "DLQ_ATTEMPTS"
	deadLetterReason    = "DLQ_REASON"
)

// toPulsar returns a message to send. The client may read it after the end of a call, so it shares
// nothing with m.
func toPulsar(m *tidegate.Message, host string, now time.Time) *pulsar.ProducerMessage {
	properties := make(map[string]string, len(m.Properties)+6)
	maps.Copy(properties, m.Properties)
	set := func(name, value string) {
		if value != "" {
			properties[name] = value
		}
	}
	set(propertyID, m.ID)
	set(propertyTag, m.Tag)
	set(propertyKeys, strings.Join(m.Keys, "\n"))
	set(propertyTrace, m.TraceContext)
	set(propertyBornHost, host)
	to := &pulsar.ProducerMessage{
		Payload: slices.Clone(m.Body), Key: m.MessageGroup, OrderingKey: m.MessageGroup, Properties: properties, EventTime: now,
	}
	due(to, m.DeliverAt)
	return to
}

// due sets the delivery time of a message; zero means none. The property repeats it for receivers,
// because a server may deliver a message earlier, see link.take.
func due(to *pulsar.ProducerMessage, at time.Time) {
	if !at.IsZero() {
		to.DeliverAt = at
		to.Properties[propertyDue] = strconv.FormatInt(at.UnixMilli(), 10)
	}
}

// A received is a message of Pulsar as one of tidegate. Its map is its own, and lacks the
// properties of retried messages, whose content the other fields have.
type received struct {
	tidegate.Message
	failed   int // attempts that the message records, in its own copies and in the server's count
	bornAt   time.Time
	bornHost string
	storedAt time.Time // zero if the server does not tell it
	queue    int       // the partition, -1 for none
	due      time.Time // zero for none
	topic    string    // full name of the topic of a message of a retry topic; empty for others
}

// fromPulsar returns the content of a message. One that another program sent may lack an ID; it
// then has the ID that Pulsar gave it, or the message of which it is a copy.
func fromPulsar(topic string, from pulsar.Message) received {
	r := received{
		Message: tidegate.Message{Topic: topic, Body: from.Payload(), MessageGroup: from.Key()},
		failed:  int(from.RedeliveryCount()), bornAt: from.EventTime(),
	}
	if key := from.OrderingKey(); key != "" {
		r.MessageGroup = key
	}
	if r.bornAt.IsZero() || r.bornAt.UnixMilli() == 0 {
		r.bornAt = from.PublishTime()
	}
	if at := from.BrokerPublishTime(); at != nil {
		r.storedAt = *at
	}
	_, r.queue = cutPartition(from.Topic())
	all := from.Properties()
	m := &r.Message
	for k, v := range all {
		switch k {
		case propertyID:
			m.ID = v
		case propertyTag:
			m.Tag = v
		case propertyKeys:
			m.Keys = strings.Split(v, "\n")
		case propertyTrace:
			m.TraceContext = v
		case propertyBornHost:
			r.bornHost = v
		case propertyDue:
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				r.due = time.UnixMilli(n)
			}
		case propertyReconsumed:
			n, _ := strconv.Atoi(v) // a foreign value counts as 0
			r.failed += max(n, 0)
		case propertyRealTopic:
			r.topic, _ = cutPartition(v) // Apache's Go client keeps the partition
		case propertyOriginID, propertyRetryTopic, propertyDelay, propertyIDY, propertyRealName:
		default:
			if m.Properties == nil {
				m.Properties = make(map[string]string, len(all))
			}
			m.Properties[k] = v
		}
	}
	if m.ID == "" && all[propertyRetryTopic]+all[propertyRealName] != "" {
		m.ID = all[propertyOriginID] // not of the Go client, which writes the same for all messages of a batch
	}
	if m.ID == "" {
		m.ID = originID(from)
	}
	return r
}

// fromLetter returns the content of a dead letter of a group. Apache's clients write the properties
// of retried messages only; the origin is that in own, the prefix of this namespace's topics.
func fromLetter(topic, group, own string, from pulsar.Message) received {
	r := fromPulsar(topic, from)
	all, times := from.Properties(), r.failed-int(from.RedeliveryCount())
	r.failed -= times // the attempts of the dead letter, not those before
	if r.storedAt.IsZero() {
		r.storedAt = from.PublishTime() // in the clock of the consumer that sent it here
	}
	origin, ok := strings.CutPrefix(r.topic, own)
	if !ok || r.Properties[deadLetterTopic] != "" {
		return r
	}
	letters, _ := cutPartition(from.Topic())
	of, named := strings.CutPrefix(letters, r.topic+"-")
	if of, ok = strings.CutSuffix(of, "-DLQ"); !named || !ok {
		of = group
	}
	_, queue := cutPartition(all[propertyRealTopic])
	if r.Properties == nil {
		r.Properties = map[string]string{}
	}
	maps.Copy(r.Properties, map[string]string{
		deadLetterTopic: origin, deadLetterMessageID: cmp.Or(all[propertyID], all[propertyOriginID], r.ID), deadLetterQueue: strconv.Itoa(queue),
		deadLetterOffset: "-1", deadLetterGroup: cmp.Or(all[propertyRealName], of), deadLetterAttempts: strconv.Itoa(times),
	})
	return r
}

// partition precedes the number of a partition in the name of its topic.
const partition = "-partition-"

// cutPartition returns the name of a topic without the number of a partition, and that number; -1
// if the name has none.
func cutPartition(name string) (topic string, n int) {
	if i := strings.LastIndex(name, partition); i >= 0 {
		if n, err := strconv.Atoi(name[i+len(partition):]); err == nil {
			return name[:i], n
		}
	}
	return name, -1
}

// originID returns the ID that Pulsar gave a message, in the form of its Java client: ledger, entry
// and partition, -1 for none, and for a message of an entry with several ones its number in it.
func originID(m pulsar.Message) string {
	id := m.ID()
	_, n := cutPartition(m.Topic())
	s := strconv.FormatInt(id.LedgerID(), 10) + ":" + strconv.FormatInt(id.EntryID(), 10) + ":" + strconv.Itoa(n)
	if id.BatchSize() > 1 {
		s += ":" + strconv.Itoa(int(id.BatchIdx()))
	}
	return s
}

// copyOf returns a copy of a message for another topic after a failed attempt, without the delivery
// time. It keeps the ID.
func copyOf(from pulsar.Message, d *tidegate.Delivery) *pulsar.ProducerMessage {
	to := &pulsar.ProducerMessage{
		Payload: from.Payload(), Key: from.Key(), OrderingKey: from.OrderingKey(), Properties: maps.Clone(from.Properties()), EventTime: from.EventTime(),
	}
	if to.Properties == nil {
		to.Properties = map[string]string{}
	}
	delete(to.Properties, propertyDue)
	to.Properties[propertyID], to.Properties[propertyReconsumed] = d.ID, strconv.Itoa(d.Attempt)
	if to.Properties[propertyRealTopic] == "" {
		to.Properties[propertyRealTopic], _ = cutPartition(from.Topic())
	}
	if to.Properties[propertyOriginID] == "" {
		to.Properties[propertyOriginID] = originID(from)
	}
	return to
}

// retryOf returns the message of the retry topic that follows a failed attempt after a delay.
func retryOf(from pulsar.Message, d *tidegate.Delivery, retryTopic string, now time.Time, delay time.Duration) *pulsar.ProducerMessage {
	to := copyOf(from, d)
	to.Properties[propertyRetryTopic] = retryTopic
	to.Properties[propertyDelay] = strconv.FormatInt(delay.Milliseconds(), 10)
	if delay > 0 {
		due(to, now.Add(delay))
	}
	return to
}

// letterOf returns the dead letter of a message.
func letterOf(from pulsar.Message, d *tidegate.Delivery, group, reason string) *pulsar.ProducerMessage {
	to := copyOf(from, d)
	_, queue := cutPartition(cmp.Or(from.Properties()[propertyRealTopic], from.Topic()))
	maps.Copy(to.Properties, map[string]string{
		deadLetterTopic: d.Topic, deadLetterMessageID: d.ID, deadLetterQueue: strconv.Itoa(queue), deadLetterOffset: "-1",
		deadLetterGroup: group, deadLetterAttempts: strconv.Itoa(d.Attempt), deadLetterReason: reason,
	})
	return to
}
