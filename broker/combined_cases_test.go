package broker_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A delivery that a power failure undid cannot become a dead letter. Its message is delivered
// again, so the response must be an error.
func TestDeadLetterOfALostDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		b = open(t, broker.Options{Dir: "data"}.On(fs.CrashClone(vfs.CrashCloneCfg{})))
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"}); codeOf(err) != tidegate.CodeInvalidReceiptHandle {
			t.Errorf("the dead letter of a delivery that was lost: %v", err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) != 1 || ds[0].Attempt != 1 {
			t.Errorf("then came %+v", ds)
		}
	})
}

// A message that is in flight when retention passes it is kept, and also if the power fails at
// once: then it is redelivered.
func TestMessageInFlightSurvivesRetentionAndPowerLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		topic := topicOf(t, b, "t")
		due, _ := topic.NextRound()
		time.Sleep(time.Until(due) - time.Millisecond)
		if len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})) != 1 {
			t.Fatal("the message is not there")
		}
		elapse(2 * time.Millisecond)
		if stored(t, b, "t") != 1 || topic.Queues()[0].Low().Offset != 1 {
			t.Fatal("the cursor did not pass the message, or the message was not kept")
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs.CrashClone(vfs.CrashCloneCfg{})))
		if s := subscriptionOf(t, b, "g"); s.Backlog.Messages != 1 {
			t.Errorf("after the power failure: %+v", s)
		}
		elapse(time.Minute)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) != 1 {
			t.Errorf("the message is not redelivered: %v", ds)
		}
	})
}

// Unreadable messages are removed like others, in every place, and leave nothing in the counters.
func TestDamagedMessagesAreRemoved(t *testing.T) {
	t.Parallel()
	for _, offsets := range [][]int64{{0}, {5}, {9}, {0, 1, 2}, {4, 5}, {8, 9}, {0, 9}} {
		for _, how := range []string{"time", "bytes", "consumed", "purge"} {
			t.Run(fmt.Sprint(how, offsets), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := open(t, broker.Options{})
					c := settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: -1}}
					putTopic(t, b, "t", c)
					receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
					for range 10 {
						mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 100)})
						elapse(time.Millisecond)
					}
					for _, o := range offsets {
						corruptMessage(t, b, "t", 0, o)
					}
					switch how {
					case "time":
						c.Retention.Time = settings.Duration(time.Minute)
					case "bytes":
						c.Retention.Bytes = 1
					case "consumed":
						c.Retention.Consumed = true
						for _, err := range b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})) {
							if err != nil {
								t.Error(err)
							}
						}
						for _, err := range b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})) {
							if err != nil {
								t.Error(err)
							}
						}
					case "purge":
						if _, err := b.PurgeTopic(t.Context(), "t"); err != nil {
							t.Error(err)
						}
					}
					putTopic(t, b, "t", c)
					elapse(5 * time.Minute)
					if n := stored(t, b, "t"); n != 0 {
						t.Errorf("%d messages are left", n)
					}
					mustSend(t, b, &tidegate.Message{Topic: "t", ID: "next", Body: make([]byte, 100)})
					if how != "bytes" {
						for _, err := range b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})) {
							if err != nil {
								t.Error(err)
							}
						}
					}
					elapse(5 * time.Minute)
					if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{}) {
						t.Errorf("the group is left with %+v", s)
					}
				})
			})
		}
	}
}

// A delayed message and a half message that cannot be read keep no others waiting.
func TestDamageHoldsUpNoDelayedOrHalfMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "d", settings.Topic{Type: settings.TopicDelay})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		for i := range 3 {
			mustSend(t, b, &tidegate.Message{Topic: "d", Body: []byte("x"), DeliverAt: time.Now().Add(time.Duration(i+1) * time.Second)})
		}
		corruptDelayed(t, b, "d", 1)
		elapse(time.Minute)
		if n := stored(t, b, "d"); n != 2 || serve(b).Stats().Damaged != 1 {
			t.Errorf("%d delayed messages came, %d were reported as damaged; want 2 and 1", n, serve(b).Stats().Damaged)
		}

		heard := 0
		defer onCheck(b, func(engine.TransactionCheck) bool { heard++; return true })()
		first, _ := consume.ParseTransactionID(sendHalf(t, b, "a").TransactionID)
		elapse(time.Millisecond)
		sendHalf(t, b, "b")
		corruptRecord(t, b, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32([]byte{'h'}, first.Topic), first.Number))
		elapse(10 * time.Second) // the first check is after 6 s
		if heard != 1 {
			t.Errorf("%d checks were received, want that of the valid message", heard)
		}
	})
}

// An automatic dead-letter queue that a group retries through stays while messages wait for their
// retry.
func TestAutomaticQueueThatIsARetryTopicStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		dead, auto, one := "DLA", true, 1
		putAddress(t, b, "t", settings.Address{DeadLetterAddress: &dead, AutoCreateDeadLetterResources: &auto, MaxDeliveryAttempts: &one})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Topic: "DLQ.t"}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("first")})
		if _, err := b.Settle(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "w", Topic: "t"})[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "makes DLQ.t"}); err != nil {
			t.Fatal(err)
		}
		b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "w", Topic: "DLQ.t"}))
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "later", Body: []byte("later")})
		for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) {
			if _, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: 5 * time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) { // the dead letter, from the retry topic
			b.Ack(t.Context(), []*tidegate.Delivery{d})
		}
		elapse(6 * time.Minute)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}); len(ds) != 2 {
			t.Errorf("%d of 2 messages came back", len(ds))
		}
	})
}
