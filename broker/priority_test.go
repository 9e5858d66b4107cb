package broker_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// ranked are messages with priorities, whose bodies are a, b, c and so on.
func ranked(topic string, priorities ...int) (ms []*tidegate.Message) {
	for i, p := range priorities {
		ms = append(ms, &tidegate.Message{Topic: topic, Priority: p, Body: []byte{'a' + byte(i)}})
	}
	return ms
}

// bodies joins the bodies of deliveries.
func bodies(ds []*tidegate.Delivery) (all string) {
	for _, d := range ds {
		all += string(d.Body)
	}
	return all
}

// Higher priorities come first, those above the number of queues like the highest one. A message has
// its priority after a restart, when it is delivered again, and in a dead letter and its redrive.
func TestPriorities(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicPriority, Queues: 3})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2, Retry: backoff.Steps{10 * time.Second}})
		mustSend(t, b, ranked("t", 0, 1, 9, 0, 2, 1)...)
		b = reopen(t, b, fs)
		take := func(most int) []*tidegate.Delivery {
			return receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: most, InvisibleDuration: time.Hour})
		}
		first := take(3)
		assert.Equal(t, "the first receive", bodies(first), "ceb")
		assert.Equal(t, "a priority above the queues", first[0].Priority, 9)
		for _, d := range first {
			settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule})
		}
		elapse(10 * time.Second)
		rest := take(6)
		assert.Equal(t, "with the retries of b, c and e", bodies(rest), "cebfad")
		settle(t, b, rest[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"})
		letters := assert.Value(b.DeadLetters("g", status.DeadLetterQuery{}))(t).DeadLetters
		assert.MustThat(t, len(letters) == 1 && letters[0].Priority == 9, "the dead letters are %+v, want one with the priority 9", letters)
		mustSend(t, b, ranked("t", 0, 2)...)
		assert.Must(t, assert.Err(b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})))
		last := take(6)
		assert.That(t, bodies(last) == "bca" && last[1].Priority == 9, "after the redrive of c the group received %q, want bca", bodies(last))
	})
}

// The messages of one request go to the queues of their priorities, and a FIFO group receives them
// like another one. A topic of another type has no priorities.
func TestPrioritiesOfOneRequest(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicPriority, Queues: 4})
		putTopic(t, b, "other", settings.Topic{})
		putGroup(t, b, "g", settings.Group{FIFO: true})
		rs := send(t, b, ranked("t", 3, 0, 1)...)
		for i, want := range []int{3, 0, 1} {
			assert.Equal(t, "the queue of the receipt", rs[i].Receipt.Queue, want)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 9})
		assert.Equal(t, "a FIFO group received", bodies(ds), "acb")
		e, ok := errors.AsType[*tidegate.Error](send(t, b, ranked("other", 1)...)[0].Err)
		assert.That(t, ok && e.Code == protocol.CodeMessagePropertyConflict, "a priority in a NORMAL topic: %v", e)
	})
}

// Receives that wait get what is sent, and no message of a low priority waits without end beside
// messages of a high one that never end.
func TestLowPrioritiesDoNotStarve(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicPriority, Queues: 2})
		mustSend(t, b, ranked("t", 0)...)
		var got []int
		for !slices.Contains(got, 0) && len(got) < 100 {
			mustSend(t, b, ranked("t", 1, 1)...)
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
			got = append(got, d.Priority)
			assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		}
		assert.Equal(t, "deliveries until the message of the lower priority", len(got), 17)
	})
}
