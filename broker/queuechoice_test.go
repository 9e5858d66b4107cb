package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

// The messages of one request without a message group share a queue of their topic. Requests take
// the queues in turn. A message group has one queue always.
func TestRequestsTakeTheQueuesInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		const queues = 4
		for _, name := range []string{"t", "u"} {
			if _, err := b.PutTopic(t.Context(), name, settings.Topic{Queues: queues}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.PutTopic(t.Context(), "fifo", settings.Topic{Queues: queues, Type: settings.TopicFIFO}); err != nil {
			t.Fatal(err)
		}
		of := func(topic, group string, i int) *tidegate.Message {
			return &tidegate.Message{Topic: topic, MessageGroup: group, Body: fmt.Append(nil, i)}
		}
		used := map[string]map[int]int{"t": {}, "u": {}} // messages by topic and queue
		inFIFO := map[string]int{}                       // the queue of each message group
		const requests, messages = 3 * queues, 5
		for request := range requests {
			var msgs []*tidegate.Message
			for i := range messages {
				msgs = append(msgs, of("t", "", i))
			}
			for i := range messages {
				group := fmt.Sprint("g", i)
				msgs = append(msgs, of("fifo", group, i), of("u", "", i)) // in between
			}
			first := map[string]int{}
			for i, r := range send(t, b, msgs...) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				m, q := msgs[i], r.Receipt.Queue
				if m.MessageGroup != "" {
					if was, known := inFIFO[m.MessageGroup]; known && was != q {
						t.Errorf("request %d: message group %s is in queue %d, and was in %d", request, m.MessageGroup, q, was)
					}
					inFIFO[m.MessageGroup] = q
					continue
				}
				used[m.Topic][q]++
				if was, known := first[m.Topic]; known && was != q {
					t.Errorf("request %d has messages in the queues %d and %d of topic %s", request, was, q, m.Topic)
				}
				first[m.Topic] = q
			}
		}
		for topic, by := range used {
			for q := range queues {
				if by[q] != requests/queues*messages {
					t.Errorf("topic %s: messages by queue %v; want as many in each of %d", topic, by, queues)
				}
			}
		}
	})
}
