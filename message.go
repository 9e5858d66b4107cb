package tidegate

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate/internal/protocol"
)

// A Message is one message as a producer sends it.
//
// A send does not change the Message. Do not change it before the send has returned. Several
// goroutines may send the same Message at the same time. If ID is empty, each send creates a
// separate message; otherwise all of them send the same message.
//
// [Message.Validate] checks the limits of the fields, except those that depend on the server.
type Message struct {
	// ID identifies the message across attempts, failover and dead letters. It is valid UTF-8 of at
	// most 255 bytes and not blank. Empty means that the producer creates one, as [NewMessageID]
	// does.
	ID string

	// Topic is the destination: 1 to 127 characters of [%|a-zA-Z0-9_-]. The tidegate broker also
	// accepts several such words joined by '.'.
	Topic string

	// Tag is a word by which subscriptions can filter messages. It has no '|' and no control
	// characters. Empty means no tag.
	Tag string

	// Keys are words for looking up the message. A key is not blank and has no control character.
	// Nil means none.
	Keys []string

	// MessageGroup orders messages: the broker delivers the messages of one group in the order in
	// which it stored them. At most 63 bytes. Only topics of type FIFO accept it. Empty means no
	// order.
	MessageGroup string

	// DeliverAt is the earliest time of delivery, at most 24 h ahead. A time in the past means now.
	// Only topics of type DELAY accept it, and only without a message group. Zero means immediate
	// delivery.
	DeliverAt time.Time

	// Priority is the rank of the message, from 0, the lowest, to 2^31-1. Consumers receive messages
	// with a higher one first. Only topics of type PRIORITY accept one above 0, and only without a
	// message group and a delivery time. A server distinguishes as many priorities as the topic has
	// queues, and treats higher ones as the highest (RocketMQ 5.4.0: on each broker).
	Priority int

	// LiteTopic is the name of a lite topic below Topic, 1 to 64 characters of [a-zA-Z0-9_-]: a
	// short-lived topic, for example of one session, which its first message creates. Consumers
	// receive the messages of the lite topics to which they subscribe, those of one lite topic in the
	// order in which the server stored them. Only topics of type LITE accept it, and only without a
	// message group, a delivery time and a priority. Empty means none.
	LiteTopic string

	// Properties are pairs of UTF-8 strings for the application: at most 128, and at most 16 KiB
	// together with tag and keys. Values must not be empty, and [ReservedProperty] must be false
	// for each name. Nil means none.
	Properties map[string]string

	// TraceContext is the W3C trace context of the sender, at most 4 KiB. Empty means none.
	TraceContext string

	// Body is the payload, from 1 byte to the server's maximum, by default 4 MiB.
	Body []byte
}

// Clone returns a copy of m that shares only the bytes of Body.
func (m *Message) Clone() *Message {
	c := *m
	c.Keys = slices.Clone(m.Keys)
	c.Properties = maps.Clone(m.Properties)
	return &c
}

// A Receipt describes an accepted message: its ID, its position and the server that has it.
type Receipt struct {
	MessageID string
	Topic     string
	// Queue is the number of the queue. It is -1 before the delivery time of a delayed message and
	// on servers that do not report it: RocketMQ's protocol has no field for it.
	Queue int
	// Offset is the position in the queue. It is -1 before the delivery time of a delayed message,
	// and if it is not known.
	Offset int64

	// Endpoint is the server that accepted the message.
	Endpoint string

	// RecallHandle identifies a delayed message for Recall. It is empty for other messages, and if
	// the server cannot recall messages.
	RecallHandle string

	// TransactionID identifies the transaction of a half message. It is empty for other messages.
	TransactionID string

	// Spooled is true if no server has the message yet: the producer's spool has stored it on the
	// local disk and sends it later, with the same ID. Queue and Offset are -1 then, and Endpoint
	// is empty.
	Spooled bool

	// Attempts is the number of attempts that the send took, including the first. The producer sets
	// it; a transport makes one attempt and leaves it 0.
	Attempts int
}

// The limits of RocketMQ 5's proxy. The tidegate broker has the same.
const (
	MaxBodySize           = 4 << 20 // bytes; a server may set another
	maxMessageGroupLength = 63      // bytes
	maxLiteTopicLength    = 64      // bytes
)

// maxDelay bounds the time from now to a delivery time, on the tidegate broker and on RocketMQ.
const maxDelay = 24 * time.Hour

// Reserved property names are those that RocketMQ gives a meaning of its own.
var reservedProperties = func() map[string]bool {
	m := map[string]bool{}
	for k := range strings.FieldsSeq(`TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
		MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY
		MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO
		EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
		INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
		TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
		DLQ_ORIGIN_MESSAGE_ID __CRC32#`) {
		m[k] = true
	}
	for _, k := range []string{
		protocol.PropertyMessageGroup, protocol.PropertyTransactionID, protocol.PropertyReconsumeTimes,
		protocol.PropertyDeadLetterQueue, protocol.PropertyDeadLetterOffset, protocol.PropertyDeadLetterGroup,
		protocol.PropertyDeadLetterAttempts, protocol.PropertyDeadLetterReason, protocol.PropertyOriginalAddress,
		protocol.PropertyOriginalQueue, protocol.PropertyOriginalMessageID, protocol.PropertyExpired,
	} {
		m[k] = true
	}
	return m
}()

// ReservedProperty reports whether RocketMQ or tidegate uses the property name. A message to send
// must not have such a property.
func ReservedProperty(name string) bool { return reservedProperties[name] }

func invalid(code Code, field, format string, args ...any) *Error {
	return &Error{Subject: field, Code: code, Message: fmt.Sprintf(format, args...)}
}

// ValidateTopic returns an [Error] with code 40002 if no server can have a topic of that
// name, and nil otherwise. It rejects the names of RocketMQ's system topics. It accepts words
// joined by '.', the addresses of "Artemis: undelivered messages": a tidegate broker accepts such a
// topic, a RocketMQ broker rejects it.
func ValidateTopic(name string) error {
	if err := validateName("topic", name, ".", protocol.MaxTopicLength, protocol.CodeIllegalTopic); err != nil {
		return err
	}
	if name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, "..") {
		return invalid(protocol.CodeIllegalTopic, "topic", "%q has a '.' at an end, or two in a row; give '.' only between two words", name)
	}
	switch name {
	case "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",
		"OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC":
		return invalid(protocol.CodeIllegalTopic, "topic", "%q is a system topic of RocketMQ; give another name", name)
	}
	if strings.HasPrefix(name, "rmq_sys_") || strings.HasPrefix(name, "RMQ_SYS_") {
		return invalid(protocol.CodeIllegalTopic, "topic", "%q begins like the system topics of RocketMQ; give another name", name)
	}
	return nil
}

// ValidateGroup returns an [Error] with code 40003 if no server can have a consumer
// group of that name, and nil otherwise.
func ValidateGroup(name string) error {
	if err := validateName("consumer group", name, "", protocol.MaxGroupLength, protocol.CodeIllegalConsumerGroup); err != nil {
		return err
	}
	if strings.HasPrefix(name, "CID_RMQ_SYS_") {
		return invalid(protocol.CodeIllegalConsumerGroup, "consumer group", "%q begins like the system groups of RocketMQ; give another name", name)
	}
	return nil
}

// validateName also takes the characters more.
func validateName(field, name, more string, limit int, code Code) error {
	if name == "" {
		return invalid(code, field, "the name is empty; give 1 to %d characters", limit)
	}
	if len(name) > limit {
		return invalid(code, field, "the name has %d characters; the limit is %d", len(name), limit)
	}
	for i := range len(name) {
		if c := name[i]; !nameBytes[c] && strings.IndexByte(more, c) < 0 {
			if strings.TrimSpace(name) == "" {
				return invalid(code, field, "the name is empty; give 1 to %d characters", limit)
			}
			r, _ := utf8.DecodeRuneInString(name[i:])
			return invalid(code, field, "%q has %q at byte %d; allowed are letters, digits and %%|_-%s", name, r, i, more)
		}
	}
	return nil
}

// nameBytes has the characters of names. A table, because every message of a send passes it.
var nameBytes = func() (allowed [256]bool) {
	for _, c := range []byte("%|_-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") {
		allowed[c] = true
	}
	return allowed
}()

// Validate returns an [Error] that describes the first field of m that every server rejects, with
// the value and the limit. It returns nil if there is none. A maxBody of 0 or less means
// [MaxBodySize].
//
// An empty ID is valid, because the producer creates one. Validate does not know the topic: only
// the server checks that the message fits the topic's type.
func (m *Message) Validate(maxBody int) error {
	if maxBody <= 0 {
		maxBody = MaxBodySize
	}
	if err := ValidateTopic(m.Topic); err != nil {
		return err
	}
	switch {
	case len(m.Body) == 0:
		return invalid(protocol.CodeMessageBodyEmpty, "body", "the body is empty; give at least one byte")
	case len(m.Body) > maxBody:
		return invalid(CodeMessageBodyTooLarge, "body", "the body has %d bytes; the limit is %d", len(m.Body), maxBody)
	case m.ID != "" && (strings.TrimSpace(m.ID) == "" || !plain(m.ID)):
		return invalid(protocol.CodeIllegalMessageID, "message ID", "%q is blank, not UTF-8, or has a control character", m.ID)
	case len(m.ID) > protocol.MaxMessageIDLength:
		return invalid(protocol.CodeIllegalMessageID, "message ID", "the ID %.20q… has %d bytes; the limit is %d", m.ID, len(m.ID), protocol.MaxMessageIDLength)
	case m.Tag != "" && (strings.TrimSpace(m.Tag) == "" || strings.Contains(m.Tag, "|") || !plain(m.Tag)):
		return invalid(protocol.CodeIllegalMessageTag, "tag", "%q is blank, not UTF-8, or has '|' or a control character", m.Tag)
	case len(m.MessageGroup) > maxMessageGroupLength:
		return invalid(protocol.CodeIllegalMessageGroup, "message group", "the message group has %d bytes; the limit is %d",
			len(m.MessageGroup), maxMessageGroupLength)
	case m.MessageGroup != "" && (strings.TrimSpace(m.MessageGroup) == "" || !plain(m.MessageGroup)):
		return invalid(protocol.CodeIllegalMessageGroup, "message group", "%q is blank, not UTF-8, or has a control character", m.MessageGroup)
	case m.MessageGroup != "" && !m.DeliverAt.IsZero():
		return invalid(protocol.CodeMessagePropertyConflict, "message", "a message group (%q) and a delivery time exclude each other; set one of them",
			m.MessageGroup)
	case !m.DeliverAt.IsZero() && time.Until(m.DeliverAt) > maxDelay:
		return invalid(protocol.CodeIllegalDeliveryTime, "delivery time", "%s is %v ahead; the limit is %v",
			m.DeliverAt.Format(time.RFC3339), time.Until(m.DeliverAt).Round(time.Second), maxDelay)
	case m.Priority < 0 || m.Priority > math.MaxInt32:
		return invalid(CodeBadRequest, "priority", "it is %d; give 0 to %d", m.Priority, math.MaxInt32)
	case m.Priority > 0 && m.MessageGroup != "":
		return invalid(protocol.CodeMessagePropertyConflict, "message", "a priority (%d) and a message group (%q) exclude each other; set one of them",
			m.Priority, m.MessageGroup)
	case m.Priority > 0 && !m.DeliverAt.IsZero():
		return invalid(protocol.CodeMessagePropertyConflict, "message", "a priority (%d) and a delivery time exclude each other; set one of them", m.Priority)
	case m.LiteTopic != "":
		if err := ValidateLiteTopic(m.LiteTopic); err != nil {
			return err
		}
		if other := m.besideLite(); other != "" {
			return invalid(protocol.CodeMessagePropertyConflict, "message", "a lite topic (%q) and %s exclude each other; set one of them", m.LiteTopic, other)
		}
	}
	switch {
	case len(m.TraceContext) > protocol.MaxTraceContextLength:
		return invalid(protocol.CodeMessagePropertiesTooLarge, "trace context", "it has %d bytes; the limit is %d", len(m.TraceContext), protocol.MaxTraceContextLength)
	case !utf8.ValidString(m.TraceContext):
		return invalid(CodeBadRequest, "trace context", "%q is not UTF-8", m.TraceContext)
	}
	return m.validateProperties()
}

// besideLite names a field that a message of a lite topic must not have; empty means none.
func (m *Message) besideLite() string {
	switch {
	case m.MessageGroup != "":
		return fmt.Sprintf("a message group (%q)", m.MessageGroup)
	case !m.DeliverAt.IsZero():
		return "a delivery time"
	case m.Priority != 0:
		return fmt.Sprintf("a priority (%d)", m.Priority)
	}
	return ""
}

// ValidateLiteTopic returns an [Error] with code 40020 if no server can have a lite topic of that
// name, and nil otherwise.
func ValidateLiteTopic(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return invalid(protocol.CodeIllegalLiteTopic, "lite topic", "the name %q is blank; give 1 to %d bytes", name, maxLiteTopicLength)
	case len(name) > maxLiteTopicLength:
		return invalid(protocol.CodeIllegalLiteTopic, "lite topic", "the name has %d bytes; the limit is %d", len(name), maxLiteTopicLength)
	}
	for i := range len(name) {
		if c := name[i]; !nameBytes[c] || c == '%' || c == '|' {
			r, _ := utf8.DecodeRuneInString(name[i:])
			return invalid(protocol.CodeIllegalLiteTopic, "lite topic", "%q has %q at byte %d; allowed are letters, digits, '-' and '_'", name, r, i)
		}
	}
	return nil
}

// OrderKey returns what orders m among the messages of its topic: its message group, or its lite
// topic. Producers and servers keep the order of the messages of a topic that have the same key.
// Empty means that m is ordered with no other message.
func (m *Message) OrderKey() string { return cmp.Or(m.MessageGroup, m.LiteTopic) }

func (m *Message) validateProperties() error {
	size := len(m.Tag)
	for _, k := range m.Keys {
		if strings.TrimSpace(k) == "" || !plain(k) {
			return invalid(protocol.CodeIllegalMessageKey, "key", "%q is blank, not UTF-8, or has a control character", k)
		}
		size += len(k)
	}
	if len(m.Properties) > protocol.MaxProperties {
		return invalid(protocol.CodeMessagePropertiesTooLarge, "properties", "the message has %d properties; the limit is %d",
			len(m.Properties), protocol.MaxProperties)
	}
	for k, v := range m.Properties {
		if k == "" || ReservedProperty(k) || !plain(k) {
			return invalid(protocol.CodeIllegalMessagePropertyKey, "property", "%q is empty, reserved, not UTF-8, or has a control character", k)
		}
		if v == "" {
			return invalid(protocol.CodeIllegalMessagePropertyKey, "property", "the value of %q is empty, and RocketMQ drops such properties; leave it out", k)
		}
		if !utf8.ValidString(v) {
			return invalid(CodeBadRequest, "property", "the value of %q, %q, is not UTF-8; put binary data into the body", k, v)
		}
		size += len(k) + len(v)
	}
	if size > protocol.MaxPropertiesSize {
		return invalid(protocol.CodeMessagePropertiesTooLarge, "properties", "properties, tag and keys have %d bytes; the limit is %d",
			size, protocol.MaxPropertiesSize)
	}
	return nil
}

// plain reports whether s can travel (Protocol Buffers take no string but
// UTF-8) and has no control character.
func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }
