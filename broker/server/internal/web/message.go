package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Message is a message in a request over HTTP. A key that is missing or null has its zero value.
type Message struct {
	ID           string             `json:"id"`   // one is made if it is missing
	Body         []byte             `json:"body"` // base64
	BodyText     *string            `json:"body_text"`
	Tag          string             `json:"tag"`
	Keys         []string           `json:"keys"`
	Properties   map[string]string  `json:"properties"`
	MessageGroup string             `json:"message_group"`
	DeliverAt    *time.Time         `json:"deliver_at"`
	DeliverAfter *settings.Duration `json:"deliver_after"`
	TraceContext string             `json:"trace_context"`
	BornAt       *time.Time         `json:"born_at"`
	BornHost     string             `json:"born_host"`
}

// Message converts m for the engine, and rejects the faults that only HTTP can have; the engine
// checks the rest. The result has its ID in both cases.
func (m *Message) Message(topic string, now time.Time) (*tidegate.Message, error) {
	out := &tidegate.Message{
		ID: m.ID, Topic: topic, Tag: m.Tag, Keys: m.Keys, MessageGroup: m.MessageGroup,
		Properties: m.Properties, TraceContext: m.TraceContext, Body: m.Body,
	}
	if m.ID == "" {
		out.ID = tidegate.NewMessageID()
	}
	switch {
	case m.Body != nil && m.BodyText != nil:
		return out, refusal.New(tidegate.CodeBadRequest, "body", "body and body_text exclude each other; give base64 in body, or text in body_text")
	case len(m.ID) > refusal.MaxMessageID:
		return out, refusal.TooLong(protocol.CodeIllegalMessageID, "id", len(m.ID), refusal.MaxMessageID)
	case len(m.TraceContext) > refusal.MaxTraceContext:
		return out, refusal.TooLong(tidegate.CodeMessagePropertiesTooLarge, "trace_context", len(m.TraceContext), refusal.MaxTraceContext)
	case len(m.BornHost) > refusal.MaxBornHost:
		return out, refusal.TooLong(tidegate.CodeMessagePropertiesTooLarge, "born_host", len(m.BornHost), refusal.MaxBornHost)
	case m.DeliverAt != nil && m.DeliverAfter != nil:
		return out, refusal.New(tidegate.CodeIllegalDeliveryTime, "deliver_at", "deliver_at and deliver_after exclude each other; give one of them")
	case m.DeliverAfter != nil && *m.DeliverAfter < 0:
		return out, refusal.New(tidegate.CodeIllegalDeliveryTime, "deliver_after",
			fmt.Sprintf("deliver_after is %v; it must not be negative", time.Duration(*m.DeliverAfter)))
	case m.DeliverAt != nil && !refusal.Storable(*m.DeliverAt):
		return out, refusal.New(tidegate.CodeIllegalDeliveryTime, "deliver_at", outside("deliver_at", *m.DeliverAt))
	case m.BornAt != nil && !refusal.Storable(*m.BornAt):
		return out, refusal.New(tidegate.CodeBadRequest, "born_at", outside("born_at", *m.BornAt))
	}
	if m.BodyText != nil {
		out.Body = []byte(*m.BodyText)
	}
	if m.DeliverAt != nil {
		out.DeliverAt = *m.DeliverAt
	} else if m.DeliverAfter != nil {
		out.DeliverAt = now.Add(time.Duration(*m.DeliverAfter))
	}
	return out, nil
}

func outside(field string, t time.Time) string {
	return fmt.Sprintf("%s is %s; give a time between 1970 and %d", field, t.Format(time.RFC3339), refusal.LastYear)
}

// Incoming returns a message with the values that only its producer knows.
func (m *Message) Incoming(out *tidegate.Message, client, host string) serving.Incoming {
	in := serving.Incoming{Message: out, BornHost: m.BornHost, Client: client}
	if m.BornAt != nil {
		in.BornAt = *m.BornAt
	}
	if in.BornHost == "" && len(host) <= refusal.MaxBornHost {
		in.BornHost = host
	}
	return in
}

// MessageOfQuery returns the message of a URL whose request has the body: id, tag, key (several),
// message_group, deliver_at, deliver_after, trace_context, and property.NAME.
func MessageOfQuery(query map[string][]string) (m Message, err error) {
	one := map[string]*string{
		"id": &m.ID, "tag": &m.Tag, "message_group": &m.MessageGroup, "trace_context": &m.TraceContext,
	}
	for key, values := range query {
		last := values[len(values)-1]
		bad := func(format string, args ...any) error {
			return refusal.New(tidegate.CodeBadRequest, key, "the query parameter "+fmt.Sprintf("%.100q ", key)+fmt.Sprintf(format, args...))
		}
		name, property := strings.CutPrefix(key, "property.")
		switch {
		case key == "key":
			m.Keys = values
			continue
		case len(values) > 1:
			return m, bad("is given %d times; only key may be repeated", len(values))
		case property:
			if m.Properties == nil {
				m.Properties = map[string]string{}
			}
			m.Properties[name] = last
		case one[key] != nil:
			*one[key] = last
		case key == "deliver_at":
			at, err := time.Parse(time.RFC3339, last)
			if err != nil {
				return m, bad("is %.100q; give a time in the form of RFC 3339, such as 2026-01-31T15:04:05Z", last)
			}
			m.DeliverAt = &at
		case key == "deliver_after":
			d, err := time.ParseDuration(last)
			if err != nil {
				return m, bad("is %.100q; give a duration such as 1m30s", last)
			}
			m.DeliverAfter = new(settings.Duration(d))
		default:
			return m, bad("is unknown; the parameters are id, tag, key, message_group, deliver_at, deliver_after, trace_context and property.NAME")
		}
	}
	return m, nil
}
