package tidegate_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Topics and consumer groups follow the patterns that RocketMQ's documentation states.
func TestNamesFollowThePatterns(t *testing.T) {
	word := `[%|_a-zA-Z0-9-]+`
	topic, group := regexp.MustCompile(`^`+word+`(\.`+word+`)*$`), regexp.MustCompile(`^`+word+`$`)
	pieces := []string{"a", "Z", "0", "9", "%", "|", "_", "-", ".", "..", " ", "/", "ä", "\x00", "\xff", "rmq_sys_", "@", "[", "`", "{"}
	check := func(name string) {
		if ok := tidegate.ValidateTopic(name) == nil; ok != (topic.MatchString(name) && len(name) <= 127 && !strings.HasPrefix(name, "rmq_sys_")) {
			t.Errorf("topic %q: valid %v", name, ok)
		}
		if ok := tidegate.ValidateGroup(name) == nil; ok != (group.MatchString(name) && len(name) <= 120) {
			t.Errorf("consumer group %q: valid %v", name, ok)
		}
	}
	check("")
	for c := range 256 {
		check(string([]byte{byte(c)}))
		check("a" + string([]byte{byte(c)}) + "b")
	}
	for _, n := range []int{120, 121, 127, 128} {
		check(strings.Repeat("n", n))
		check(strings.Repeat(" ", n))
	}
	for range 20_000 {
		name := ""
		for range rand.IntN(6) {
			name += pieces[rand.IntN(len(pieces))]
		}
		check(name)
	}
}

// A delivery can be forwarded, also a dead letter, with its priority or its lite topic.
func TestForward(t *testing.T) {
	d := &tidegate.Delivery{Message: tidegate.Message{
		ID: "1", Topic: "dead", Tag: "tag", Keys: []string{"k"}, MessageGroup: "g", TraceContext: "00-1", Body: []byte("body"), DeliverAt: time.Now(),
		Properties: map[string]string{"mine": "v", "KEYS": "k", protocol.PropertyDeadLetterReason: "failed", "empty": ""},
	}, Attempt: 3, Handle: "h"}
	m := d.Forward("other")
	if err := m.Validate(0); err != nil {
		t.Error(err)
	}
	if m.ID != "" || m.Topic != "other" || m.Tag != "tag" || m.Keys[0] != "k" || m.MessageGroup != "g" || m.TraceContext != "00-1" ||
		string(m.Body) != "body" || len(m.Properties) != 1 || m.Properties["mine"] != "v" || !m.DeliverAt.IsZero() {
		t.Errorf("%+v", m)
	}
	if m := (&tidegate.Delivery{Message: tidegate.Message{Priority: 4}}).Forward("other"); m.Priority != 4 {
		t.Errorf("the priority 4 became %d", m.Priority)
	}
	if m := (&tidegate.Delivery{Message: tidegate.Message{LiteTopic: "chat-1"}}).Forward("other"); m.LiteTopic != "chat-1" {
		t.Errorf("the lite topic chat-1 became %q", m.LiteTopic)
	}
	if len(d.Properties) != 4 || d.ID != "1" {
		t.Errorf("the delivery was changed: %+v", d.Message)
	}
}

// The names are those that a RocketMQ 5.5.0 accepts (transport/rocketmq/WIRE.md). A lite topic excludes
// all else that gives a message an order or a time.
func TestLiteTopics(t *testing.T) {
	for _, name := range []string{"a", "session-17", "Chat_1", strings.Repeat("x", 64)} {
		m := &tidegate.Message{Topic: "t", LiteTopic: name, Body: []byte("x")}
		assert.NoError(t, m.Validate(0), name)
	}
	for name, words := range map[string][]string{
		" ": {"blank"}, strings.Repeat("x", 65): {"65 bytes", "64"}, "a:b": {"':'", "byte 1"}, "a.b": {"'.'"}, "a|b": {"'|'"}, "%a": {"'%'", "byte 0"}, "a\x00": {"byte 1"}, "über": {"'ü'"}, "a\xff": {"byte 1"},
	} {
		m := &tidegate.Message{Topic: "t", LiteTopic: name, Body: []byte("x")}
		err := m.Validate(0)
		assert.MustThat(t, err != nil, "the lite topic %q is valid", name)
		assert.Contains(t, "the error", err.Error(), append(words, "40020")...)
	}
	for field, m := range map[string]*tidegate.Message{
		"message group": {MessageGroup: "g"}, "delivery time": {DeliverAt: time.Now().Add(time.Hour)}, "priority": {Priority: 1},
	} {
		m.Topic, m.LiteTopic, m.Body = "t", "a", []byte("x")
		err := m.Validate(0)
		assert.MustThat(t, err != nil, "a lite topic and a %s are valid", field)
		assert.Contains(t, "the error", err.Error(), field, `lite topic ("a")`, "40014")
	}
}
