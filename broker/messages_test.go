package broker_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

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
