package producer

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
)

// Copies are equal to the messages, and stay so when these change.
func TestCopiesStay(t *testing.T) {
	for range 200 {
		var messages []*tidegate.Message
		var want []tidegate.Message
		for i := range rand.IntN(20) {
			body := strings.Repeat(fmt.Sprint(i), rand.IntN(3000))
			of := func() tidegate.Message {
				m := tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte(body)}
				if i%3 == 0 {
					m.Keys, m.Properties = []string{"k"}, map[string]string{"p": "v"}
				}
				return m
			}
			m := of()
			messages, want = append(messages, &m), append(want, of())
		}
		s := copiesOf(messages)
		for i, m := range messages {
			if i%3 == 0 {
				m.Keys[0], m.Properties["p"] = "new", "new"
			}
			clear(m.Body)
			m.ID, m.Topic, m.Body = "new", "new", nil
		}
		if len(s.Messages) != len(want) {
			t.Fatalf("%d copies of %d messages", len(s.Messages), len(want))
		}
		for i, m := range s.Messages {
			if !reflect.DeepEqual(*m, want[i]) {
				t.Errorf("copy %d is %+v, want %+v", i, *m, want[i])
			}
			if cap(m.Body) != len(m.Body) {
				t.Errorf("appending to body %d would change the next one", i)
			}
		}
		s.Free()
	}
}

// The memory of large requests is not used again, and that of others holds no message.
func TestFreeForgets(t *testing.T) {
	for _, tt := range []struct{ messages, size int }{{1, 10}, {maxMessages, 10}, {maxMessages + 1, 1}, {1, maxBytes + 1}} {
		var messages []*tidegate.Message
		for range tt.messages {
			messages = append(messages, &tidegate.Message{ID: "i", Keys: []string{"k"}, Body: make([]byte, tt.size)})
		}
		s := copiesOf(messages)
		structs, pointers := s.structs, s.Messages
		s.Free()
		for i := range structs {
			if structs[i].ID != "" || structs[i].Keys != nil || structs[i].Body != nil || pointers[i] != nil {
				t.Fatalf("%d messages of %d bytes: number %d is still there", tt.messages, tt.size, i)
			}
		}
		if again := copyPool.Get().(*copySet); cap(again.bodies) > maxBytes || cap(again.structs) > maxMessages {
			t.Errorf("the memory of %d messages of %d bytes is used again", tt.messages, tt.size)
		}
	}
}
