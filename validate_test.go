package tidegate_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// The error for a message that no server accepts names the field, the value and the limit.
func TestValidateRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			change func(*tidegate.Message)
			code   tidegate.Code // 0: it is valid
			says   []string
		}{
			"plain":              {func(*tidegate.Message) {}, 0, nil},
			"ID of 255":          {func(m *tidegate.Message) { m.ID = strings.Repeat("i", 255) }, 0, nil},
			"ID of 256":          {func(m *tidegate.Message) { m.ID = strings.Repeat("i", 256) }, protocol.CodeIllegalMessageID, []string{"message ID", "iii", "256", "255"}},
			"in 24 h":            {func(m *tidegate.Message) { m.DeliverAt = time.Now().Add(24 * time.Hour) }, 0, nil},
			"in the past":        {func(m *tidegate.Message) { m.DeliverAt = time.Unix(1, 0) }, 0, nil},
			"in more than 24 h":  {func(m *tidegate.Message) { m.DeliverAt = time.Now().Add(24*time.Hour + time.Second) }, protocol.CodeIllegalDeliveryTime, []string{"delivery time", "24h0m1s", "24h0m0s"}},
			"trace of 4 KiB":     {func(m *tidegate.Message) { m.TraceContext = strings.Repeat("t", 4096) }, 0, nil},
			"trace of more":      {func(m *tidegate.Message) { m.TraceContext = strings.Repeat("t", 4097) }, protocol.CodeMessagePropertiesTooLarge, []string{"trace context", "4097", "4096"}},
			"empty property":     {func(m *tidegate.Message) { m.Properties = map[string]string{"color": ""} }, protocol.CodeIllegalMessagePropertyKey, []string{"property", "color", "empty"}},
			"dead letter's":      {func(m *tidegate.Message) { m.Properties = map[string]string{protocol.PropertyDeadLetterGroup: "g"} }, protocol.CodeIllegalMessagePropertyKey, []string{"property", "reserved"}},
			"RocketMQ's":         {func(m *tidegate.Message) { m.Properties = map[string]string{"KEYS": "g"} }, protocol.CodeIllegalMessagePropertyKey, []string{"property", "KEYS", "reserved"}},
			"a property of both": {func(m *tidegate.Message) { m.Properties = map[string]string{"color": "red"} }, 0, nil},
		} {
			m := &tidegate.Message{Topic: "t", Body: []byte("x")}
			tt.change(m)
			err := m.Validate(0)
			e, isErr := errors.AsType[*tidegate.Error](err)
			if isErr != (tt.code != 0) || isErr && (e.Code != tt.code || !errors.Is(err, tidegate.ErrInvalid)) {
				t.Errorf("%s: %v, want code %d", name, err, tt.code)
				continue
			}
			for _, word := range tt.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %q does not contain %q", name, err, word)
				}
			}
		}
	})
}

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

// A delivery can be forwarded, also a dead letter.
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
	if len(d.Properties) != 4 || d.ID != "1" {
		t.Errorf("the delivery was changed: %+v", d.Message)
	}
}
