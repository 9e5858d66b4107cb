package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A send whose context ends during the write is stored nevertheless. Consumers get it and the
// earlier messages.
func TestCancelledSendIsStoredNevertheless(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for range 3 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		}
		release := holdWrites(b)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan transport.SendResult)
		go func() {
			done <- b.Send(ctx, []*tidegate.Message{{ID: "m", Topic: "t", Body: []byte("x")}})[0]
		}()
		synctest.Wait()
		cause := errors.New("enough")
		cancel(cause)
		r := <-done
		e, ok := errors.AsType[*tidegate.Error](r.Err)
		assert.That(t, ok && e.MaybeStored && errors.Is(r.Err, cause), "the send ended with %v", r.Err)
		release()
		synctest.Wait()
		assert.Equal(t, "messages", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10})), 4)
	})
}

// A receive that waits is woken for a message in a queue that the topic got
// meanwhile, even if the message was there before the group's cursor.
func TestNewQueueWakesReceives(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		got := make(chan int)
		go func() { got <- len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour})) }()
		synctest.Wait()
		start := time.Now()
		addToGroups := growQueues(t, b, "t", 2)
		nextQueue(t, b, "t", 1)
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		synctest.Wait()
		s := subscriptions(b)[0]
		h := consume.Handle{Group: s.Group().ID(), Place: store.Place{Topic: s.Topic().ID(), Queue: 1}}
		if err := b.Ack(t.Context(), []*tidegate.Delivery{{Handle: h.String()}})[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
			t.Errorf("a handle of a queue without a cursor: %v", err)
		}
		addToGroups()
		if n := <-got; n != 1 || time.Since(start) != 0 {
			t.Errorf("%d deliveries after %v", n, time.Since(start))
		}
	})
}

// inGroup returns messages of one message group with these IDs, the bodies being the IDs.
func inGroup(group string, ids ...string) (msgs []*tidegate.Message) {
	for _, id := range ids {
		msgs = append(msgs, &tidegate.Message{ID: id, Topic: "t", MessageGroup: group, Body: []byte(id)})
	}
	return msgs
}

// bodiesOf returns the bodies of the messages in topic "t" in their stored order.
func bodiesOf(t *testing.T, b *broker.Broker) string {
	t.Helper()
	var got []string
	for _, d := range receiveAll(t, b, "t") {
		got = append(got, string(d.Body))
	}
	return strings.Join(got, " ")
}

// A suspicion that turns out wrong does not let those behind the suspect in
// its message group pass it.
func TestWrongSuspicionKeepsTheOrder(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
		mustSend(t, b, inGroup("g", "m1")...)
		time.Sleep(3 * time.Minute) // its ID is not forgotten yet, and its window is over
		msgs := append(inGroup("g", "m1", "m2"), inGroup("h", "n1")...)
		msgs = append(msgs, inGroup("g", "m3", "m2")...)
		rs := b.Send(t.Context(), msgs)
		for i, r := range rs {
			assert.That(t, r.Err == nil, "message %d: %v", i, r.Err)
		}
		assert.That(t, rs[4] == rs[1] && rs[0].Receipt.Offset != 0, "results: %+v", rs)
		// Another group need not wait.
		if got, want := bodiesOf(t, b), "m1 n1 m1 m2 m3"; got != want {
			t.Errorf("stored %s, want %s", got, want)
		}
	})
}

// If a message of a message group is rejected temporarily, the later messages of the group are
// rejected too.
func TestRejectionKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options broker.Options
		rate    settings.Rate
		limit   string
	}{
		"rate of bytes": {rate: settings.Rate{BytesPerSecond: 200}, limit: engine.TopicRateBytes},
		"client quota":  {options: broker.Options{ClientQuota: settings.Quota{MessagesPerSecond: 10, Burst: 2}}, limit: engine.ClientQuota},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, c.options)
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, MaxRate: c.rate})
			from := func(client string, m *tidegate.Message) engine.Incoming {
				return engine.Incoming{Message: m, Client: client}
			}
			ms := append(inGroup("g", "m1", "m2", "m3", "m4"), inGroup("h", "n1")...)
			ms[2].Body = make([]byte, 150)
			in := []engine.Incoming{from("c", ms[0]), from("c", ms[1]), from("c", ms[2]), from("", ms[3]), from("", ms[4])}
			in[1].Message.Body = make([]byte, 100)
			rs := serve(b).Append(t.Context(), in)
			for i, refused := range []bool{false, false, true, true, false} {
				if errors.Is(rs[i].Err, tidegate.ErrThrottled) != refused || !refused && rs[i].Err != nil {
					t.Errorf("message %d: %v", i, rs[i].Err)
				}
			}
			if fmt.Sprint(rs[2].Err) != fmt.Sprint(rs[3].Err) {
				t.Errorf("the reasons: %v, %v", rs[2].Err, rs[3].Err)
			}
			assert.Equal(t, "are counted", serve(b).Stats().Throttled[c.limit], 2)
			// A message is rejected only while an earlier message of its group is rejected.
			time.Sleep(time.Second)
			if rs := serve(b).Append(t.Context(), in[2:4]); rs[0].Err != nil || rs[1].Err != nil {
				t.Errorf("a second later: %+v", rs)
			}
			ds := receiveAll(t, b, "t")
			assert.That(t, len(ds) == 5 && ds[3].ID == "m3" && ds[4].ID == "m4", "stored: %+v", ds)
		})
	}
}

// A message has left its remembered place, and its new place is unknown. A message with the same ID
// is stored, and the send does not loop.
func TestRememberedPlaceThatIsEmpty(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		window := func(d time.Duration) {
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1, DuplicateWindow: settings.Duration(d)})
		}
		send := func() tidegate.Receipt {
			r := b.Send(t.Context(), []*tidegate.Message{{ID: "x", Topic: "t", DeliverAt: time.Now().Add(10 * time.Second), Body: []byte("x")}})[0]
			assert.Must(t, r.Err)
			return r.Receipt
		}
		window(2 * time.Minute)
		first := send()
		assert.Equal(t, "repeated:, first", send(), first)
		assert.Equal(t, "duplicates are counted", serve(b).Stats().Topics[0].Duplicates, 1)
		window(-1)
		elapse(11 * time.Second) // it is moved
		window(2 * time.Minute)
		send()
		elapse(11 * time.Second)

		// A place that was left without a note, as that of a corrupt message.
		rememberID(t, b, "t", "x", engine.PendingLocation{Due: time.Now().UnixNano(), Offset: 7})
		send()
		elapse(11 * time.Second)
		assert.Equal(t, "are stored", stored(t, b, "t"), 3)
	})
}

// The messages of one request without a message group share a queue of their topic. Requests take
// the queues in turn. A message group has one queue always.
func TestRequestsTakeTheQueuesInTurn(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		const queues = 4
		for _, name := range []string{"t", "u"} {
			assert.Must(t, assert.Err(b.PutTopic(t.Context(), name, settings.Topic{Queues: queues})))
		}
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), "fifo", settings.Topic{Queues: queues, Type: settings.TopicFIFO})))
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
				assert.Must(t, r.Err)
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
				assert.That(t, by[q] == requests/queues*messages,
					"topic %s: messages by queue %v; want as many in each of %d", topic, by, queues)
			}
		}
	})
}

func TestTopicRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		rate     settings.Rate
		size     int
		least    int // accepted in ten seconds
		most     int
		waitMost time.Duration
		says     string
	}{
		{"messages", settings.Rate{MessagesPerSecond: 10, Burst: 5}, 1, 100, 105, 100 * time.Millisecond, `topic rate messages of "t" is`},
		{"messages, default burst", settings.Rate{MessagesPerSecond: 10}, 1, 105, 110, 100 * time.Millisecond, "the limit is 10 messages/s"},
		{"bytes", settings.Rate{BytesPerSecond: 1000}, 100, 105, 110, 100 * time.Millisecond, `topic rate bytes of "t" is`},
		{"a message above a second's bytes", settings.Rate{BytesPerSecond: 50}, 100, 5, 6, 2 * time.Second, "the limit is 50 bytes/s"},
		{"both", settings.Rate{MessagesPerSecond: 1000, BytesPerSecond: 1000}, 100, 105, 110, 100 * time.Millisecond, "raise the topic's max_rate"},
	} {
		subtest(t, c.name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{MaxRate: c.rate})
			accepted := 0
			for range 2000 {
				r := send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, c.size)})[0]
				if r.Err == nil {
					accepted++
				} else if e, ok := errors.AsType[*tidegate.Error](r.Err); !ok || !errors.Is(r.Err, tidegate.ErrThrottled) || e.RetryAfter <= 0 || e.RetryAfter > c.waitMost {
					t.Fatalf("the refusal is %#v", r.Err)
				} else if !strings.Contains(r.Err.Error(), c.says) {
					t.Fatalf("the text does not contain %q: %v", c.says, r.Err)
				}
				time.Sleep(5 * time.Millisecond)
			}
			assert.That(t, accepted >= c.least && accepted <= c.most, "%d accepted in 10 s, want %d to %d", accepted, c.least, c.most)
			ths := b.Throttles()
			assert.That(t, len(ths) != 0 && ths[0].Since.IsZero() != ths[0].On, "throttles: %+v", ths)
			time.Sleep(time.Minute)
			for _, th := range b.Throttles() {
				assert.That(t, !th.On, "after a minute it throttles: %+v", th)
			}
			putTopic(t, b, "t", settings.Topic{}) // lifted while running
			for range 100 {
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, c.size)})
			}
		})
	}
}

// A new limit begins with its whole burst, with any sends or debts before it.
func TestRateThatIsSetAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, meanwhile, again settings.Rate }{
		"messages while bytes are limited": {settings.Rate{MessagesPerSecond: 100, BytesPerSecond: 1e9}, settings.Rate{BytesPerSecond: 1e9}, settings.Rate{MessagesPerSecond: 100}},
		"bytes while messages are limited": {settings.Rate{MessagesPerSecond: 1e9, BytesPerSecond: 100}, settings.Rate{MessagesPerSecond: 1e9}, settings.Rate{BytesPerSecond: 100}},
		"no limit meanwhile":               {settings.Rate{BytesPerSecond: 0.5}, settings.Rate{}, settings.Rate{BytesPerSecond: 0.5}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			put := func(r settings.Rate) { putTopic(t, b, "t", settings.Topic{MaxRate: r, DuplicateWindow: -1}) }
			put(c.first)
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 50)})
			put(c.meanwhile)
			msgs := make([]*tidegate.Message, 1000)
			for i := range msgs {
				msgs[i] = &tidegate.Message{Topic: "t", Body: make([]byte, 50)}
			}
			for range 3 {
				mustSend(t, b, msgs...)
				time.Sleep(time.Second)
			}
			put(c.again)
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 50)})
		})
	}
}

// RocketMQ: sending retry and throttling: "Throttling: throttling triggered by excessive traffic"
func TestClientQuota(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{ClientQuota: settings.Quota{MessagesPerSecond: 10, Burst: 5}})
		putTopic(t, b, "t", settings.Topic{})
		send := func(client string) error {
			return serve(b).Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}, Client: client}})[0].Err
		}
		accepted := 0
		var refusal error
		for range 100 { // 10 s of 10 a second, tried twice as often
			if err := send("greedy"); err == nil {
				accepted++
			} else {
				refusal = err
			}
			<-time.After(50 * time.Millisecond)
		}
		assert.That(t, accepted >= 50 && accepted <= 55, "%d accepted in 5 s, want 50 to 55", accepted)
		e, ok := errors.AsType[*tidegate.Error](refusal)
		assert.That(t, ok && errors.Is(refusal, tidegate.ErrThrottled) && e.RetryAfter > 0 && e.RetryAfter <= 100*time.Millisecond,
			"the refusal is %#v", refusal)
		assert.Contains(t, "the error", fmt.Sprint(refusal), "530 TOO_MANY_REQUESTS", `"greedy"`, "10 messages a second", "burst 5")
		for _, client := range []string{"modest", ""} {
			assert.NoError(t, send(client), "client %q", client)
		}
	})
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	_, err := broker.Open(broker.Options{
		MaxBacklog: settings.Limit{Messages: -1}, ClientQuota: settings.Quota{MessagesPerSecond: math.NaN()}, MaxBodySize: -1,
		MinInvisibleDuration: time.Hour, MaxInvisibleDuration: time.Minute, CacheBytes: -1,
	})
	assert.MustThat(t, err != nil, "it was opened")
	for _, w := range []string{"MaxBacklog", "ClientQuota", "MaxBodySize is -1", "MinInvisibleDuration is 1h0m0s", "CacheBytes is -1"} {
		assert.That(t, strings.Contains(err.Error(), w), "the error does not contain %q: %v", w, err)
	}
}

// The default backlog limit and the quota change while in use, and a bad one
// changes nothing.
func TestLimitsChangeInUse(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{})
	send := func() error {
		return serve(b).Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}, Client: "c"}})[0].Err
	}
	for i, c := range []struct {
		limit   settings.Limit
		quota   settings.Quota
		refused bool
	}{
		{settings.Limit{}, settings.Quota{}, false},
		{settings.Limit{Messages: 1}, settings.Quota{}, true},
		{settings.Limit{}, settings.Quota{MessagesPerSecond: 1e-3}, false},
		{settings.Limit{}, settings.Quota{MessagesPerSecond: 1e-3, Burst: 1}, false},
		{settings.Limit{Messages: 100}, settings.Quota{}, false},
	} {
		assert.Must(t, b.SetLimits(t.Context(), settings.Limits{MaxBacklog: c.limit, ClientQuota: c.quota}))
		if b.SetLimits(t.Context(), settings.Limits{MaxBacklog: settings.Limit{Bytes: -1}}) == nil || b.SetLimits(t.Context(), settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: -1}}) == nil {
			t.Error("a negative limit was accepted")
		}
		err := send()
		assert.That(t, errors.Is(err, tidegate.ErrThrottled) == c.refused, "step %d: %v", i, err)
		if c.quota != (settings.Quota{}) {
			err := send()
			assert.That(t, errors.Is(err, tidegate.ErrThrottled), "step %d: beyond the quota: %v", i, err)
		}
	}
}
