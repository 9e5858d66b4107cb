package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
)

// sendingDirectory has a topic of each type, named for it, and a NORMAL topic of dead letters.
type sendingDirectory map[string]*Topic

func newDirectory() sendingDirectory {
	d := sendingDirectory{}
	for name, kind := range map[string]settings.TopicType{
		"NORMAL": settings.TopicNormal, "FIFO": settings.TopicFIFO, "DELAY": settings.TopicDelay,
		"TRANSACTION": settings.TopicTransaction, "%DLQ%g": settings.TopicNormal,
	} {
		d[name] = newTopic(TopicConfig{ID: uint32(len(d) + 1), Name: name}, settings.Topic{Type: kind}.WithDefaults())
	}
	return d
}

func (d sendingDirectory) Topic(name string) (*Topic, error) {
	if t := d[name]; t != nil {
		return t, nil
	}
	return nil, refusal.TopicNotFound(name)
}

// codeOf returns the code of an error, and 0 for nil.
func codeOf(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

// A topic accepts only messages of its type. A topic of dead letters also accepts messages with a
// message group or a delivery time, because dead letters keep the fields of the message.
func TestTopicsAcceptTheirType(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSending(SendingConfig{Directory: newDirectory(), MaxBodySize: 10})
		kinds := map[string]Incoming{
			"NORMAL":      {},
			"FIFO":        {Message: &tidegate.Message{MessageGroup: "m"}},
			"DELAY":       {Message: &tidegate.Message{DeliverAt: time.Now().Add(time.Hour)}},
			"TRANSACTION": {Half: true},
		}
		accepted := map[[2]string]bool{
			{"NORMAL", "NORMAL"}: true, {"FIFO", "FIFO"}: true, {"DELAY", "DELAY"}: true, {"TRANSACTION", "TRANSACTION"}: true,
			{"%DLQ%g", "NORMAL"}: true, {"%DLQ%g", "FIFO"}: true, {"%DLQ%g", "DELAY"}: true,
		}
		for _, to := range []string{"NORMAL", "FIFO", "DELAY", "TRANSACTION", "%DLQ%g"} {
			for kind, m := range kinds {
				copied := tidegate.Message{}
				if m.Message != nil {
					copied = *m.Message
				}
				copied.ID, copied.Topic, copied.Body = "id", to, []byte("x")
				m.Message = &copied
				found, err := s.check(&m)
				switch want := accepted[[2]string{to, kind}]; {
				case want && (err != nil || found.Name() != to):
					t.Errorf("%s message to topic %s: %v", kind, to, err)
				case !want && codeOf(err) != tidegate.CodeMessagePropertyConflict:
					t.Errorf("%s message to topic %s: %v, want code %d", kind, to, err, tidegate.CodeMessagePropertyConflict)
				}
			}
		}
	})
}

// Each invalid message has the code of its fault, and a message at a limit is valid.
func TestInvalidMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSending(SendingConfig{Directory: newDirectory(), MaxBodySize: 10})
		now := time.Now()
		for name, c := range map[string]struct {
			topic      string
			noID       bool
			body       string
			ahead      time.Duration // 0: no delivery time
			group      string
			half       bool
			firstCheck time.Duration
			want       tidegate.Code // 0: valid
		}{
			"no ID":                           {topic: "NORMAL", body: "x", noID: true, want: protocol.CodeIllegalMessageID},
			"no topic of that name":           {topic: "none", body: "x", want: tidegate.CodeTopicNotFound},
			"a topic with an invalid name":    {topic: "a b", body: "x", want: tidegate.CodeIllegalTopic},
			"body of the maximum":             {topic: "NORMAL", body: "0123456789"},
			"body above the maximum":          {topic: "NORMAL", body: "0123456789a", want: tidegate.CodeMessageBodyTooLarge},
			"24 h ahead":                      {topic: "DELAY", body: "x", ahead: 24 * time.Hour},
			"more than 24 h ahead":            {topic: "DELAY", body: "x", ahead: 24*time.Hour + 1, want: tidegate.CodeIllegalDeliveryTime},
			"delivery time in the past":       {topic: "DELAY", body: "x", ahead: -time.Hour},
			"half message with a group":       {topic: "TRANSACTION", body: "x", half: true, group: "m", want: tidegate.CodeMessagePropertyConflict},
			"half message with delivery time": {topic: "TRANSACTION", body: "x", half: true, ahead: time.Hour, want: tidegate.CodeMessagePropertyConflict},
			"first check after an hour":       {topic: "TRANSACTION", body: "x", half: true, firstCheck: time.Hour},
			"first check after more":          {topic: "TRANSACTION", body: "x", half: true, firstCheck: time.Hour + 1, want: tidegate.CodeBadRequest},
			"first check in the past":         {topic: "TRANSACTION", body: "x", half: true, firstCheck: -1, want: tidegate.CodeBadRequest},
			"group and delivery time":         {topic: "FIFO", body: "x", group: "m", ahead: time.Hour, want: tidegate.CodeMessagePropertyConflict},
		} {
			m := Incoming{Message: &tidegate.Message{ID: "id", Topic: c.topic, Body: []byte(c.body), MessageGroup: c.group}, Half: c.half, FirstCheck: c.firstCheck}
			if c.noID {
				m.ID = ""
			}
			if c.ahead != 0 {
				m.DeliverAt = now.Add(c.ahead)
			}
			if _, err := s.check(&m); codeOf(err) != c.want {
				t.Errorf("%s: %v, want code %d", name, err, c.want)
			}
		}
	})
}
