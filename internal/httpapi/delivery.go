package httpapi

import (
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
)

// A Delivery is a delivered message as JSON, the schema Delivery of the broker's openapi.yaml. The
// broker writes it, transport/rest reads it, and the command line prints it.
type Delivery struct {
	ID           string            `json:"id"`
	Topic        string            `json:"topic"`
	Body         []byte            `json:"body,omitempty"`
	BodyText     string            `json:"body_text,omitempty"` // instead of Body
	Tag          string            `json:"tag,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	MessageGroup string            `json:"message_group,omitempty"`
	LiteTopic    string            `json:"lite_topic,omitempty"`
	Priority     int               `json:"priority,omitempty"`
	DeliverAt    time.Time         `json:"deliver_at,omitzero"`
	TraceContext string            `json:"trace_context,omitempty"`

	Handle  string `json:"handle"`
	Group   string `json:"group"`
	Attempt int    `json:"attempt"`
	Queue   int    `json:"queue"`
	Offset  int64  `json:"offset"`

	BornAt    time.Time `json:"born_at,omitzero"`
	BornHost  string    `json:"born_host,omitempty"`
	StoredAt  time.Time `json:"stored_at,omitzero"`
	StoreHost string    `json:"store_host,omitempty"`

	// InvisibleUntil is a time of the writer's clock. InvisibleFor is the remaining duration, for
	// readers with another clock.
	InvisibleUntil time.Time `json:"invisible_until,omitzero"`
	InvisibleFor   Duration  `json:"invisible_for"`
}

// DeliveryOf returns the JSON form of d. If text is requested, a body in UTF-8 becomes text.
func DeliveryOf(d *tidegate.Delivery, text bool, now time.Time) Delivery {
	out := Delivery{
		ID: d.ID, Topic: d.Topic, Tag: d.Tag, Keys: d.Keys, Properties: d.Properties, MessageGroup: d.MessageGroup, LiteTopic: d.LiteTopic, Priority: d.Priority,
		DeliverAt: d.DeliverAt, TraceContext: d.TraceContext, Handle: d.Handle, Group: d.ConsumerGroup, Attempt: d.Attempt,
		Queue: d.Queue, Offset: d.Offset, BornAt: d.BornAt, BornHost: d.BornHost, StoredAt: d.StoredAt, StoreHost: d.StoreHost,
		InvisibleUntil: d.InvisibleUntil,
	}
	if !d.InvisibleUntil.IsZero() {
		out.InvisibleFor = Duration(max(d.InvisibleUntil.Sub(now), 0))
	}
	if text {
		out.Body, out.BodyText = Text(d.Body)
	} else {
		out.Body = d.Body
	}
	return out
}

// Text returns a body as text if it is UTF-8, and otherwise as it is.
func Text(body []byte) (rest []byte, text string) {
	if utf8.Valid(body) {
		return nil, string(body)
	}
	return body, ""
}

// Delivery returns the delivery of a server at an endpoint, with the times of a lease in the clock
// of now.
func (d *Delivery) Delivery(endpoint string, now time.Time) *tidegate.Delivery {
	out := &tidegate.Delivery{
		Message: tidegate.Message{
			ID: d.ID, Topic: d.Topic, Tag: d.Tag, Keys: d.Keys, MessageGroup: d.MessageGroup, LiteTopic: d.LiteTopic, Priority: d.Priority, DeliverAt: d.DeliverAt,
			Properties: d.Properties, TraceContext: d.TraceContext, Body: d.Body,
		},
		ConsumerGroup: d.Group, Attempt: d.Attempt, Handle: d.Handle, Endpoint: endpoint, Queue: d.Queue, Offset: d.Offset,
		BornAt: d.BornAt, BornHost: d.BornHost, StoredAt: d.StoredAt, StoreHost: d.StoreHost,
	}
	if d.BodyText != "" {
		out.Body = []byte(d.BodyText)
	}
	if d.InvisibleFor > 0 || !d.InvisibleUntil.IsZero() {
		out.InvisibleUntil = now.Add(time.Duration(d.InvisibleFor))
	}
	return out
}
