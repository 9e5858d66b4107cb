package broker_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// openData returns a broker on a file system in memory, and that.
func openData(t *testing.T) (*broker.Broker, *vfs.MemFS) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	return open(t, broker.Options{Dir: "data"}.On(fs)), fs
}

// The error names all faults, each with its field and value.
func TestAddressSettingsValidation(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	_, err := b.PutAddressSettings(t.Context(), "a..b", settings.Address{
		RedeliveryDelay: new(settings.Milliseconds(-1)), MaxRedeliveryDelay: new(settings.Milliseconds(settings.MaxDuration/time.Millisecond) + 1), ExpiryDelay: new(settings.Milliseconds(-2)),
		RedeliveryDelayMultiplier: new(math.Inf(1)), RedeliveryCollisionAvoidanceFactor: new(1.01), MaxDeliveryAttempts: new(0),
		DeadLetterAddress: new("a b"), ExpiryAddress: new("TBW102"), DeadLetterQueuePrefix: new("?"),
	})
	assert.That(t, errors.Is(err, tidegate.ErrInvalid), "it is not a bad request: %v", err)
	for _, want := range []string{
		`"a..b"`, "redelivery-delay is -1", "max-redelivery-delay is 3153600000001", "expiry-delay is -2", "redelivery-delay-multiplier is +Inf",
		"redelivery-collision-avoidance-factor is 1.01; give 0.0 to 1.0", "max-delivery-attempts is 0", `dead-letter-address is "a b"`,
		`expiry-address is "TBW102"`, `dead-letter-queue-prefix is "?"`,
	} {
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "the error does not contain %q: %v", want, err)
	}
	assert.Equal(t, "the invalid settings were stored", len(b.AllAddressSettings()), 0)
	if err := (settings.Address{RedeliveryDelayMultiplier: new(math.NaN()), RedeliveryCollisionAvoidanceFactor: new(math.NaN())}).Validate(); err == nil {
		t.Error("NaN is legal")
	}
}

// Artemis: undelivered messages: "A `dead letter address` can be set globally for a set of matching
// addresses and you can set `max-delivery-attempts` to -1 for a specific address setting to allow
// infinite redeliveries only for this address."
// Artemis: undelivered messages: "Address wildcards can be used to configure dead letter settings
// for a set of addresses"
// Artemis: undelivered messages: "you don't have to specify redelivery delay individually for each
// address"
func TestAddressSettingsInherit(t *testing.T) {
	t.Parallel()
	b, fs := openData(t)
	putTopic(t, b, "before.it", settings.Topic{})
	putAddress(t, b, "#", settings.Address{DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(3)})
	putAddress(t, b, "before.*", settings.Address{MaxDeliveryAttempts: new(-1)})
	putTopic(t, b, "after", settings.Topic{})
	check := func(topic string, attempts int, matches ...string) {
		t.Helper()
		if r := topicOf(t, b, topic).Address().Redelivery; r.MaxAttempts != attempts || r.DeadLetter != "DLA" {
			t.Errorf("%s: %+v", topic, r)
		}
		if got := b.TopicAddressSettings(topic).Matches; !slices.Equal(got, matches) {
			t.Errorf("%s is matched by %q, want %q", topic, got, matches)
		}
	}
	check("before.it", -1, "before.*", "#")
	check("after", 3, "#")
	b = reopen(t, b, fs)
	check("before.it", -1, "before.*", "#")
	assert.Must(t, b.DeleteAddressSettings(t.Context(), "before.*"))
	check("before.it", 3, "#")
	assert.Is(t, "deleting it again", b.DeleteAddressSettings(t.Context(), "before.*"), tidegate.ErrNotFound)
	assert.Is(t, "reading it", assert.Err(b.AddressSettings("before.*")), tidegate.ErrNotFound)
}

// Only this broker permits a topic with '.' in its name. A request for such a topic that does not
// exist fails as on RocketMQ.
func TestTopicNamesOfWords(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	var e *tidegate.Error
	if err := send(t, b, &tidegate.Message{Topic: "orders.eu", Body: []byte("x")})[0].Err; !errors.As(err, &e) || e.Code != protocol.CodeIllegalTopic {
		t.Errorf("before it exists: %v", err)
	}
	putTopic(t, b, "orders.eu", settings.Topic{})
	mustSend(t, b, &tidegate.Message{Topic: "orders.eu", Body: []byte("x")})
}

// Artemis: undelivered messages: "Once the messages have been unsuccessfully delivered for a given
// number of attempts, they are removed from their queue and sent to the relevant dead letter
// address. These *dead letter* messages can later be consumed from the dead letter address for
// further inspection."
//
// Artemis: undelivered messages: "Dead letter messages get [special properties]"
//
// Artemis: undelivered messages: "it's `false` by default"
// Artemis: undelivered messages: "after a specified number of unsuccessful deliveries, messages are
// removed from their queue and sent to the dead letter address. These messages will not be
// delivered again from this queue"
// Artemis: undelivered messages: "undelivered messages in exampleQueue will be sent to the dead
// letter address deadLetterQueue after 3 unsuccessful delivery attempts"
func TestDeadLetterAddress(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "exampleQueue", settings.Topic{Queues: 1})
		putAddress(t, b, "exampleQueue", settings.Address{DeadLetterAddress: new("deadLetterAddress"), MaxDeliveryAttempts: new(3)})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", ID: "m", Body: []byte("x"), Properties: map[string]string{"k": "v"}})
		assert.Equal(t, "deliveries", len(failures(t, b, "g", "exampleQueue")), 3)
		ds := receiveAll(t, b, "deadLetterAddress")
		assert.MustEqual(t, "dead letters", len(ds), 1)
		for k, want := range map[string]string{
			"_AMQ_ORIG_ADDRESS": "exampleQueue", "_AMQ_ORIG_QUEUE": "g", "_AMQ_ORIG_MESSAGE_ID": "m", "k": "v",
			protocol.PropertyDeadLetterTopic: "exampleQueue", protocol.PropertyDeadLetterAttempts: "3", protocol.PropertyDeadLetterOffset: "0",
		} {
			if got := ds[0].Properties[k]; got != want {
				t.Errorf("%s is %q, want %q", k, got, want)
			}
		}
		assert.Equal(t, "it is still in its queue", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "exampleQueue"})), 0)
		assert.That(t, assert.Err(b.Topic("DLQ.exampleQueue")) != nil, "auto-create-dead-letter-resources is off, and a queue was created")
	})
}

// Artemis: undelivered messages: "The `address` created will be the one defined by the
// `dead-letter-address`. A `MULTICAST` `queue` will be created on that `address`. It will be named
// by the `address` to which the message was previously sent, and it will have a filter defined
// using the property `_AMQ_ORIG_ADDRESS` so that it will only receive messages sent to the relevant
// `address`. The `queue` name can be configured with a prefix and suffix."
//
// Artemis: undelivered messages: "The queue holding the undeliverable messages can be accessed
// directly"
// Artemis: undelivered messages: "the broker will create the `address` and `queue` to deal with the
// undelivered messages automatically"
// Artemis: undelivered messages: "`dead-letter-queue-prefix`|`DLQ.`"
func TestAutoCreateDeadLetterResources(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putAddress(t, b, "#", settings.Address{
			DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(3), AutoCreateDeadLetterResources: new(true),
		})
		putAddress(t, b, "orders", settings.Address{DeadLetterQueuePrefix: new(""), DeadLetterQueueSuffix: new(".DLQ")})
		for _, topic := range []string{"stocks", "orders"} {
			putTopic(t, b, topic, settings.Topic{})
			mustSend(t, b, &tidegate.Message{Topic: topic, ID: topic, Body: []byte("x")})
			failures(t, b, "g", topic)
		}
		for topic, want := range map[string][]string{"DLA": {"orders", "stocks"}, "DLQ.stocks": {"stocks"}, "orders.DLQ": {"orders"}} {
			var got []string
			for _, d := range receiveAll(t, b, topic) {
				got = append(got, d.ID)
				assert.That(t, d.Properties["_AMQ_ORIG_ADDRESS"] == d.ID, "%s: %q", topic, d.Properties)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s has %q, want %q", topic, got, want)
			}
		}
		// A dead letter that fails is not sent to its own dead-letter queue again.
		assert.Equal(t, "deliveries of the dead letter", len(failures(t, b, "g2", "DLQ.stocks")), 3)
		assert.Equal(t, "dead letters of it", len(receiveAll(t, b, "%DLQ%g2")), 1)
	})
}

// Artemis: undelivered messages: "the queue is auto-created which means it will be auto-deleted as
// per the relevant `address-settings`."
func TestAutomaticQueuesAreDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "orders", settings.Topic{})
		putAddress(t, b, "#", settings.Address{
			DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(1), AutoCreateDeadLetterResources: new(true),
		})
		fail := func() {
			t.Helper()
			mustSend(t, b, &tidegate.Message{Topic: "orders", Body: []byte("x")})
			settle(t, b, one(t, b, "g", "orders"), transport.Verdict{Kind: transport.Retry})
		}
		after := func(d time.Duration, there bool) {
			t.Helper()
			elapse(d)
			topic, err := b.Topic("DLQ.orders")
			assert.MustThat(t, (err == nil) == there && (!there || topic.AutoCreated), "the queue exists: %t; %+v", err == nil, topic)
			assert.NoError(t, assert.Err(b.Topic("DLA")), "the dead-letter-address is gone")
		}
		is := func(there bool) { t.Helper(); after(2*time.Minute, there) }
		ack := func() {
			t.Helper()
			assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{one(t, b, "ops", "DLQ.orders")})[0])
		}
		fail()
		fail()
		is(true)
		ack()
		is(true) // one is left
		b = reopen(t, b, fs)
		is(true)
		putAddress(t, b, "DLQ.#", settings.Address{AutoDeleteQueues: new(false)})
		ack()
		is(true)
		assert.Must(t, b.DeleteAddressSettings(t.Context(), "DLQ.#"))
		done := make(chan struct{})
		go func() { // a consumer that waits
			defer close(done)
			for range 10 {
				_, _ = b.Receive(t.Context(), transport.ReceiveRequest{Group: "ops", Topic: "DLQ.orders", Queue: transport.AnyQueue, Wait: time.Minute, InvisibleDuration: time.Minute})
			}
		}()
		is(true)
		<-done
		is(false)
		fail() // created again
		time.Sleep(45 * time.Second)
		ack()
		after(45*time.Second-1, true) // it is looked at after 60 s, when the last receive was 15 s ago,
		after(1, false)               // and after 90 s
		fail()
		putTopic(t, b, "DLQ.orders", settings.Topic{}) // now it is permanent
		ack()
		<-time.After(time.Hour)
		topic, err := b.Topic("DLQ.orders")
		assert.That(t, err == nil && !topic.AutoCreated, "a queue that was put is %+v, %v", topic, err)
	})
}

// Artemis: undelivered messages: "in the event of a server crash, messages might have been
// delivered but that will not have been reflected in the delivery count."
//
// Artemis: undelivered messages: "To enable it, set `persist-delivery-count-before-delivery` to
// `true`"
// Artemis: undelivered messages: "the server will not have knowledge of that and will deliver the
// message with `redelivered` set to `false` while it should be `true`"
// Artemis: undelivered messages: "allows to persist delivery count before message delivery but this
// feature is disabled by default"
func TestPersistDeliveryCountBeforeDelivery(t *testing.T) {
	t.Parallel()
	for _, persist := range []*bool{nil, new(false), new(true)} {
		synctest.Test(t, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{})
			putAddress(t, b, "t", settings.Address{PersistDeliveryCountBeforeDelivery: persist})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Second})
			// The power fails at once: all unsynced data is lost.
			b = open(t, broker.Options{Dir: "data"}.On(fs.CrashClone(vfs.CrashCloneCfg{})))
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Minute})[0]
			on := persist != nil && *persist
			if want := map[bool]int{true: 2, false: 1}[on]; d.Attempt != want {
				t.Errorf("persist %t: after the crash it is attempt %d, want %d", on, d.Attempt, want)
			}
		})
	}
}

// A message older than expiry-delay goes to the expiry-address instead of a
// consumer, new or due again.
func TestExpiry(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(60_000)), ExpiryAddress: new("expired")})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "tried", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: 32}
		settle(t, b, receive(t, b, r)[0], transport.Verdict{Kind: transport.Retry, Delay: time.Second})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "untried", Body: []byte("x")})
		<-time.After(time.Minute)
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "young", Body: []byte("x")})
		r.Wait = time.Second
		ds := receive(t, b, r)
		assert.MustThat(t, len(ds) == 1 && ds[0].ID == "young", "%d deliveries", len(ds))
		start := time.Now()
		if ds := receive(t, b, r); len(ds) != 0 || time.Since(start) != time.Second {
			t.Errorf("%d more deliveries after %v: old messages ended the wait", len(ds), time.Since(start))
		}
		ids := map[string]bool{}
		for _, d := range receiveAll(t, b, "expired") {
			ids[d.ID] = d.Properties["_AMQ_ORIG_ADDRESS"] == "t" && d.Properties["_AMQ_ACTUAL_EXPIRY"] != ""
			if _, dead := d.DeadLetter(); !dead {
				t.Error("the message has no origin")
			}
		}
		assert.That(t, len(ids) == 2 && ids["tried"] && ids["untried"], "expired are %v", ids)
		g, err := b.Group("g")
		assert.That(t, err == nil && g.Topics[0].Expired == 2 && g.Topics[0].Backlog.Messages == 1, "the group has %+v, %v", g.Topics, err)
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(1000))}) // and no address
		<-time.After(time.Minute)
		assert.Equal(t, "deliveries", len(receive(t, b, r)), 0)
		assert.Equal(t, "messages in the old expiry-address", len(receiveAll(t, b, "expired")), 2)
	})
}

// Several topics have the most attempts of all, and the retry schedule of all if they share it.
func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	for _, name := range []string{"plain", "slow", "slow2", "ever"} {
		putTopic(t, b, name, settings.Topic{})
	}
	slow := settings.Address{RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000))}
	putAddress(t, b, "slow", slow)
	putAddress(t, b, "slow2", slow)
	putAddress(t, b, "ever", settings.Address{MaxDeliveryAttempts: new(-1)})
	ladder, steps := backoff.RetryLadder(), backoff.Steps{5 * time.Second, 10 * time.Second, 15 * time.Second}
	for _, c := range []struct {
		topics []string
		want   engine.RetryPolicy
	}{
		{nil, engine.RetryPolicy{MaxAttempts: 17, Ladder: ladder}},
		{[]string{"plain", "not there"}, engine.RetryPolicy{MaxAttempts: 17, Ladder: ladder}},
		{[]string{"slow"}, engine.RetryPolicy{MaxAttempts: 10, Ladder: steps}},
		{[]string{"slow", "slow2"}, engine.RetryPolicy{MaxAttempts: 10, Ladder: steps}},
		{[]string{"slow", "plain"}, engine.RetryPolicy{MaxAttempts: 17, Ladder: ladder}},
		{[]string{"slow", "ever"}, engine.RetryPolicy{MaxAttempts: -1, Ladder: ladder}},
		{[]string{"ever"}, engine.RetryPolicy{MaxAttempts: -1, Ladder: backoff.Steps{0}}},
	} {
		got := serve(b).RetryPolicy(settings.Group{}, c.topics...)
		assert.That(t, got.MaxAttempts == c.want.MaxAttempts && slices.Equal(got.Ladder, c.want.Ladder),
			"%q: %+v, want %+v", c.topics, got, c.want)
	}
}

func putAddress(tb testing.TB, b *broker.Broker, match string, s settings.Address) {
	tb.Helper()
	assert.Must(tb, assert.Err(b.PutAddressSettings(tb.Context(), match, s)))
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
		settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: 7 * time.Minute})
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
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "exampleQueue", settings.Topic{})
		putAddress(t, b, "exampleQueue", settings.Address{MaxDeliveryAttempts: new(3)})
		mustSend(t, b, &tidegate.Message{Topic: "exampleQueue", Body: []byte("x")})
		assert.Slices(t, "the deliveries came after", failures(t, b, "g", "exampleQueue"), []time.Duration{0, 0, 0})
		g := assert.Value(b.Group("g"))(t)
		if s := g.Topics[0]; s.Discarded != 1 || s.DeadLetters != 0 || s.Backlog.Messages != 0 {
			t.Errorf("the group is left with %+v", s)
		}
		assert.That(t, assert.Err(b.Topic("%DLQ%g")) != nil, "it became a dead letter of the group")
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
	inMemory(t, func(t *testing.T, b *broker.Broker) {
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
			assert.MustEqual(t, "deliveries", len(ds), 1)
			return ds[0]
		}
		settle(t, b, take(), transport.Verdict{Kind: transport.Retry, Delay: time.Hour})
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
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putAddress(t, b, "t", settings.Address{RedeliveryDelay: new(settings.Milliseconds(100_000)), RedeliveryCollisionAvoidanceFactor: new(0.5)})
		for range 8 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		}
		start := time.Now()
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Max: 32, InvisibleDuration: time.Second})
		for _, d := range ds[:4] { // the others time out
			settle(t, b, d, transport.Verdict{Kind: transport.Retry})
		}
		<-time.After(10 * time.Second)
		due := func() (times []time.Duration) {
			page := assert.Value(serve(b).Leases("g", "t", status.LeaseQuery{}))(t)
			for _, l := range page.Leases {
				times = append(times, l.Due.Sub(start))
			}
			slices.Sort(times)
			return times
		}
		before := due()
		assert.That(t, len(slices.Compact(slices.Clone(before))) == 8 && before[0] >= 50*time.Second && before[7] <= 151*time.Second,
			"the retries are due at %v", before)
		b = reopen(t, b, fs)
		<-time.After(time.Second) // the timeouts are noticed again
		after := due()
		assert.That(t, slices.Equal(before, after), "after a restart they are due at %v, before at %v", after, before)
	})
}
