package view

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Body returns a body that the HTTP API returned as text or as bytes.
func Body(body []byte, text string) string { return cmp.Or(text, string(body)) }

// MessageColumns returns the columns of peek and find. Delayed messages have their delivery time
// instead of a place in a queue.
func MessageColumns(delayed bool) []output.Column[status.StoredMessage] {
	if !delayed {
		return messageColumns
	}
	columns := slices.DeleteFunc(slices.Clone(messageColumns), func(c output.Column[status.StoredMessage]) bool {
		return c.Name == "QUEUE" || c.Name == "OFFSET"
	})
	return slices.Insert(columns, 2, output.Column[status.StoredMessage]{Name: "DELIVER", Usual: 10, Cell: func(m status.StoredMessage) any { return m.DeliverAt }})
}

var messageColumns = []output.Column[status.StoredMessage]{
	{Name: "STORED", Usual: 11, Cell: func(m status.StoredMessage) any { return m.StoredAt }},
	{Name: "ID", Usual: 34, Cell: func(m status.StoredMessage) any { return m.ID }},
	{Name: "QUEUE", Keep: true, Usual: 3, Cell: func(m status.StoredMessage) any { return m.Queue }},
	{Name: "OFFSET", Keep: true, Usual: 9, Cell: func(m status.StoredMessage) any { return m.Offset }},
	{Name: "TAG", Usual: 12, Cell: func(m status.StoredMessage) any { return m.Tag }},
	{Name: "KEYS", Least: 60, Usual: 16, Cell: func(m status.StoredMessage) any { return m.Keys }},
	{Name: "GROUP", Wide: true, Cell: func(m status.StoredMessage) any { return m.MessageGroup }},
	{Name: "BORN", Wide: true, Cell: func(m status.StoredMessage) any { return m.BornAt }},
	{Name: "SIZE", Usual: 9, Cell: func(m status.StoredMessage) any { return output.Bytes(m.BodySize) }},
	{Name: "TEXT", Least: 16, Cell: func(m status.StoredMessage) any { return FirstLine(Body(m.Body, m.BodyText)) }},
}

// FirstLine is the beginning of a body, in hexadecimal digits if it is not text.
func FirstLine(body string) string {
	const most = 60
	line, _, more := strings.Cut(body, "\n")
	if !utf8.ValidString(line) {
		line = hex.EncodeToString([]byte(body[:min(len(body), most/2)]))
	}
	if text := []rune(line); len(text) > most {
		line, more = string(text[:most]), true
	}
	if more {
		line += "…"
	}
	return line
}

// Messages returns the text of messages with their properties and whole bodies, for a terminal of
// the given columns; 0 means none.
func Messages(ms []status.StoredMessage, columns int) string {
	var b strings.Builder
	for i := range ms {
		m := &ms[i]
		place := fmt.Sprintf("queue %d offset %d", m.Queue, m.Offset)
		if !m.DeliverAt.IsZero() {
			place = "deliver at " + m.DeliverAt.UTC().Format(time.RFC3339)
		}
		head := []string{m.StoredAt.UTC().Format(time.RFC3339), output.Safe(m.ID), place}
		for _, p := range []struct{ name, value string }{{"tag", m.Tag}, {"keys", strings.Join(m.Keys, ",")}, {"group", m.MessageGroup}} {
			if p.value != "" {
				head = append(head, p.name+" "+output.Safe(p.value))
			}
		}
		b.WriteString(output.Flow(head, columns, 4) + "\n")
		for _, name := range slices.Sorted(maps.Keys(m.Properties)) {
			fmt.Fprintf(&b, "  %s: %s\n", output.Safe(name), output.Safe(m.Properties[name]))
		}
		for line := range strings.Lines(Body(m.Body, m.BodyText)) {
			fmt.Fprintf(&b, "    %s\n", output.Safe(strings.TrimSuffix(line, "\n")))
		}
	}
	return b.String()
}

// BornAt returns the time in a message ID of RocketMQ 5 (rocketmq-clients, docs/message_id.md).
func BornAt(id string) (time.Time, bool) {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != 17 || b[0] != 1 {
		return time.Time{}, false
	}
	epoch := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	return epoch.Add(time.Duration(binary.BigEndian.Uint32(b[9:13])) * time.Second), true
}
