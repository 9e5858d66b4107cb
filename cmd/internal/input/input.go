// Package input reads messages from lines.
package input

import (
	"bufio"
	"bytes"
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

// fromJSON sets the fields of a message that a JSON object has, with the names of the HTTP API.
func fromJSON(m *tidegate.Message, line []byte) error {
	var in struct {
		ID           string            `json:"id"`
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
	m.ID, m.Body, m.TraceContext = in.ID, in.Body, in.TraceContext
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
	switch {
	case in.DeliverAfter != 0 && !in.DeliverAt.IsZero():
		return errors.New("deliver_at and deliver_after exclude each other")
	case in.DeliverAfter < 0:
		return errors.New("deliver_after must not be negative")
	case in.DeliverAfter > 0:
		m.DeliverAt = time.Now().Add(time.Duration(in.DeliverAfter))
	case !in.DeliverAt.IsZero():
		m.DeliverAt = in.DeliverAt
	}
	return nil
}
