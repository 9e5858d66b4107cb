// Package input reads messages from lines.
package input

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// maxLine is the longest line of standard input in bytes.
const maxLine = 64 << 20

// Lines returns a function that reads the next message: a copy of model with a line as its body, or
// with the fields of the line if asJSON. It skips empty lines, and returns io.EOF at the end.
func Lines(r io.Reader, model *tidegate.Message, asJSON bool) func() (*tidegate.Message, error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 64<<10), maxLine)
	number := 0
	return func() (*tidegate.Message, error) {
		for in.Scan() {
			number++
			line := in.Bytes()
			if len(line) == 0 {
				continue
			}
			m := *model
			m.Body = bytes.Clone(line)
			if asJSON {
				if err := fromJSON(&m, line); err != nil {
					return nil, fmt.Errorf("line %d: %w", number, err)
				}
			}
			return &m, nil
		}
		if err := in.Err(); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
		return nil, io.EOF
	}
}

// read are the fields that messages have when they are read: their place, and the times and the
// lease of a delivery. A new message has its own.
type read struct {
	Topic          json.RawMessage `json:"topic"` // the command has the topic
	Queue          json.RawMessage `json:"queue"`
	Offset         json.RawMessage `json:"offset"`
	BornAt         json.RawMessage `json:"born_at"`
	BornHost       json.RawMessage `json:"born_host"`
	StoredAt       json.RawMessage `json:"stored_at"`
	StoreHost      json.RawMessage `json:"store_host"`
	Handle         json.RawMessage `json:"handle"`
	Group          json.RawMessage `json:"group"`
	Attempt        json.RawMessage `json:"attempt"`
	InvisibleUntil json.RawMessage `json:"invisible_until"`
	InvisibleFor   json.RawMessage `json:"invisible_for"`
	Origin         json.RawMessage `json:"origin"` // of a dead letter
}

// fromJSON sets the fields of a message that a JSON object has, with the names of the HTTP API. It
// ignores the fields of read, so that it accepts the lines that peek, find, receive and the export
// of dead letters print.
func fromJSON(m *tidegate.Message, line []byte) error {
	var in struct {
		read
		ID           string            `json:"id"`
		MessageID    string            `json:"message_id"` // the ID of a dead letter
		BodySize     int64             `json:"body_size"`  // also without the body
		Body         []byte            `json:"body"`
		BodyText     *string           `json:"body_text"`
		Tag          *string           `json:"tag"`
		Keys         []string          `json:"keys"`
		Properties   map[string]string `json:"properties"`
		MessageGroup *string           `json:"message_group"`
		DeliverAt    time.Time         `json:"deliver_at"`
		DeliverAfter httpapi.Duration  `json:"deliver_after"`
		TraceContext string            `json:"trace_context"`
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return err
	}
	if in.BodySize > 0 && in.Body == nil && in.BodyText == nil {
		return fmt.Errorf("the body of %d bytes is missing; to read it needs the permission to receive, and with dead-letters list the flag --bodies", in.BodySize)
	}
	m.ID, m.Body, m.TraceContext = cmp.Or(in.ID, in.MessageID), in.Body, in.TraceContext
	for _, field := range []struct {
		at   *string
		from *string
	}{{&m.Tag, in.Tag}, {&m.MessageGroup, in.MessageGroup}} {
		if field.from != nil {
			*field.at = *field.from
		}
	}
	if in.BodyText != nil {
		if in.Body != nil {
			return errors.New("body and body_text exclude each other")
		}
		m.Body = []byte(*in.BodyText)
	}
	if in.Keys != nil {
		m.Keys = in.Keys
	}
	if in.Properties != nil {
		m.Properties = in.Properties
	}
	due := in.DeliverAt
	if in.Offset != nil && !due.After(time.Now()) {
		due = time.Time{} // the message that was read was delivered then
	}
	switch {
	case in.DeliverAfter != 0 && !due.IsZero():
		return errors.New("deliver_at and deliver_after exclude each other")
	case in.DeliverAfter < 0:
		return errors.New("deliver_after must not be negative")
	case in.DeliverAfter > 0:
		m.DeliverAt = time.Now().Add(time.Duration(in.DeliverAfter))
	case !due.IsZero():
		m.DeliverAt = due
	}
	return nil
}
