package transporttest

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

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
	e.topic = e.name("other") // a lane is a server: another topic uses it too, or finds that it does not lead there
	e.createTopic(e.topic, settings.TopicNormal)
	if err := s.SendLane(e.Context(), lane, []*tidegate.Message{e.message("x")})[0].Err; err != nil && !errors.Is(err, transport.ErrLaneChanged) {
		e.Errorf("another topic: %v", err)
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
