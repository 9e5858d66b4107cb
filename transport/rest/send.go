package rest

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxMessages and maxBytes bound one request with several messages. The broker accepts at least
	// 1000 messages and 16 MiB. maxBytes counts bodies; base64 makes them a third larger.
	maxMessages = 256
	maxBytes    = 4 << 20
)

// A jsonMessage is the JSON form of a message in a send.
type jsonMessage struct {
	ID           string            `json:"id"`
	Body         []byte            `json:"body,omitempty"`
	Tag          string            `json:"tag,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	MessageGroup string            `json:"message_group,omitempty"`
	LiteTopic    string            `json:"lite_topic,omitempty"`
	Priority     int               `json:"priority,omitempty"`
	DeliverAt    time.Time         `json:"deliver_at,omitzero"`
	TraceContext string            `json:"trace_context,omitempty"`
	BornAt       time.Time         `json:"born_at"`
}

// A sendResult is the result of one message.
type sendResult struct {
	ID           string           `json:"id"`
	Topic        string           `json:"topic"`
	Queue        *int             `json:"queue"` // nil for a delayed message
	Offset       *int64           `json:"offset"`
	RecallHandle string           `json:"recall_handle"`
	Error        *httpapi.Problem `json:"error"`
}

// Send makes one attempt to send messages of one topic, in requests of at most 256 messages and 4
// MiB of bodies, one after the other. JSON cannot carry texts that are not UTF-8, so Send rejects a
// message with such a text before the request.
func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	failed := map[string]error{} // transient failures by message group
	for from := 0; from < len(msgs); {
		to := chunk(msgs, from)
		var list []*tidegate.Message
		var at []int
		for i := from; i < to; i++ {
			if err := failed[msgs[i].MessageGroup]; err != nil && msgs[i].MessageGroup != "" {
				earlier, _ := errors.AsType[*tidegate.Error](err)
				results[i].Err = &tidegate.Error{
					Op: opSend, Subject: msgs[i].Topic, Endpoint: c.api.Endpoint(), Code: protocol.CodeInternalError,
					Message: "not sent, because an earlier message of its message group failed", Err: err,
					NotConnected: earlier != nil && earlier.NotConnected,
				}
				continue
			}
			list, at = append(list, msgs[i]), append(at, i)
		}
		for n, r := range c.send(ctx, list) {
			results[at[n]] = r
			if g := list[n].MessageGroup; r.Err != nil && tidegate.Classify(r.Err) != tidegate.ClassPermanent && failed[g] == nil {
				failed[g] = r.Err
			}
		}
		from = to
	}
	return results
}

// chunk returns the end of the request that begins with message from.
func chunk(msgs []*tidegate.Message, from int) int {
	bytes, to := 0, from
	for to < len(msgs) && to-from < maxMessages {
		if bytes += len(msgs[to].Body); to > from && bytes > maxBytes {
			break
		}
		to++
	}
	return to
}

const opSend = "SendMessage"

// send sends messages of one topic in one request.
func (c *Client) send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	topic := msgs[0].Topic
	if err := tidegate.ValidateTopic(topic); err != nil { // the topic is a part of the path
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	var body struct {
		Messages []jsonMessage `json:"messages"`
	}
	at := make([]int, 0, len(msgs))
	for i, m := range msgs {
		if results[i].Err = texts(m); results[i].Err == nil {
			body.Messages, at = append(body.Messages, jsonOf(m)), append(at, i)
		}
	}
	if len(at) == 0 {
		return results
	}
	var out struct {
		Results []sendResult `json:"results"`
	}
	_, bounded := ctx.Deadline()
	f := c.do(ctx, call{op: opSend, subject: topic, method: "POST", path: []string{"topics", topic, "messages"}, body: body, out: &out, unbounded: bounded})
	sent := out.Results
	if f != nil && f.Results != nil { // all messages failed with the same code, each with its own text
		if json.Unmarshal(f.Results, &sent) != nil {
			sent = nil
		}
	}
	for n, i := range at {
		switch {
		case n < len(sent) && len(sent) == len(at) && (sent[n].Error != nil || sent[n].ID != ""):
			results[i] = c.resultOf(topic, &sent[n])
		case f != nil:
			e := *f.Err
			results[i].Err = &e
		default:
			results[i].Err = &tidegate.Error{
				Op: opSend, Subject: topic, Endpoint: c.api.Endpoint(), Code: protocol.CodeInternalError, MaybeStored: true,
				Message: "the response has no result for message " + msgs[i].ID + ", which may be stored or not",
			}
		}
	}
	return results
}

func (c *Client) resultOf(topic string, r *sendResult) transport.SendResult {
	if r.Error != nil {
		return transport.SendResult{Err: r.Error.Error(opSend, topic, c.api.Endpoint())}
	}
	at := tidegate.Receipt{MessageID: r.ID, Topic: topic, Queue: -1, Offset: -1, Endpoint: c.api.Endpoint(), RecallHandle: r.RecallHandle}
	if r.Queue != nil && r.Offset != nil {
		at.Queue, at.Offset = *r.Queue, *r.Offset
	}
	return transport.SendResult{Receipt: at}
}

// texts rejects a message with a text that is not UTF-8, because JSON would change it. The broker
// checks everything else.
func texts(m *tidegate.Message) error {
	for _, s := range [...]string{m.ID, m.Tag, m.MessageGroup, m.TraceContext} {
		if !utf8.ValidString(s) {
			return m.Validate(tidegate.MaxBodySize)
		}
	}
	for _, k := range m.Keys {
		if !utf8.ValidString(k) {
			return m.Validate(tidegate.MaxBodySize)
		}
	}
	for k, v := range m.Properties {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return m.Validate(tidegate.MaxBodySize)
		}
	}
	return nil
}

func jsonOf(m *tidegate.Message) jsonMessage {
	return jsonMessage{
		ID: m.ID, Body: m.Body, Tag: m.Tag, Keys: m.Keys, Properties: m.Properties, MessageGroup: m.MessageGroup, LiteTopic: m.LiteTopic,
		Priority: m.Priority, DeliverAt: m.DeliverAt, TraceContext: m.TraceContext, BornAt: time.Now(),
	}
}

// Lane returns the broker, which is the server of every topic.
func (c *Client) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	switch {
	case c.api.Closed():
		return transport.Lane{}, &tidegate.Error{Op: opSend, Subject: r.Topic, Endpoint: c.api.Endpoint(), Err: httpapi.ErrClosed}
	case ctx.Err() != nil:
		return transport.Lane{}, &tidegate.Error{Op: opSend, Subject: r.Topic, Err: context.Cause(ctx)}
	}
	return transport.Lane{Endpoint: c.api.Endpoint(), MaxMessages: maxMessages, MaxBytes: maxBytes}, nil
}

// SendLane sends messages in one request.
func (c *Client) SendLane(ctx context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return c.send(ctx, msgs)
}

// Recall implements transport.Recaller.
func (c *Client) Recall(ctx context.Context, topic, handle string) (messageID string, err error) {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return "", err
	}
	var out struct {
		ID string `json:"id"`
	}
	f := c.do(ctx, call{
		op: "RecallMessage", subject: topic, method: "POST", path: []string{"topics", topic, "recall"}, out: &out,
		body: map[string]string{"recall_handle": handle},
	})
	return out.ID, errOf(f)
}
