package broker_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
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
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
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

// storedAt is a sent message with the place in its receipt and the time of the send.
type storedAt struct {
	*tidegate.Message
	queue  int
	offset int64
	at     time.Time
}

// wanted is the selection by looking at each message.
func wanted(all []storedAt, q status.MessageQuery) (ids []string) {
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b storedAt) int {
		n := cmp.Or(a.at.Compare(b.at), cmp.Compare(a.queue, b.queue))
		if q.Newest {
			return -a.at.Compare(b.at)
		}
		return n
	})
	for _, m := range list {
		keep := (q.Queue == nil || *q.Queue == m.queue) && (q.Offset == nil || m.offset == *q.Offset || m.offset > *q.Offset != q.Newest) && (q.Since.IsZero() || !m.at.Before(q.Since)) && (q.Before.IsZero() || m.at.Before(q.Before)) &&
			(q.ID == "" || q.ID == m.ID) && (q.Tag == "" || q.Tag == m.Tag) && (q.Key == "" || slices.Contains(m.Keys, q.Key)) &&
			bytes.Contains(m.Body, []byte(q.Contains)) && (q.Properties == nil || m.Properties["colour"] == q.Properties["colour"])
		if keep {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// Each query returns the messages that a look at all of them selects, with any size of pages and
// any places of the messages.
func TestMessagesByModel(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		r := rand.New(rand.NewPCG(1, 2))
		var all []storedAt
		pick := func(words ...string) string { return words[r.IntN(len(words))] }
		for i := range 300 {
			time.Sleep(time.Second)
			m := &tidegate.Message{
				Topic: "t", ID: fmt.Sprint("id", i), Tag: pick("", "a", "b"), Keys: []string{pick("k1", "k2")},
				Properties: map[string]string{"colour": pick("red", "green")}, Body: []byte(pick("apple", "pear", "grapefruit")),
			}
			res := send(t, b, m)
			all = append(all, storedAt{m, res[0].Receipt.Queue, res[0].Receipt.Offset, time.Now()})
		}
		for range 200 {
			q := status.MessageQuery{Newest: r.IntN(2) == 0, Limit: 1 + r.IntN(40), Contents: r.IntN(2) == 0}
			for range r.IntN(3) {
				switch r.IntN(8) {
				case 7:
					q.Queue, q.Offset = new(r.IntN(3)), new(r.Int64N(120))
				case 0:
					q.Queue = new(r.IntN(3))
				case 1:
					q.Tag = pick("a", "b")
				case 2:
					q.Key = pick("k1", "k2")
				case 3:
					q.Contains = pick("ap", "pear", "nut")
				case 4:
					q.Since = all[r.IntN(300)].at
				case 5:
					q.Before = all[r.IntN(300)].at
				case 6:
					q.Properties = map[string]string{"colour": "red"}
				}
			}
			want := wanted(all, q)
			var got []string
			for {
				page, err := serve(b).Messages("t", q, 0)
				assert.MustThat(t, err == nil, "%+v: %v", q, err)
				for _, m := range page.Messages {
					got = append(got, m.ID)
					assert.MustThat(t, (m.Body != nil) == q.Contents && (m.Keys != nil) == q.Contents,
						"the contents of %s: %q, want them: %v", m.ID, m.Body, q.Contents)
				}
				assert.MustThat(t, page.Complete == (page.Next == "") && (!page.Complete || page.Left == 0),
					"complete %v, next %q, left %d", page.Complete, page.Next, page.Left)
				if page.Complete {
					break
				}
				q.After = page.Next
			}
			assert.MustThat(t, slices.Equal(got, want), "%+v:\n%v\nwant\n%v", q, got, want)
		}
	})
}

// A look is no delivery: the group that receives afterwards gets attempt 1 of each message, and a
// message in flight stays with its consumer.
func TestMessagesDeliversNothing(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "1", Body: []byte("x")}, &tidegate.Message{Topic: "t", ID: "2", Body: []byte("y")})
		first := one(t, b, "g", "t")
		before := assert.Value(b.Group("g"))(t)
		for range 3 {
			page, err := serve(b).Messages("t", status.MessageQuery{Contents: true}, 0)
			assert.MustThat(t, err == nil && len(page.Messages) == 2, "%d messages, %v", len(page.Messages), err)
		}
		if after, _ := b.Group("g"); !reflect.DeepEqual(after, before) {
			t.Errorf("the group changed:\n%+v\n%+v", before, after)
		}
		assert.NoError(t, errors.Join(b.Ack(t.Context(), []*tidegate.Delivery{first})...))
		if d := one(t, b, "g", "t"); d.ID != "2" || d.Attempt != 1 {
			t.Errorf("the next delivery is attempt %d of %s", d.Attempt, d.ID)
		}
	})
}

// A call looks at 10 000 messages at most, reports this, and the next call continues there. One
// message larger than the page is returned alone.
func TestMessagesBounds(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	sendN(t, b, "t", 10_500, 1)
	page, err := serve(b).Messages("t", status.MessageQuery{MessageFilter: status.MessageFilter{Tag: "none"}}, 0)
	assert.MustThat(t, err == nil && !page.Complete && page.Scanned != 0 && page.Scanned <= 10_000 && page.Scanned+page.Left == 10_500,
		"the first call: %+v, %v", page, err)
	total := page.Scanned
	for n := 0; !page.Complete; n++ {
		if page, err = serve(b).Messages("t", status.MessageQuery{MessageFilter: status.MessageFilter{Tag: "none"}, After: page.Next}, 0); err != nil || n > 1000 {
			t.Fatal(n, err)
		}
		total += page.Scanned
	}
	assert.Equal(t, "messages were scanned", total, 10_500)

	putTopic(t, b, "large", settings.Topic{Queues: 1})
	sendN(t, b, "large", 20, 1<<20)
	page, err = serve(b).Messages("large", status.MessageQuery{Contents: true}, 3<<20)
	assert.That(t, err == nil && len(page.Messages) >= 1 && len(page.Messages) <= 4 && !page.Complete,
		"a page of 3 MiB has %d messages of 1 MiB, %v", len(page.Messages), err)
	if page, err = serve(b).Messages("large", status.MessageQuery{Contents: true}, 1); err != nil || len(page.Messages) != 1 {
		t.Errorf("a page of 1 byte has %d messages, %v; want one, so that a reader continues", len(page.Messages), err)
	}
	page, err = serve(b).Messages("large", status.MessageQuery{MessageFilter: status.MessageFilter{Contains: "none"}}, 0)
	assert.That(t, err == nil && page.Scanned >= 1, "%+v, %v", page, err)
}

func TestMessagesRejections(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	sendN(t, b, "t", 5, 1)
	page := assert.Value(serve(b).Messages("t", status.MessageQuery{Limit: 1}, 0))(t)
	for name, c := range map[string]struct {
		topic string
		query status.MessageQuery
		want  error
	}{
		"topic":     {"none", status.MessageQuery{}, tidegate.ErrTopicNotFound},
		"queue":     {"t", status.MessageQuery{Queue: new(2)}, tidegate.ErrInvalid},
		"offset":    {"t", status.MessageQuery{Offset: new(int64(1))}, tidegate.ErrInvalid},
		"limit":     {"t", status.MessageQuery{Limit: 1001}, tidegate.ErrInvalid},
		"no cursor": {"t", status.MessageQuery{After: "0-1"}, tidegate.ErrInvalid},
		"direction": {"t", status.MessageQuery{After: page.Next, Newest: true}, tidegate.ErrInvalid},
		"queues":    {"t", status.MessageQuery{After: page.Next, Queue: new(0)}, tidegate.ErrInvalid},
	} {
		_, err := serve(b).Messages(c.topic, c.query, 0)
		assert.That(t, errors.Is(err, c.want), "%s: %v, want %v", name, err, c.want)
	}
	assert.Must(t, b.Close())
	assert.Is(t, "after Close", assert.Err(serve(b).Messages("t", status.MessageQuery{}, 0)), tidegate.ErrClosed)
}

// The pages of the delayed messages of a topic are in the order of the sends, with the delivery
// times. A message that is due or recalled is no longer in them.
func TestDelayedMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 3})
		putTopic(t, b, "other", settings.Topic{Type: settings.TopicDelay})
		begin := time.Now()
		r := rand.New(rand.NewPCG(3, 4))
		type sent struct {
			id      string
			at, due time.Time
		}
		var all []sent
		for i := range 600 {
			time.Sleep(time.Second)
			m := &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "t", Body: []byte("body " + fmt.Sprint(i%7)), Tag: fmt.Sprint("t", i%3), Keys: []string{fmt.Sprint("k", i)}, DeliverAt: time.Now().Add(time.Hour + time.Duration(r.IntN(3600))*time.Second)}
			other := *m
			other.Topic = "other"
			for _, res := range b.Send(t.Context(), []*tidegate.Message{m, &other}) {
				assert.Must(t, res.Err)
			}
			all = append(all, sent{m.ID, time.Now(), m.DeliverAt})
		}
		read := func(q status.MessageQuery) (got []sent, pages int) {
			q.Delayed = true
			for {
				p := assert.Value(serve(b).Messages("t", q, 0))(t)
				pages++
				for _, m := range p.Messages {
					if m.Queue != -1 || m.Offset != -1 || (m.Body != nil) != q.Contents || q.Contents && m.Keys[0] != "k"+m.ID[1:] {
						t.Fatalf("a message is %+v", m)
					}
					got = append(got, sent{m.ID, m.StoredAt, m.DeliverAt})
				}
				if p.Complete != (p.Next == "") || p.Complete && p.Left != 0 || !p.Complete && (p.Left < 1 || p.Left > 600-int64(len(got))) {
					t.Fatalf("a page ends with %+v", p)
				}
				if q.After = p.Next; q.After == "" {
					return got, pages
				}
			}
		}
		want := func(keep func(i int, m sent) bool) (list []sent) {
			for i, m := range all {
				if keep(i, m) {
					list = append(list, m)
				}
			}
			return list
		}
		from, to := begin.Add(100*time.Second), begin.Add(200*time.Second)
		for name, c := range map[string]struct {
			q    status.MessageQuery
			keep func(i int, m sent) bool
		}{
			"all":      {status.MessageQuery{Limit: 1000}, func(int, sent) bool { return true }},
			"pages":    {status.MessageQuery{Limit: 7, Contents: true}, func(int, sent) bool { return true }},
			"tag":      {status.MessageQuery{MessageFilter: status.MessageFilter{Tag: "t1"}, Limit: 10}, func(i int, _ sent) bool { return i%3 == 1 }},
			"contains": {status.MessageQuery{MessageFilter: status.MessageFilter{Contains: "body 5"}}, func(i int, _ sent) bool { return i%7 == 5 }},
			"key":      {status.MessageQuery{MessageFilter: status.MessageFilter{Key: "k42"}}, func(i int, _ sent) bool { return i == 42 }},
			"id":       {status.MessageQuery{MessageFilter: status.MessageFilter{ID: "m599"}}, func(i int, _ sent) bool { return i == 599 }},
			"times":    {status.MessageQuery{Since: from, Before: to, Limit: 3}, func(_ int, m sent) bool { return !m.at.Before(from) && m.at.Before(to) }},
		} {
			got, pages := read(c.q)
			if w := want(c.keep); !slices.Equal(got, w) || c.q.Limit == 7 && pages < 600/7 {
				t.Errorf("%s: %d messages in %d pages, want %d: %v", name, len(got), pages, len(w), got)
			}
		}
		time.Sleep(time.Until(begin.Add(2 * time.Hour)))
		synctest.Wait()
		if got, _ := read(status.MessageQuery{Limit: 50}); !slices.Equal(got, want(func(_ int, m sent) bool { return m.due.After(time.Now()) })) || len(got) == 0 || len(got) == 600 {
			t.Errorf("%d messages still wait", len(got))
		}
		for name, q := range map[string]status.MessageQuery{"queue": {Queue: new(0)}, "offset": {Offset: new(int64(1))}, "newest": {Newest: true}, "after": {After: "AAAA"}} {
			q.Delayed = true
			_, err := serve(b).Messages("t", q, 0)
			assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%s: %v", name, err)
		}
	})
}

// fateOf returns the only fate of the only message with an ID.
func fateOf(t *testing.T, b *broker.Broker, topic, id string) status.Fate {
	t.Helper()
	tr, err := serve(b).Trace(topic, status.MessageQuery{MessageFilter: status.MessageFilter{ID: id}}, 0, func(string) bool { return true })
	assert.MustThat(t, err == nil && len(tr.Messages) == 1 && len(tr.Messages[0].Groups) == 1, "the trace of %s: %+v, %v", id, tr, err)
	return tr.Messages[0].Groups[0]
}

// The trace of a message follows it through the states of a group without order.
func TestTraceStates(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "0", Body: []byte("x")})
		first := one(t, b, "g", "t")
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "1", Body: []byte("x")}, &tidegate.Message{Topic: "t", ID: "2", Body: []byte("x")})
		expect := func(id, state string, attempt int) status.Fate {
			t.Helper()
			f := fateOf(t, b, "t", id)
			assert.That(t, f.Group == "g" && f.State == state && f.Attempt == attempt,
				"the fate of %s is %+v, want %s with attempt %d", id, f, state, attempt)
			return f
		}
		f := expect("2", "new", 0)
		assert.That(t, f.Ahead == 1 && f.MaxAttempts == 2, "before it are %d messages, of %d attempts", f.Ahead, f.MaxAttempts)
		if f := expect("0", "inflight", 1); !f.Due.Equal(first.InvisibleUntil) {
			t.Errorf("the lease ends at %v, want %v", f.Due, first.InvisibleUntil)
		}
		assert.Must(t, errors.Join(b.Ack(t.Context(), []*tidegate.Delivery{first})...))
		expect("0", "done", 0)

		began := time.Now()
		settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: time.Minute, Reason: "no such account"})
		f = expect("1", "waiting_retry", 1)
		assert.That(t, f.Due.Equal(began.Add(time.Minute)), "the retry is at %v, want %v", f.Due, began.Add(time.Minute))
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		expect("1", "ready", 1)
		settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: time.Minute, Reason: "still no such account"})
		if f := expect("1", "dead_letter", 2); f.Reason != "still no such account" || f.DeadLetter == nil || f.DeadLetter.MessageID != "1" {
			t.Errorf("the dead letter is %+v", f)
		}
		assert.Must(t, assert.Err(b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{})))
		if f := expect("1", "dead_letter", 0); f.DeadLetter != nil || f.RedrivenAs != "" {
			t.Errorf("the purged dead letter is %+v, redriven as %q", f.DeadLetter, f.RedrivenAs)
		}
	})
}

// The trace of a message leads from each redrive with a new ID to the next one.
func TestTraceRedriven(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		for i, id := range []string{"1", "1.redrive-1", "1.redrive-2"} {
			m := &tidegate.Message{Topic: "t", ID: id, Body: []byte("x")}
			if i > 0 {
				m.Properties = map[string]string{protocol.PropertyDeadLetterRedrives: fmt.Sprint(i)}
			}
			mustSend(t, b, m)
			if i > 0 {
				before := []string{"1", "1.redrive-1"}[i-1]
				f := fateOf(t, b, "t", before)
				assert.That(t, f.State == "dead_letter" && f.RedrivenAs == id, "the fate of %s is %+v, want a redrive as %s", before, f, id)
			}
			settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "no such account"})
			f := fateOf(t, b, "t", id)
			assert.That(t, f.DeadLetter != nil && f.RedrivenAs == "", "the fate of %s is %+v, want a dead letter", id, f)
			assert.Must(t, assert.Err(b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{})))
		}
	})
}

// In a FIFO group that parks, the messages behind the parked one name it, also those on disk only.
func TestTraceParked(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1, Type: settings.TopicFIFO})
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
		for _, id := range []string{"a1", "a2", "b1"} {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: id, MessageGroup: id[:1], Body: []byte("x")})
		}
		head := one(t, b, "g", "t")
		second := one(t, b, "g", "t")
		assert.MustThat(t, head.ID == "a1" && second.ID == "b1", "received %s and %s", head.ID, second.ID)
		f := fateOf(t, b, "t", "a2")
		assert.That(t, f.State == "held" && f.Behind != nil && f.Behind.ID == "a1", "behind a message in flight: %+v", f)
		settle(t, b, head, transport.Verdict{Kind: transport.Retry, Reason: "no money"})
		if f := fateOf(t, b, "t", "a1"); f.State != "parked" || f.Reason != "no money" || f.Behind != nil || !f.Due.Equal(time.Now()) {
			t.Errorf("the parked message: %+v", f)
		}
		if f := fateOf(t, b, "t", "a2"); f.State != "parked" || f.Reason != "no money" || f.Behind == nil || f.Behind.ID != "a1" {
			t.Errorf("behind the parked message: %+v", f)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "a3", MessageGroup: "a", Body: []byte("x")})
		f = fateOf(t, b, "t", "a3")
		assert.That(t, f.State == "new" && f.Behind != nil && f.Behind.ID == "a1", "a new message of the message group: %+v", f)
	})
}

// Messages that are in no queue: delayed ones have their time, recalled ones are gone, half ones
// are marked.
func TestTracePending(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "later", settings.Topic{Type: settings.TopicDelay})
		putTopic(t, b, "half", settings.Topic{Type: settings.TopicTransaction})
		at := time.Now().Add(time.Hour)
		handle := send(t, b, &tidegate.Message{Topic: "later", ID: "d", DeliverAt: at, Body: []byte("x")})[0].Receipt.RecallHandle
		find := func(topic, id string) status.Trace {
			t.Helper()
			tr, err := serve(b).Trace(topic, status.MessageQuery{MessageFilter: status.MessageFilter{ID: id}}, 0, func(string) bool { return true })
			assert.MustThat(t, err == nil && len(tr.Messages) == 0 && tr.Complete, "%+v, %v", tr, err)
			return tr
		}
		tr := find("later", "d")
		assert.That(t, tr.DeliverAt.Equal(at) && !tr.Half, "the delayed message: %+v, want %v", tr, at)
		assert.Must(t, assert.Err(b.Recall(t.Context(), "later", handle)))
		tr = find("later", "d")
		assert.That(t, tr.DeliverAt.IsZero(), "the recalled message: %+v", tr)
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{Topic: "half", ID: "h", Body: []byte("x")}, 0)
		assert.MustThat(t, r.Err == nil, "%+v", r.Err)
		tr = find("half", "h")
		assert.That(t, tr.Half, "the half message: %+v", tr)
		tr = find("half", "x")
		assert.That(t, !tr.Half, "an unknown message: %+v", tr)
	})
}
