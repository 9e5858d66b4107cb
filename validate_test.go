package tidegate_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
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

// A delivery can be forwarded, also a dead letter, with its priority.
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
	if len(d.Properties) != 4 || d.ID != "1" {
		t.Errorf("the delivery was changed: %+v", d.Message)
	}
}
