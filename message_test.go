package tidegate

import (
	"maps"
	"testing"

	"github.com/tidegate/tidegate/internal/protocol"
)

func TestCloneSharesOnlyTheBody(t *testing.T) {
	m := &Message{Keys: []string{"a"}, Properties: map[string]string{"k": "v"}, Body: []byte("x")}
	c := m.Clone()
	c.Keys[0], c.Properties["k"] = "b", "w"
	if m.Keys[0] != "a" || m.Properties["k"] != "v" {
		t.Errorf("changing the copy changed %+v", m)
	}
	if e := (&Message{}).Clone(); e.Keys != nil || e.Properties != nil {
		t.Errorf("the copy of nothing is %+v", e)
	}
}

func TestDeadLetterOrigin(t *testing.T) {
	if _, ok := (&Message{Properties: map[string]string{"k": "v"}}).DeadLetter(); ok {
		t.Error("every message is a dead letter")
	}
	m := &Message{Properties: map[string]string{
		protocol.PropertyDeadLetterTopic: "t", protocol.PropertyDeadLetterMessageID: "id", protocol.PropertyDeadLetterQueue: "3", protocol.PropertyDeadLetterOffset: "1234567890123",
		protocol.PropertyDeadLetterGroup: "g", protocol.PropertyDeadLetterAttempts: "odd", protocol.PropertyDeadLetterReason: "r",
	}}
	before := maps.Clone(m.Properties)
	want := DeadLetter{Topic: "t", MessageID: "id", Queue: 3, Offset: 1234567890123, Group: "g", Attempts: 0, Reason: "r"}
	if d, ok := m.DeadLetter(); !ok || d != want || !maps.Equal(before, m.Properties) {
		t.Errorf("%+v, %v; want %+v", d, ok, want)
	}
}
