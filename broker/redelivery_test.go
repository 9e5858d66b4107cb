package broker_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

func putAddress(tb testing.TB, b *broker.Broker, match string, s settings.Address) {
	tb.Helper()
	if _, err := b.PutAddressSettings(tb.Context(), match, s); err != nil {
		tb.Fatal(err)
	}
}

// failures receives and fails a message until it is not delivered within a day. It returns the
// times between the deliveries.
func failures(t *testing.T, b *broker.Broker, group, topic string) (waits []time.Duration) {
	t.Helper()
	last := time.Now()
	for range 100 {
		ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Push: true, Wait: 24 * time.Hour})
		if len(ds) == 0 {
			return waits
		}
		waits = append(waits, time.Since(last))
		last = time.Now()
		// The consumer's wish does not count here.
		if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: 7 * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	return waits
}

// Artemis: undelivered messages: "Such a message goes back to its queue ready to be redelivered."
//
// Artemis: undelivered messages: "By default, there is no redelivery delay"
//
// Artemis: undelivered messages: "If a `dead-letter-address` is not specified, messages will
// removed after `max-delivery-attempts` unsuccessful attempts."
func TestRedeliveryByDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "exampleQueue", settings.Topic{})
		putAddress(t, b, "exampleQueue", settings.Address{MaxDeliveryAttempts: new(3)})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", Body: []byte("x")})
		if waits := failures(t, b, "g", "exampleQueue"); !slices.Equal(waits, []time.Duration{0, 0, 0}) {
			t.Errorf("the deliveries came after %v, want three at once", waits)
		}
		g, err := b.Group("g")
		if err != nil {
			t.Fatal(err)
		}
		if s := g.Topics[0]; s.Discarded != 1 || s.DeadLetters != 0 || s.Backlog.Messages != 0 {
			t.Errorf("the group is left with %+v", s)
		}
		if _, err := b.Topic("%DLQ%g"); err == nil {
			t.Error("it became a dead letter of the group")
		}
	})
}

// Artemis: undelivered messages: "Other subsequent messages will be delivery regularly, only the
// cancelled message will be sent asynchronously back to the queue after the delay."
//
// Failures and timeouts alike have the broker's delays, which are those of the document's example.
// Artemis: undelivered messages: "It is possible to delay messages redelivery"
// Artemis: undelivered messages: "If a `redelivery-delay` is specified, Apache ActiveMQ Artemis
// will wait this delay before redelivering the messages"
// Artemis: undelivered messages: "redelivery-delay=5000, redelivery-delay-multiplier=2,
// max-redelivery-delay=15000"
func TestRedeliveryDelaysOneMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "exampleQueue", settings.Topic{Queues: 1})
		putAddress(t, b, "#", settings.Address{
			RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000)),
		})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", ID: "fails", Body: []byte("x")})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", ID: "next", Body: []byte("x")})
		request := transport.ReceiveRequest{Group: "g", Topic: "exampleQueue", Push: true, Wait: time.Hour, InvisibleDuration: time.Second}
		take := func() *tidegate.Delivery {
			t.Helper()
			ds := receive(t, b, request)
			if len(ds) != 1 {
				t.Fatalf("%d deliveries", len(ds))
			}
			return ds[0]
		}
		if _, err := b.Settle(t.Context(), take(), transport.Verdict{Kind: transport.Retry, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		failed := time.Now()
		d := take()
		if d.ID != "next" || time.Since(failed) != 0 {
			t.Fatalf("%s came after %v", d.ID, time.Since(failed))
		}
		b.Ack(t.Context(), []*tidegate.Delivery{d})
		if d = take(); d.ID != "fails" || time.Since(failed) != 5*time.Second {
			t.Errorf("%s came after %v", d.ID, time.Since(failed))
		}
		failed = time.Now()
		if d = take(); d.Attempt != 3 || time.Since(failed) != time.Second+10*time.Second { // it timed out
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(failed))
		}
		// A simple consumer's retry interval is its invisible duration.
		request.Push = false
		failed = time.Now()
		if d = take(); time.Since(failed) != time.Second+15*time.Second {
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(failed))
		}
		failed = time.Now()
		if d = take(); d.Attempt != 5 || time.Since(failed) != time.Second {
			t.Errorf("attempt %d came after %v", d.Attempt, time.Since(failed))
		}
	})
}

// The draw is made once, when the message fails: a restart neither repeats it
// nor moves the due time.
//
// Artemis: undelivered messages: "By randomly padding the redelivery-delay by a small, configurable
// amount"
func TestCollisionsAreAvoided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putAddress(t, b, "t", settings.Address{RedeliveryDelay: new(settings.Milliseconds(100_000)), RedeliveryCollisionAvoidanceFactor: new(0.5)})
		for range 8 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		}
		start := time.Now()
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: 32, InvisibleDuration: time.Second})
		for _, d := range ds[:4] { // the others time out
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(10 * time.Second)
		due := func() (times []time.Duration) {
			page, err := serve(b).Leases("g", "t", status.LeaseQuery{})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page.Leases {
				times = append(times, l.Due.Sub(start))
			}
			slices.Sort(times)
			return times
		}
		before := due()
		if len(slices.Compact(slices.Clone(before))) != 8 || before[0] < 50*time.Second || before[7] > 151*time.Second {
			t.Errorf("the retries are due at %v", before)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		<-time.After(time.Second) // the timeouts are noticed again
		if after := due(); !slices.Equal(before, after) {
			t.Errorf("after a restart they are due at %v, before at %v", after, before)
		}
	})
}
