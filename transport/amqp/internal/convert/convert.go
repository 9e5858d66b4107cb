// Package convert translates between messages and errors of tidegate and of AMQP as Apache ActiveMQ
// Artemis uses them. All functions are pure.
package convert

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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

	annotationDelivery = "x-opt-delivery-time"  // milliseconds since 1970
	annotationDelay    = "x-opt-delivery-delay" // milliseconds from now
	annotationIngress  = "x-opt-ingress-time"   // as well; the address setting enable-ingress-timestamp
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
	deadLetterRedrives  = "DLQ_REDRIVES"
)

// Extras are facts of a message to send that are not in the message.
type Extras struct {
	BornHost  string
	BornAt    time.Time
	Duplicate string // the ID by which the server detects duplicates; empty: no detection
}

// ToAMQP returns a durable AMQP message. It shares the bytes of the body.
func ToAMQP(m *tidegate.Message, x Extras) *amqp.Message {
	properties := make(map[string]any, len(m.Properties)+6)
	for k, v := range m.Properties {
		properties[k] = v
	}
	var id any = m.ID
	all := &struct { // one allocation
		amqp.Message
		header     amqp.MessageHeader
		properties amqp.MessageProperties
		data       [1][]byte
		bornAt     time.Time
	}{
		header: amqp.MessageHeader{Durable: true, Priority: 4}, data: [1][]byte{m.Body}, bornAt: x.BornAt,
	}
	p := &all.properties
	p.MessageID, p.CreationTime = id, &all.bornAt
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
	switch x.Duplicate {
	case "":
	case m.ID:
		properties[propertyDuplicate] = id
	default:
		properties[propertyDuplicate] = x.Duplicate
	}
	to := &all.Message
	to.Header, to.Properties, to.ApplicationProperties, to.Data = &all.header, p, properties, all.data[:]
	if !m.DeliverAt.IsZero() {
		to.Annotations = amqp.Annotations{annotationDelivery: m.DeliverAt.UnixMilli()}
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

// Retry returns the copy of a message that the group gets after a delay. The copy records the
// failed attempt of d. Its duplicate ID is the same for each copy of one attempt.
func Retry(from *amqp.Message, d *tidegate.Delivery, group string, delay time.Duration) *amqp.Message {
	to := clone(from, duplicate(from, d, group, strconv.Itoa(d.Attempt)))
	to.Properties.MessageID = d.ID
	to.ApplicationProperties[propertyReconsumed] = int32(min(d.Attempt, 1<<30))
	if delay > 0 {
		to.Annotations[annotationDelay] = (delay + time.Millisecond - 1).Milliseconds()
	}
	return to
}

// DeadLetter returns the copy of a message that becomes a dead letter of the group.
func DeadLetter(from *amqp.Message, d *tidegate.Delivery, group, reason string) *amqp.Message {
	to := clone(from, duplicate(from, d, group, "dlq"))
	to.Properties.MessageID = d.ID
	delete(to.ApplicationProperties, propertyReconsumed)
	maps.Copy(to.ApplicationProperties, map[string]any{
		deadLetterTopic: d.Topic, deadLetterMessageID: d.ID, deadLetterQueue: "-1", deadLetterOffset: "-1",
		deadLetterGroup: group, deadLetterAttempts: strconv.Itoa(d.Attempt), deadLetterReason: reason,
	})
	return to
}

// clone returns a durable copy that shares the bytes of the body. It has no delivery time and no
// delivery count.
func clone(from *amqp.Message, duplicate string) *amqp.Message {
	to := &amqp.Message{
		Format: from.Format, Header: &amqp.MessageHeader{Durable: true, Priority: 4}, Properties: &amqp.MessageProperties{},
		Annotations: maps.Clone(from.Annotations), ApplicationProperties: maps.Clone(from.ApplicationProperties),
		Data: from.Data, Value: from.Value, Sequence: from.Sequence, Footer: from.Footer,
	}
	if from.Header != nil {
		to.Header.Priority, to.Header.TTL = from.Header.Priority, from.Header.TTL
	}
	if from.Properties != nil {
		*to.Properties = *from.Properties
	}
	if to.Annotations == nil {
		to.Annotations = amqp.Annotations{}
	}
	if to.ApplicationProperties == nil {
		to.ApplicationProperties = map[string]any{}
	}
	for _, k := range []string{annotationDelivery, annotationDelay, annotationIngress} {
		delete(to.Annotations, k)
	}
	delete(to.ApplicationProperties, propertyDuplicate)
	if duplicate != "" {
		to.ApplicationProperties[propertyDuplicate] = duplicate
	}
	return to
}

// duplicate returns the ID by which the server detects the repetition of a copy. It has the time of
// the send, because a redriven message can have the ID of an earlier one, and the server discards a
// duplicate. Without that time, of other programs, there is no detection.
func duplicate(from *amqp.Message, d *tidegate.Delivery, group, copied string) string {
	if from.Properties == nil || from.Properties.MessageID == nil || from.Properties.CreationTime == nil {
		return ""
	}
	return strings.Join([]string{d.ID, group, strconv.FormatInt(from.Properties.CreationTime.UnixMilli(), 10), copied}, "/")
}

// Duplicate returns the ID by which the server detects the repetition of a send: the message ID,
// and for a redriven dead letter also the number of its redrives.
func Duplicate(m *tidegate.Message) string {
	if n := m.Properties[deadLetterRedrives]; n != "" {
		return m.ID + "/redrive/" + n
	}
	return m.ID
}

// body returns the bytes of a body: the data, or the text of a value as that of a JMS TextMessage.
// Sequences, maps and lists are JSON, for example those of a JMS StreamMessage and MapMessage.
func body(from *amqp.Message) []byte {
	switch {
	case from.Sequence != nil:
		return appendJSON(nil, reflect.ValueOf(slices.Concat([]any{}, slices.Concat(from.Sequence...))))
	case from.Value != nil:
		if b, ok := from.Value.([]byte); ok {
			return append([]byte{}, b...)
		}
		if s, ok := from.Value.(string); ok {
			return []byte(s)
		}
		return []byte(text(from.Value))
	case len(from.Data) == 1:
		return from.Data[0]
	}
	var all []byte
	for _, d := range from.Data {
		all = append(all, d...)
	}
	return all
}

// text returns a value of AMQP as a text of UTF-8. A value of structure is JSON.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
	case nil:
		return ""
	}
	b := appendJSON(nil, reflect.ValueOf(v))
	if b[0] == '"' {
		var s string
		if json.Unmarshal(b, &s) == nil {
			return s
		}
	}
	return string(b)
}

// appendJSON appends a value of AMQP as JSON. Integers keep all their digits. A time is RFC 3339.
// Binary data, and text that is not UTF-8, is base64. A map of which two keys have the same text is
// an array of its entries.
func appendJSON(to []byte, v reflect.Value) []byte {
	for v.IsValid() && (v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer) {
		v = v.Elem()
	}
	if !v.IsValid() {
		return append(to, "null"...)
	}
	switch x := v.Interface().(type) {
	case time.Time:
		return appendString(to, x.UTC().Format(time.RFC3339Nano))
	case amqp.UUID:
		return appendString(to, x.String())
	case []byte:
		return appendString(to, base64.StdEncoding.EncodeToString(x))
	}
	switch v.Kind() {
	case reflect.Bool:
		return strconv.AppendBool(to, v.Bool())
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		return strconv.AppendInt(to, v.Int(), 10)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		return strconv.AppendUint(to, v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		if b, err := json.Marshal(v.Interface()); err == nil {
			return append(to, b...)
		}
		return appendString(to, fmt.Sprint(v.Float())) // NaN, +Inf and -Inf
	case reflect.String:
		return appendString(to, v.String())
	case reflect.Slice, reflect.Array:
		to = append(to, '[')
		for i := range v.Len() {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendJSON(to, v.Index(i))
		}
		return append(to, ']')
	case reflect.Map:
		return appendMap(to, v)
	}
	return appendString(to, fmt.Sprint(v.Interface())) // a described type, which no JMS message has
}

// appendMap appends a map as an object in the order of its keys.
func appendMap(to []byte, v reflect.Value) []byte {
	type entry struct {
		key   string
		value reflect.Value
		exact []byte // the key as JSON
	}
	entries := make([]entry, 0, v.Len())
	for k, value := range v.Seq2() {
		entries = append(entries, entry{text(k.Interface()), value, appendJSON(nil, k)})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Or(strings.Compare(a.key, b.key), -bytes.Compare(a.exact, b.exact)) })
	twice := false
	for i := range entries {
		twice = twice || i > 0 && entries[i].key == entries[i-1].key
	}
	open, end := byte('{'), byte('}')
	if twice {
		open, end = '[', ']'
	}
	to = append(to, open)
	for i, e := range entries {
		if i > 0 {
			to = append(to, ',')
		}
		if twice {
			to = append(append(append(to, '['), e.exact...), ',')
			to = append(appendJSON(to, e.value), ']')
		} else {
			to = appendJSON(append(appendString(to, e.key), ':'), e.value)
		}
	}
	return append(to, end)
}

// appendString appends a JSON string.
func appendString(to []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = base64.StdEncoding.EncodeToString([]byte(s))
	}
	b := bytes.NewBuffer(to)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string has no fault, and a buffer fails never
	return b.Bytes()[:b.Len()-1]
}
