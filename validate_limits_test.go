package tidegate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/protocol"
)

// The limits of RocketMQ's proxy: one below, at, and above each.
func TestValidate(t *testing.T) {
	properties := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("k%03d", i)] = strings.Repeat("v", size)
		}
		return m
	}
	for _, c := range []struct {
		name   string
		change func(*Message)
		code   Code
		says   string
	}{
		{"good", func(*Message) {}, 0, ""},
		{"topic of 127", func(m *Message) { m.Topic = strings.Repeat("t", 127) }, 0, ""},
		{"topic of 128", func(m *Message) { m.Topic = strings.Repeat("t", 128) }, protocol.CodeIllegalTopic, "128 characters; the limit is 127"},
		{"no topic", func(m *Message) { m.Topic = "" }, protocol.CodeIllegalTopic, "empty"},
		{"topic with a space", func(m *Message) { m.Topic = "a b" }, protocol.CodeIllegalTopic, `' ' at byte 1`},
		{"dead letter topic", func(m *Message) { m.Topic = "%DLQ%g" }, 0, ""},
		{"a system topic", func(m *Message) { m.Topic = "TBW102" }, protocol.CodeIllegalTopic, "system topic of RocketMQ"},
		{"begins like a system topic", func(m *Message) { m.Topic = "rmq_sys_x" }, protocol.CodeIllegalTopic, "system topics of RocketMQ"},
		{"no body", func(m *Message) { m.Body = nil }, protocol.CodeMessageBodyEmpty, "empty"},
		{"body of 4 MiB", func(m *Message) { m.Body = make([]byte, 4<<20) }, 0, ""},
		{"body above 4 MiB", func(m *Message) { m.Body = make([]byte, 4<<20+1) }, CodeMessageBodyTooLarge, "4194305 bytes; the limit is 4194304"},
		{"blank ID", func(m *Message) { m.ID = " " }, protocol.CodeIllegalMessageID, "blank"},
		{"ID of 255", func(m *Message) { m.ID = strings.Repeat("i", 255) }, 0, ""},
		{"ID of 256", func(m *Message) { m.ID = strings.Repeat("i", 256) }, protocol.CodeIllegalMessageID, "256 bytes; the limit is 255"},
		{"in 24 h", func(m *Message) { m.DeliverAt = time.Now().Add(24 * time.Hour) }, 0, ""},
		{"in the past", func(m *Message) { m.DeliverAt = time.Unix(1, 0) }, 0, ""},
		{"in more than 24 h", func(m *Message) { m.DeliverAt = time.Now().Add(24*time.Hour + time.Minute) }, protocol.CodeIllegalDeliveryTime, "24h0m0s"},
		{"trace of 4 KiB", func(m *Message) { m.TraceContext = strings.Repeat("t", 4096) }, 0, ""},
		{"trace of more", func(m *Message) { m.TraceContext = strings.Repeat("t", 4097) }, protocol.CodeMessagePropertiesTooLarge, "4097 bytes; the limit is 4096"},
		{"empty property", func(m *Message) { m.Properties = map[string]string{"color": ""} }, protocol.CodeIllegalMessagePropertyKey, `"color" is empty`},
		{"tag", func(m *Message) { m.Tag = "a b" }, 0, ""},
		{"tag with |", func(m *Message) { m.Tag = "a|b" }, protocol.CodeIllegalMessageTag, "a|b"},
		{"blank tag", func(m *Message) { m.Tag = "\t" }, protocol.CodeIllegalMessageTag, "tag"},
		{"blank key", func(m *Message) { m.Keys = []string{"a", ""} }, protocol.CodeIllegalMessageKey, "key"},
		{"group of 63", func(m *Message) { m.MessageGroup = strings.Repeat("g", 63) }, 0, ""},
		{"group of 64", func(m *Message) { m.MessageGroup = strings.Repeat("g", 64) }, protocol.CodeIllegalMessageGroup, "64 bytes; the limit is 63"},
		{"blank group", func(m *Message) { m.MessageGroup = " " }, protocol.CodeIllegalMessageGroup, "blank"},
		{"group and time", func(m *Message) { m.MessageGroup, m.DeliverAt = "g", time.Unix(1, 0) }, protocol.CodeMessagePropertyConflict, `"g"`},
		{"128 properties", func(m *Message) { m.Properties = properties(128, 1) }, 0, ""},
		{"129 properties", func(m *Message) { m.Properties = properties(129, 1) }, protocol.CodeMessagePropertiesTooLarge, "129 properties; the limit is 128"},
		{"16 KiB", func(m *Message) { m.Properties = properties(16, 1020) }, 0, ""},
		{"above 16 KiB, with the tag", func(m *Message) { m.Properties, m.Tag = properties(16, 1020), "t" }, protocol.CodeMessagePropertiesTooLarge, "16385 bytes; the limit is 16384"},
		{"reserved property", func(m *Message) { m.Properties = map[string]string{"UNIQ_KEY": ""} }, protocol.CodeIllegalMessagePropertyKey, "UNIQ_KEY"},
		{"dead letter property", func(m *Message) { m.Properties = map[string]string{protocol.PropertyDeadLetterReason: ""} }, protocol.CodeIllegalMessagePropertyKey, "DLQ_REASON"},
		{"property with a line break", func(m *Message) { m.Properties = map[string]string{"a\nb": ""} }, protocol.CodeIllegalMessagePropertyKey, `a\nb`},
		// Texts that are not UTF-8 are rejected here, because gRPC would report them as a broken
		// connection.
		{"ID with a control character", func(m *Message) { m.ID = "a\x1b]0;x\a" }, protocol.CodeIllegalMessageID, `a\x1b]0;x\a`},
		{"ID with a control character of C1", func(m *Message) { m.ID = "\u009b1m" }, protocol.CodeIllegalMessageID, `\u009b1m`},
		{"ID not UTF-8", func(m *Message) { m.ID = "a\xff" }, protocol.CodeIllegalMessageID, "UTF-8"},
		{"tag not UTF-8", func(m *Message) { m.Tag = "\xff" }, protocol.CodeIllegalMessageTag, "UTF-8"},
		{"key not UTF-8", func(m *Message) { m.Keys = []string{"\xff"} }, protocol.CodeIllegalMessageKey, "UTF-8"},
		{"group not UTF-8", func(m *Message) { m.MessageGroup = "\xff" }, protocol.CodeIllegalMessageGroup, "UTF-8"},
		{"trace context not UTF-8", func(m *Message) { m.TraceContext = "\xff" }, CodeBadRequest, "trace context"},
		{"property not UTF-8", func(m *Message) { m.Properties = map[string]string{"\xff": ""} }, protocol.CodeIllegalMessagePropertyKey, "UTF-8"},
		{"property value not UTF-8", func(m *Message) { m.Properties = map[string]string{"k": "\xff"} }, CodeBadRequest, `"k"`},
		{"replacement character", func(m *Message) { m.Tag = "\uFFFD" }, 0, ""},
	} {
		m := &Message{Topic: "orders", Body: []byte("x")}
		c.change(m)
		err := m.Validate(0)
		e, _ := errors.AsType[*Error](err)
		if c.code == 0 && err != nil || c.code != 0 && (e == nil || e.Code != c.code || !errors.Is(err, ErrInvalid) || !strings.Contains(e.Error(), c.says)) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.code, c.says)
		}
	}
	if err := (&Message{Topic: "t", Body: make([]byte, 11)}).Validate(10); err == nil {
		t.Error("a limit of 10 takes 11 bytes")
	}
	for name, ok := range map[string]bool{"g": true, "": false, strings.Repeat("g", 120): true, strings.Repeat("g", 121): false, "CID_RMQ_SYS_x": false, "ä": false} {
		if err := ValidateGroup(name); (err == nil) != ok {
			t.Errorf("group %q: %v", name, err)
		}
	}
}

func FuzzValidate(f *testing.F) {
	f.Add("topic", "tag", "key", "group", "property")
	f.Add("%DLQ%g", "a|b", "", "\x00", "UNIQ_KEY")
	// Invariants: Validate never panics, and each of its errors matches ErrInvalid.
	f.Fuzz(func(t *testing.T, topic, tag, key, group, property string) {
		m := &Message{Topic: topic, Tag: tag, Keys: []string{key}, MessageGroup: group, Properties: map[string]string{property: ""}, Body: []byte("x")}
		if err := m.Validate(0); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%v is not ErrInvalid", err)
		}
	})
}
