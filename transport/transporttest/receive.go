package transporttest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

var receiveCases = []testCase{
	{name: "ReceiveNothing", run: func(e *env) {
		e.setup(settings.TopicNormal)
		start := time.Now()
		if ds := e.receive(e.request()); len(ds) != 0 {
			e.Errorf("received %s", describe(ds))
		}
		e.after(start, e.server.Unit, "an empty receive returned")
		start = time.Now()
		e.none(e.request())
		if e.lacks(e.server.ExactWaits, "ExactWaits", "a receive without a wait may take 5 s") {
			if got := time.Since(start); got > 5*time.Second+e.server.Slack {
				e.Errorf("a receive without a wait returned after %v", got)
			}
			return
		}
		e.after(start, 0, "a receive without a wait returned")
	}},
	{name: "ReceiveIsWoken", run: func(e *env) {
		e.setup(settings.TopicNormal)
		start := time.Now()
		wait := later(func() {
			e.sleep(e.server.Unit / 2)
			e.Transport.Send(e.Context(), []*tidegate.Message{e.message("wake up")})
		})
		defer wait()
		e.one()
		e.after(start, e.server.Unit/2, "the message arrived")
	}},
	{name: "ReceiveMax", run: func(e *env) {
		e.setup(settings.TopicNormal)
		for i := range 40 {
			e.send(e.message(fmt.Sprint(i)))
		}
		full := e.fullReceives()
		r := e.request()
		seen := map[string]bool{}
		for _, n := range []int{0, 1, 3, 32, 32} {
			r.Max = n
			ds := e.receive(r)
			want := min(max(1, n), 40-len(seen))
			if short := len(ds) < want && full; short || len(ds) == 0 && want > 0 || len(ds) > want {
				e.Errorf("Max %d brought %d deliveries after %d, want %d", n, len(ds), len(seen), want)
			}
			for _, d := range ds {
				if seen[d.ID] {
					e.Errorf("%s was delivered twice", describe([]*tidegate.Delivery{d}))
				}
				seen[d.ID] = true
			}
		}
	}},
	{name: "ReceiveMaxBytes", run: func(e *env) {
		e.createTopic(e.topic, settings.TopicNormal)
		e.createGroup(e.group, transport.ConsumerSettings{MaxAttempts: 17, Retry: backoff.Steps(e.ladder())}) // releases may spend them
		full := e.fullReceives()
		const size = 100
		left := 6
		for range left {
			e.send(e.message(strings.Repeat("x", size)))
		}
		for _, c := range []struct{ maxBytes, want int }{{size / 2, 1}, {size, 1}, {2*size + 1, 2}, {0, 2}} {
			r := e.request()
			r.Max, r.MaxBytes = 32, c.maxBytes
			ds := e.receive(r)
			if len(ds) == 0 && e.lacks(e.server.BoundsBytes, "BoundsBytes", "messages beyond MaxBytes are released and redelivered") {
				for start := time.Now(); len(ds) == 0 && time.Since(start) < lateness; {
					ds = e.receive(r)
				}
			}
			if c.maxBytes == 0 {
				c.want = left // 2, or more after receives that were not full
			}
			left -= len(ds)
			if short := len(ds) < c.want && full; short || len(ds) == 0 || len(ds) > c.want {
				e.Errorf("MaxBytes %d brought %d messages of %d bytes, want %d", c.maxBytes, len(ds), size, c.want)
			}
			for _, err := range e.Transport.Ack(e.Context(), ds) {
				if err != nil {
					e.Error(err)
				}
			}
		}
	}},
	{name: "EveryQueue", run: func(e *env) {
		e.setup(settings.TopicNormal)
		want := map[string]bool{}
		for i := range 32 {
			m := e.message(fmt.Sprint(i))
			want[m.ID] = true
			e.send(m)
		}
		queues, err := e.Transport.Queues(e.Context(), e.group, e.topic)
		if err != nil || len(queues) == 0 {
			e.Fatalf("Queues: %v, %v", queues, err)
		}
		for _, q := range queues {
			r := e.request()
			r.Queue, r.Max = q, 32
			for _, d := range e.drain(r) {
				if !want[d.ID] {
					e.Errorf("%q came twice", d.ID)
				}
				delete(want, d.ID)
			}
		}
		if len(want) != 0 {
			e.Errorf("%d messages are in no queue of %v", len(want), queues)
		}
	}},
	{name: "NoSuchTopic", run: func(e *env) {
		e.createGroup(e.group, transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps(e.ladder())})
		want := tidegate.ErrTopicNotFound
		if e.createsTopics() {
			want = nil
		}
		if ds, err := e.Transport.Receive(e.Context(), e.request()); len(ds) != 0 || !errors.Is(err, want) {
			e.Errorf("Receive: %s, %v, want %v", describe(ds), err, want)
		}
		if _, err := e.Transport.Queues(e.Context(), e.group, e.topic); !errors.Is(err, want) {
			e.Errorf("Queues: %v, want %v", err, want)
		}
	}},
	{name: "BadGroup", run: func(e *env) {
		e.setup(settings.TopicNormal)
		r := e.request()
		r.Group = "a b"
		_, err := e.Transport.Receive(e.Context(), r)
		e.wantCode(err, protocol.CodeIllegalConsumerGroup)
	}},
	{name: "TagFilterIsExact", run: func(e *env) {
		e.setup(settings.TopicNormal)
		// Aa and BB have the same hash in Java, on which RocketMQ filters first.
		tags := []string{"Aa", "BB", "A", "", "AaBB", "aa"}
		for i, c := range []struct {
			expression string
			want       []string
		}{
			{"*", tags},
			{"", tags},
			{"Aa", []string{"Aa"}},
			{"BB", []string{"BB"}},
			{"A||BB", []string{"A", "BB"}},
			{" A || BB ", []string{"A", "BB"}},
			{"none", nil},
		} {
			r := e.request()
			r.Group = e.name(fmt.Sprint("filter", i))
			r.Filter.Expression = c.expression
			r.Max = 32
			e.createGroup(r.Group, transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps(e.ladder())})
			for _, tag := range tags {
				m := e.message(fmt.Sprintf("%d %s", i, tag))
				m.Tag = tag
				e.send(m)
			}
			var got []string
			for _, d := range e.drain(r) {
				if body := string(d.Body); strings.HasPrefix(body, fmt.Sprint(i, " ")) {
					got = append(got, d.Tag)
				}
			}
			want := slices.Clone(c.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				e.Errorf("filter %q delivered the tags %q, want %q", c.expression, got, want)
			}
		}
	}},
	{name: "GroupsAreApart", run: func(e *env) {
		e.setup(settings.TopicNormal)
		shipping := e.name("shipping")
		e.createGroup(shipping, transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps(e.ladder())})
		e.send(e.message("for both"))
		other := e.request()
		other.Group = shipping
		a, b := e.one(), e.oneOf(other)
		if a.ID != b.ID || a.ConsumerGroup != e.group || b.ConsumerGroup != shipping {
			e.Errorf("delivered %+v and %+v", a, b)
		}
		e.mustAck(b)
		start := time.Now()
		if _, err := e.Transport.Settle(e.Context(), a, transport.Verdict{Kind: transport.Retry}); err != nil {
			e.Fatal(err)
		}
		if a = e.retried(e.request(), start, 0); a.Attempt != 2 {
			e.Errorf("attempt %d, want 2", a.Attempt)
		}
		e.none(other)
	}},
	{name: "ConsumerSettings", run: func(e *env) {
		e.setup(settings.TopicNormal)
		s, err := e.Transport.ConsumerSettings(e.Context(), e.group, e.topic)
		if err != nil {
			e.Fatal(err)
		}
		if s.FIFO {
			e.Error("the group has an order")
		}
		e.wantPolicy(s, e.ladder())
	}},
	{name: "Concurrent", run: func(e *env) {
		e.setup(settings.TopicNormal)
		const senders, each = 4, 50
		var wg, receivers sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				for i := range each {
					for _, r := range e.Transport.Send(e.Context(), []*tidegate.Message{e.message(fmt.Sprint(s, "/", i))}) {
						if r.Err != nil {
							e.Error(r.Err)
						}
					}
				}
			})
		}
		var mu sync.Mutex
		seen := map[string]int{}
		for range 4 {
			receivers.Go(func() {
				r := e.request()
				r.Max = 7
				for {
					ds, err := e.Transport.Receive(e.Context(), r)
					if err != nil || len(ds) == 0 {
						if err != nil {
							e.Error(err)
						}
						return
					}
					for _, err := range e.Transport.Ack(e.Context(), ds) {
						if err != nil {
							e.Error(err)
						}
					}
					mu.Lock()
					for _, d := range ds {
						seen[string(d.Body)]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		receivers.Wait()
		if len(seen) != senders*each {
			e.Errorf("%d of %d messages were delivered", len(seen), senders*each)
		}
		for body, n := range seen {
			if n != 1 {
				e.Errorf("%s was delivered %d times", body, n)
			}
		}
	}},
}

// fullReceives reports whether receives return all that they may.
func (e *env) fullReceives() bool {
	e.Helper()
	return !e.lacks(e.server.FullReceives, "FullReceives", "a receive may return fewer messages than there are")
}

// wantPolicy checks the attempts and the retry schedule that the server pushes for the group.
func (e *env) wantPolicy(s transport.ConsumerSettings, ladder []time.Duration) {
	e.Helper()
	if s.MaxAttempts != 3 {
		e.Errorf("%d attempts, want 3", s.MaxAttempts)
	}
	if s.Retry == nil {
		e.Fatal("the group has no ladder")
	}
	for i, want := range ladder {
		if got := s.Retry.Delay(i); got != want {
			e.Errorf("the ladder's step %d is %v, want %v", i, got, want)
		}
	}
}

// optionalCases are the promises of package transport's optional interfaces. A
// transport that does not implement one logs that its case tests nothing.
var optionalCases = []testCase{
	{name: "Lanes", run: optional(lanes)},
	{name: "Ping", run: optional(ping)},
	{name: "Recall", run: optional(recall)},
	{name: "TransactionCommitted", run: optional(transactionCommitted)},
	{name: "TransactionRolledBack", run: optional(transactionRolledBack)},
	{name: "TransactionChecked", run: optional(transactionChecked)},
	{name: "Watch", run: optional(watch), needs: needWatch},
	{name: "Parts", run: optional(parts)},
}

// optional runs a case with the interface that it needs.
func optional[T any](run func(*env, T)) func(*env) {
	return func(e *env) {
		if t, ok := e.Transport.(T); ok {
			run(e, t)
			return
		}
		e.Logf("the transport does not implement %v", reflect.TypeFor[T]())
	}
}

func lanes(e *env, s transport.LaneSender) {
	e.setup(settings.TopicNormal)
	e.send(e.message("first")) // and the connection announces its capabilities
	lane, err := s.Lane(e.Context(), transport.LaneRequest{Topic: e.topic})
	if err != nil {
		e.Fatal(err)
	}
	if lane.Endpoint == "" || lane.MaxMessages < 1 || lane.MaxMessages > 1 != e.server.Capabilities.Batch {
		e.Errorf("lane %+v with the capabilities %+v", lane, e.server.Capabilities)
	}
	var msgs []*tidegate.Message
	for range min(5, lane.MaxMessages) {
		m := e.message("x")
		m.Tag = "tag-" + m.ID
		msgs = append(msgs, m)
	}
	tags := map[string]string{}
	for i, r := range s.SendLane(e.Context(), lane, msgs) {
		if r.Err != nil || r.Receipt.MessageID != msgs[i].ID || r.Receipt.Endpoint != lane.Endpoint {
			e.Errorf("message %d: %+v, want a receipt of %s for %s", i, r, lane.Endpoint, msgs[i].ID)
		}
		tags[msgs[i].ID] = msgs[i].Tag
	}
	r := e.request()
	r.Max = 32
	for _, d := range e.drain(r) {
		if want, ok := tags[d.ID]; ok && d.Tag != want {
			e.Errorf("message %s has the tag %q, want %q", d.ID, d.Tag, want)
		}
		delete(tags, d.ID)
	}
	if len(tags) > 0 {
		e.Errorf("not delivered: %v", tags)
	}
	first := e.topic
	e.topic = e.name("other") // a lane is a server: another topic uses it too, or finds that it does not lead there
	e.createTopic(e.topic, settings.TopicNormal)
	if err := s.SendLane(e.Context(), lane, []*tidegate.Message{e.message("x")})[0].Err; err != nil && !errors.Is(err, transport.ErrLaneChanged) {
		e.Errorf("another topic: %v", err)
	}
	if !lane.Topics {
		return
	}
	if other, err := s.Lane(e.Context(), transport.LaneRequest{Topic: e.topic}); err != nil || other != lane {
		e.Fatalf("the other topic has the lane %+v, %v, want %+v", other, err, lane)
	}
	msgs = []*tidegate.Message{e.message("1"), e.message("2"), e.message("3")}
	msgs[0].Topic = first
	for i, r := range s.SendLane(e.Context(), lane, msgs) {
		if r.Err != nil || r.Receipt.MessageID != msgs[i].ID || r.Receipt.Topic != msgs[i].Topic {
			e.Errorf("message %d of two topics: %+v", i, r)
		}
	}
}

func ping(e *env, p transport.Pinger) {
	e.setup(settings.TopicNormal)
	if err := p.Ping(e.Context()); err != nil {
		e.Errorf("without topics: %v", err)
	}
	if err := p.Ping(e.Context(), e.topic); err != nil {
		e.Errorf("a topic: %v", err)
	}
	if e.createsTopics() {
		return
	}
	if err := p.Ping(e.Context(), e.topic, e.name("missing")); !errors.Is(err, tidegate.ErrTopicNotFound) {
		e.Errorf("a topic that is missing: %v, want ErrTopicNotFound", err)
	}
}

func recall(e *env, r transport.Recaller) {
	e.setup(settings.TopicDelay)
	m := e.message("later")
	m.DeliverAt = time.Now().Add(4 * e.server.Unit)
	receipt := e.send(m)[0]
	if e.lacks(e.server.Recall, "Recall", "Recall fails with 50100, or receipts have a recall handle, and it fails with 40300") {
		handle, code := "handle", tidegate.CodeNotImplemented
		if receipt.RecallHandle != "" {
			handle, code = receipt.RecallHandle, tidegate.CodeForbidden
		}
		_, err := r.Recall(e.Context(), e.topic, handle)
		e.wantCode(err, code)
		if receipt.Offset != -1 {
			e.Errorf("receipt %+v of a delayed message, want no offset", receipt)
		}
		return
	}
	for _, handle := range []string{"", "another server's"} {
		_, err := r.Recall(e.Context(), e.topic, handle)
		e.wantCode(err, tidegate.CodeBadRequest)
	}
	if receipt.RecallHandle == "" || receipt.Offset != -1 {
		e.Fatalf("receipt %+v of a delayed message, want a recall handle and no offset", receipt)
	}
	id, err := r.Recall(e.Context(), e.topic, receipt.RecallHandle)
	if err != nil || id != m.ID {
		e.Errorf("recalled %q, %v, want %q", id, err, m.ID)
	}
	_, err = r.Recall(e.Context(), e.topic, receipt.RecallHandle)
	succeeds := e.lacks(e.server.RefusesRepeatedRecalls, "RefusesRepeatedRecalls", "a second Recall succeeds")
	if succeeds != (err == nil) || !succeeds && !errors.Is(err, tidegate.ErrNotFound) {
		e.Errorf("recalled again: %v, want success: %v, or ErrNotFound", err, succeeds)
	}
	e.sleep(5 * e.server.Unit)
	e.none(e.request())
}

// halfOf sends a half message, and checks that no consumer receives it.
func halfOf(e *env, t transport.Transactor) (*tidegate.Message, transport.Transaction) {
	e.Helper()
	e.setup(settings.TopicTransaction)
	m := e.message("half")
	r := t.SendHalf(e.Context(), m)
	if r.Err != nil || r.Receipt.TransactionID == "" || r.Receipt.MessageID != m.ID {
		e.Fatalf("SendHalf: %+v", r)
	}
	e.none(e.request())
	return m, transport.Transaction{ID: r.Receipt.TransactionID, MessageID: m.ID, Topic: e.topic, Endpoint: r.Receipt.Endpoint}
}

func transactionCommitted(e *env, t transport.Transactor) {
	m, tx := halfOf(e, t)
	if err := t.EndTransaction(e.Context(), tx, transport.Commit); err != nil {
		e.Errorf("commit: %v", err)
	}
	for _, r := range []transport.Resolution{transport.Commit, transport.Rollback} { // too late
		if err := t.EndTransaction(e.Context(), tx, r); !errors.Is(err, tidegate.ErrNotFound) {
			e.Errorf("%s after the commit: %v, want ErrNotFound", r, err)
		}
	}
	d := e.one()
	if d.ID != m.ID || string(d.Body) != "half" {
		e.Errorf("delivered %+v", d.Message)
	}
	e.mustAck(d)
	e.none(e.request())
}

func transactionRolledBack(e *env, t transport.Transactor) {
	_, tx := halfOf(e, t)
	if err := t.EndTransaction(e.Context(), tx, transport.Rollback); err != nil {
		e.Errorf("rollback: %v", err)
	}
	if err := t.EndTransaction(e.Context(), tx, transport.Commit); !errors.Is(err, tidegate.ErrNotFound) {
		e.Errorf("commit after the rollback: %v, want ErrNotFound", err)
	}
	e.sleep(e.server.Unit)
	e.none(e.request())
	if err := t.EndTransaction(e.Context(), tx, transport.ResolutionUnknown); !errors.Is(err, tidegate.ErrInvalid) {
		e.Errorf("ended as unknown: %v, want ErrInvalid", err)
	}
}

func transactionChecked(e *env, t transport.Transactor) {
	m, tx := halfOf(e, t)
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	var asked atomic.Int64
	wait := later(func() {
		err := t.ServeChecks(ctx, []string{e.topic}, func(_ context.Context, q transport.TransactionCheck) transport.Resolution {
			if q.Transaction.ID != tx.ID || q.Transaction.Topic != e.topic || q.Message.ID != m.ID || string(q.Message.Body) != "half" {
				e.Errorf("asked about %+v, %+v", q.Transaction, q.Message)
			}
			if asked.Add(1) == 1 {
				return transport.ResolutionUnknown // and is asked again
			}
			return transport.Commit
		})
		if err != nil {
			e.Errorf("ServeChecks: %v", err)
		}
	})
	r := e.request()
	for begin := time.Now(); ; {
		ds := e.receive(r)
		if len(ds) == 1 {
			e.mustAck(ds[0])
			break
		}
		if time.Since(begin) > 5*time.Minute {
			e.Fatal("the transaction was not checked")
		}
	}
	if asked.Load() != 2 {
		e.Errorf("asked %d times, want 2", asked.Load())
	}
	cancel()
	wait()
}

// watch leaves watches at all queues of a topic. Each message makes one of them ready.
func watch(e *env, w transport.Watcher) {
	e.setup(settings.TopicNormal)
	queues, err := e.Transport.Queues(e.Context(), e.group, e.topic)
	if err != nil {
		e.Fatal(err)
	}
	r := e.request()
	r.Max = 2
	leave := func(queue int) (*tidegate.Delivery, <-chan struct{}) {
		e.Helper()
		r.Queue = queue
		start := time.Now()
		ds, ready, err := w.ReceiveOrWatch(e.Context(), r)
		if err != nil || len(ds) > 1 || ready == nil {
			e.Fatalf("queue %d: %s, %v, ready is nil: %v; want one message at most, and a watch", queue, describe(ds), err, ready == nil)
		}
		e.after(start, 0, "the receive returned")
		if len(ds) == 0 {
			return nil, ready
		}
		return ds[0], ready
	}
	watches := map[int]<-chan struct{}{}
	for _, q := range queues {
		if _, watches[q] = leave(q); len(queues) == 1 {
			_, watches[q] = leave(q) // instead of the first one
		}
	}
	// A watch may be ready without a message, but not all the time.
	const spurious = 10
	for n := 0; ; n++ {
		q, ok := e.ready(watches)
		if !ok {
			break
		}
		var d *tidegate.Delivery
		if d, watches[q] = leave(q); d != nil || n > spurious {
			e.Fatalf("without a message %d watches were ready", n+1)
		}
	}
	for range 3 {
		m := e.message("x")
		e.send(m)
		start := time.Now()
		for n := 0; ; n++ {
			q, ok := e.ready(watches)
			if !ok || n > spurious {
				e.Fatalf("%d watches were ready without a message, and then none within %v of the message", n, e.server.Unit)
			}
			var d *tidegate.Delivery
			if d, watches[q] = leave(q); d != nil {
				if d.ID != m.ID {
					e.Errorf("received %q, want %q", d.ID, m.ID)
				}
				e.after(start, 0, "the message was received")
				e.mustAck(d)
				break
			}
		}
	}
	for q := range watches {
		r.Queue = q
		e.none(r)
	}
}

// ready returns the queue of a ready watch. It waits for one unit.
func (e *env) ready(watches map[int]<-chan struct{}) (queue int, ok bool) {
	for start := time.Now(); ; e.sleep(e.server.Unit / 1000) {
		for q, ready := range watches {
			select {
			case <-ready:
				return q, true
			default:
			}
		}
		if time.Since(start) > e.server.Unit {
			return 0, false
		}
	}
}

// A Streamer may hand over messages before the receive returns. They are the caller's then.
func parts(e *env, s transport.Streamer) {
	e.setup(settings.TopicNormal)
	const n = 3
	r := e.request()
	r.Max = 32
	begun := time.Now()
	got := map[string]int{}
	take := func(ds []*tidegate.Delivery) {
		for _, d := range ds {
			got[string(d.Body)]++
			e.mustAck(d)
		}
	}
	wait := later(func() {
		for i := range n {
			e.Transport.Send(e.Context(), []*tidegate.Message{e.message(fmt.Sprint(i))})
		}
	})
	defer wait()
	for range 2 * n {
		ds, err := s.ReceiveParts(e.Context(), r, func(part []*tidegate.Delivery, since time.Time) {
			if now := time.Now(); since.Before(begun) || since.After(now) {
				e.Errorf("a part was handed out after %v, want a time between the begin of the receive, %v, and its arrival, %v", since, begun, now)
			}
			take(part)
		})
		if err != nil {
			e.Fatal(err)
		}
		if take(ds); len(got) == n {
			break
		}
	}
	for i := range n {
		if times := got[fmt.Sprint(i)]; times != 1 {
			e.Errorf("message %d was received %d times", i, times)
		}
	}
}
