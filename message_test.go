package tidegate

import (
	"fmt"
	"maps"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

func TestMessageIDsAreUnique(t *testing.T) {
	form := regexp.MustCompile(`^01[0-9A-F]{32}$`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				id := NewMessageID()
				mu.Lock()
				if seen[id] || !form.MatchString(id) {
					t.Errorf("%s came twice, or is not of RocketMQ's form", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// The digits are those of RocketMQ's docs/message_id.md: version, host, process, seconds since
// 2021-01-01 and a sequence number.
func TestMessageIDHasTheDigitsOfItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where the time is 2000-01-01 at first
		time.Sleep(time.Until(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)))
		for range 300 { // all values of a byte
			id := NewMessageID()
			want := fmt.Sprintf("01%X%08X%08X", idHost, 2152*24*3600, idSequence.Load())
			if id != want {
				t.Fatalf("the ID is %s, want %s", id, want)
			}
		}
	})
}
