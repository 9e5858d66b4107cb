// Package convert translates between messages of tidegate and of AMQP as Apache ActiveMQ Artemis
// uses them. All functions are pure.
package convert

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
)

// Application properties of the messages, and annotations. Messages to send must not have the
// names as properties: tidegate.ReservedProperty is true for them, or they begin with Reserved.
const (
	propertyTags       = "TAGS" // the tag once more, for selectors
	propertyKeys       = "KEYS" // separated by line breaks, which a key cannot contain
	propertyBornHost   = "__BORNHOST"
	propertyTrace      = Reserved + "TRACEPARENT"
	propertyReconsumed = "RECONSUMETIMES" // failed attempts before the copy
	propertyDuplicate  = "_AMQ_DUPL_ID"   // Artemis: duplicate message detection

	annotationDelivery = "x-opt-delivery-time" // milliseconds since 1970
	annotationIngress  = "x-opt-ingress-time"  // as well; the address setting enable-ingress-timestamp
)

// Reserved begins the names of properties of this package. The names that Artemis gives a meaning
// begin with ReservedArtemis.
const (
	Reserved        = "__TIDEGATE_"
	ReservedArtemis = "_AMQ_"
)

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

// Extras are facts of a message to send that are not in the message.
type Extras struct {
	BornHost  string
	BornAt    time.Time
	Duplicate string    // the ID by which the server detects duplicates; empty: no detection
	Failed    int       // attempts before this copy of a message
	DeliverAt time.Time // replaces that of the message; zero: that of the message
}

// ToAMQP returns a durable AMQP message. It shares the bytes of the body.
func ToAMQP(m *tidegate.Message, x Extras) *amqp.Message {
	properties := make(map[string]any, len(m.Properties)+6)
	for k, v := range m.Properties {
		properties[k] = v
	}
	p := &amqp.MessageProperties{MessageID: m.ID, CreationTime: &x.BornAt}
	if m.Tag != "" {
		p.Subject, properties[propertyTags] = &m.Tag, m.Tag
	}
	if len(m.Keys) > 0 {
		properties[propertyKeys] = strings.Join(m.Keys, "\n")
	}
	if m.MessageGroup != "" {
		p.GroupID = &m.MessageGroup
	}
	if m.TraceContext != "" {
		properties[propertyTrace] = m.TraceContext
	}
	if x.BornHost != "" {
		properties[propertyBornHost] = x.BornHost
	}
	if x.Failed > 0 {
		properties[propertyReconsumed] = int32(min(x.Failed, 1<<30))
	}
	if x.Duplicate != "" {
		properties[propertyDuplicate] = x.Duplicate
	}
	to := &amqp.Message{
		Header:                &amqp.MessageHeader{Durable: true, Priority: 4},
		Properties:            p,
		ApplicationProperties: properties,
		Data:                  [][]byte{m.Body},
	}
	at := m.DeliverAt
	if !x.DeliverAt.IsZero() {
		at = x.DeliverAt
	}
	if !at.IsZero() {
		to.Annotations = amqp.Annotations{annotationDelivery: at.UnixMilli()}
	}
	return to
}

// A Received is an AMQP message as a message of tidegate. Its maps and bytes are its own.
type Received struct {
	Message  tidegate.Message
	Failed   int // attempts that the message records, in its own copies and in the server's count
	BornAt   time.Time
	BornHost string
	StoredAt time.Time // zero if the address has no ingress timestamps
}

// FromAMQP returns the content of an AMQP message. A message that another program sent may lack an
// ID; it then gets a new one.
func FromAMQP(topic string, from *amqp.Message) Received {
	r := Received{Message: tidegate.Message{Topic: topic, Body: body(from)}}
	m := &r.Message
	for k, v := range from.ApplicationProperties {
		switch k {
		case propertyTags:
			m.Tag = text(v)
		case propertyKeys:
			m.Keys = strings.Split(text(v), "\n")
		case propertyTrace:
			m.TraceContext = text(v)
		case propertyBornHost:
			r.BornHost = text(v)
		case propertyReconsumed:
			r.Failed, _ = strconv.Atoi(text(v)) // a foreign value counts as 0
		case propertyDuplicate:
		default:
			if m.Properties == nil {
				m.Properties = make(map[string]string, len(from.ApplicationProperties))
			}
			m.Properties[k] = text(v)
		}
	}
	if p := from.Properties; p != nil {
		if p.MessageID != nil {
			m.ID = text(p.MessageID)
		}
		if p.Subject != nil && m.Tag == "" {
			m.Tag = *p.Subject
		}
		if p.GroupID != nil {
			m.MessageGroup = *p.GroupID
		}
		if p.CreationTime != nil {
			r.BornAt = *p.CreationTime
		}
	}
	if m.ID == "" {
		m.ID = tidegate.NewMessageID()
	}
	if h := from.Header; h != nil {
		r.Failed += int(min(h.DeliveryCount, 1<<30))
	}
	if at, ok := from.Annotations[annotationIngress].(int64); ok {
		r.StoredAt = time.UnixMilli(at)
	}
	return r
}

// DeadLetter returns the message of a dead letter: m with the properties of its origin.
func DeadLetter(m *tidegate.Message, group string, attempts int, reason string) *tidegate.Message {
	letter := m.Clone()
	if letter.Properties == nil {
		letter.Properties = map[string]string{}
	}
	maps.Copy(letter.Properties, map[string]string{
		deadLetterTopic: m.Topic, deadLetterMessageID: m.ID, deadLetterQueue: "-1", deadLetterOffset: "-1",
		deadLetterGroup: group, deadLetterAttempts: strconv.Itoa(attempts), deadLetterReason: reason,
	})
	letter.DeliverAt = time.Time{}
	return letter
}

func body(from *amqp.Message) []byte {
	if from.Value != nil { // of a JMS TextMessage
		if b, ok := from.Value.([]byte); ok {
			return append([]byte{}, b...)
		}
		return []byte(text(from.Value))
	}
	if len(from.Data) == 1 {
		return from.Data[0]
	}
	var all []byte
	for _, d := range from.Data {
		all = append(all, d...)
	}
	return all
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}
