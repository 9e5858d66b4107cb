package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A snoozed message is redelivered after its time with the same attempt number, any number of
// times. This also holds after a restart, and if the maximum of attempts is lower by then.
func TestSnooze(t *testing.T) {
	for _, push := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
			r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute, Wait: time.Hour, Push: push}
			receive := func() *tidegate.Delivery {
				t.Helper()
				ds, err := b.Receive(t.Context(), r)
				if err != nil || len(ds) != 1 {
					t.Fatal(ds, err)
				}
				return ds[0]
			}
			if _, err := b.Settle(t.Context(), receive(), transport.Verdict{Kind: transport.Retry}); err != nil {
				t.Fatal(err)
			}
			d := receive() // the last attempt
			for i := range 10 {
				dur := time.Duration(i*i) * 7 * time.Second
				asked := time.Now()
				if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: dur}); err != nil {
					t.Fatal(err)
				}
				for name, err := range map[string]error{
					"Ack": b.Ack(t.Context(), []*tidegate.Delivery{d})[0], "Snooze": second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze})),
					"DeadLetter": second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})),
				} {
					if !errors.Is(err, tidegate.ErrInvalidHandle) {
						t.Errorf("%s of a delivery that was snoozed: %v", name, err)
					}
				}
				switch i {
				case 4:
					if err := b.Close(); err != nil {
						t.Fatal(err)
					}
					b = open(t, broker.Options{Dir: "data"}.On(fs))
				case 6:
					putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
				}
				if d = receive(); d.ID != "m" || d.Attempt != 2 || time.Since(asked) != dur {
					t.Fatalf("%s, attempt %d, came after %v, want attempt 2 after %v", d.ID, d.Attempt, time.Since(asked), dur)
				}
			}
			if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
				t.Fatal(err)
			}
			if g, err := b.Group("g"); err != nil || g.Topics[0].Backlog.Messages != 0 || g.Topics[0].DeadLetters != 0 {
				t.Errorf("the group has %+v, %v", g.Topics, err)
			}
		})
	}
}

// A message group waits for its message that is snoozed; others continue.
func TestSnoozeKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
		putGroup(t, b, "g", settings.Group{FIFO: true})
		for _, id := range []string{"a1", "a2", "b1"} {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: id, MessageGroup: id[:1], Body: []byte("x")})
		}
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Hour, Wait: time.Hour}
		began := time.Now()
		var got string
		for i := range 4 {
			ds, err := b.Receive(t.Context(), r)
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			got += fmt.Sprint(ds[0].ID, "@", time.Since(began), " ")
			if i == 0 {
				_, err = b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Snooze, Delay: time.Minute})
			} else {
				err = b.Ack(t.Context(), ds)[0]
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if want := "a1@0s b1@0s a1@1m0s a2@1m0s "; got != want {
			t.Errorf("received %s, want %s", got, want)
		}
	})
}

func TestSnoozeBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := one(t, b, "g", "t")
		for _, dur := range []time.Duration{-1, broker.DefaultMaxInvisibleDuration + 1} {
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: dur}); codeOf(err) != tidegate.CodeIllegalInvisibleTime {
				t.Errorf("%v: %v", dur, err)
			}
		}
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: broker.DefaultMaxInvisibleDuration}); err != nil {
			t.Error(err)
		}
	})
}
