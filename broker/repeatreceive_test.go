package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// A client that was cut off receives again while its first receive still waits: the first one ends,
// and the second gets the messages.
func TestRepeatedReceiveWhileItWaits(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, AttemptID: "x", Wait: time.Hour}
		const n = 5
		answers := make(chan string, n)
		start := time.Now()
		for range n {
			go func() { answers <- fmt.Sprint(idsOf(receive(t, b, r)), time.Since(start)) }()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for i := range n - 1 {
			if got, want := <-answers, (time.Duration(i+1) * time.Second).String(); got != want {
				t.Errorf("a repeated receive returned %q, want %q", got, want)
			}
		}
		sends("a:1")
		if got, want := <-answers, fmt.Sprint("a:1/1", n*time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		// Another attempt is another receive.
		r.AttemptID, r.Wait = "y", 0
		expectMessages(t, receive(t, b, r), "")
	})
}

// All repetitions come at the same time, on a slow store. Each gets the same response, and no
// message is delivered twice.
func TestRepeatedReceiveAtOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		putAddress(t, b, "t", settings.Address{PersistDeliveryCountBeforeDelivery: new(true)}) // deliveries wait for the store
		sends("a:1", "b:1", "c:1", "d:1")
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, AttemptID: "x"}
		release := holdProgress(b)
		answers := make(chan string, 8)
		for range cap(answers) {
			go func() { answers <- idsOf(receive(t, b, r)) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := r
		late.Queue, late.InvisibleDuration = transport.AnyQueue, time.Minute
		assert.Is(t, "a repetition whose context ends", assert.Err(b.Receive(ctx, late)), context.DeadlineExceeded)
		release()
		want := <-answers
		for range cap(answers) - 1 {
			if got := <-answers; got != want || got == "" {
				t.Errorf("a repetition got %q, another one %q", got, want)
			}
		}
		r.AttemptID, r.Max = "y", 32
		assert.Equal(t, "messages are left", len(receive(t, b, r)), 2)
		a, err := subscriptions(b)[0].Audit()
		assert.That(t, err == nil && a.Receiving == 0, "%d receives are left over, %v", a.Receiving, err)
	})
}

// A receive of an unordered group can be repeated too, also if its messages were from the group's
// retry topic, and after a later receive.
func TestRepeatedReceiveOfAnyGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), "t", settings.Topic{})))
		assert.Must(t, assert.Err(b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})))
		mustSend(t, b, &tidegate.Message{ID: "first", Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour}
		ds := expectMessages(t, receive(t, b, r), "first/1")
		_, err := serve(b).ReconsumeLater(t.Context(), ds[0], transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})
		assert.MustThat(t, err == nil, "%+v", err)
		time.Sleep(time.Minute)
		named := func(id string) transport.ReceiveRequest {
			r := r
			r.AttemptID = id
			return r
		}
		retried := receive(t, b, named("retried"))
		assert.MustEqual(t, "received messages", len(retried), 1)
		mustSend(t, b, &tidegate.Message{ID: "later", Topic: "t", Body: []byte("x")})
		expectMessages(t, receive(t, b, named("later")), "later/1")
		repeat := func(id string) []*tidegate.Delivery {
			r := named(id)
			r.Repeat, r.Wait = true, time.Minute
			return receive(t, b, r)
		}
		if again := repeat("retried"); len(again) != 1 || again[0].ID != retried[0].ID || again[0].Attempt != retried[0].Attempt {
			t.Errorf("repeated: %v, want %v", again, retried)
		}
		expectMessages(t, repeat("later"), "later/1")
	})
}

// The leases of all groups together are bounded by the memory. At the bound a receive of new
// messages is rejected with 42900, retries are delivered, and an acknowledgement permits a new
// delivery. A store with twice as many leases is opened and drained. The error of one with more has
// the remedy.
func TestLeasesAreBoundedByTheMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLeases)
}

func testLeases(t *testing.T) {
	const leases = 20
	options := broker.Options{Memory: broker.NewMemory(), MinInvisibleDuration: 1}.ProcessMemory(leases * 4 * 256)
	b := open(t, options)
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	for i := range 100 {
		send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
	}
	var held []*tidegate.Delivery
	for i := 0; len(held) < leases; i++ {
		group := fmt.Sprint("g", i%2)
		putGroup(t, b, group, settings.Group{Retry: []time.Duration{time.Millisecond}})
		held = append(held, receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: 5, InvisibleDuration: time.Hour})...)
	}
	full := func(b *broker.Broker) {
		t.Helper()
		for _, group := range []string{"g0", "g1"} {
			ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "t", Max: 5, InvisibleDuration: time.Hour})
			wantCode(t, "a receive at the bound", err, tidegate.CodeTooManyRequests)
			assert.That(t, len(ds) == 0, "%d messages were delivered at the bound", len(ds))
		}
	}
	full(b)
	settle(t, b, held[0], transport.Verdict{Kind: transport.Retry})
	synctest.Wait() // it is ready
	again := receive(t, b, transport.ReceiveRequest{Group: "g0", Topic: "t", Max: 5, InvisibleDuration: time.Hour, Wait: time.Minute})
	assert.MustThat(t, len(again) == 1 && again[0].ID == held[0].ID && again[0].Attempt == 2, "the retry at the bound: %v", again)
	held[0] = again[0]
	full(b)
	assert.Must(t, b.Close())

	options = options.ProcessMemory(leases*2*256 - 4)
	if b, err := broker.Open(options); err == nil {
		t.Error("a store with more leases than half of the memory was opened", b.Close())
	} else {
		for _, w := range []string{"20 messages in flight", "10236 bytes suffices for 18", "at least 10240 bytes (GOMEMLIMIT)", "nothing was changed"} {
			assert.That(t, strings.Contains(err.Error(), w), "the error does not contain %q: %v", w, err)
		}
	}
	options = options.ProcessMemory(leases * 2 * 256)
	b = open(t, options)
	full(b)
	for i, err := range b.Ack(t.Context(), held[:leases/2+1]) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	ds := receive(t, b, transport.ReceiveRequest{Group: "g1", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
	assert.That(t, len(ds) == 1, "%d messages were delivered below the bound", len(ds))
	full(b)
	assert.Must(t, b.DeleteGroup(t.Context(), "g1"))
	ds = receive(t, b, transport.ReceiveRequest{Group: "g2", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
	assert.That(t, len(ds) == 1, "%d messages were delivered after the other group was deleted", len(ds))
}

// The pages of leases have each lease once, in order, for any size of a page.
func TestLeasePages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		begin := time.Now()
		want := map[string][]string{}
		var released []*tidegate.Delivery
		for i := range 20 {
			id := fmt.Sprint(i)
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: id, Body: []byte("body")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Duration(40-i) * time.Minute})
			assert.MustEqual(t, "deliveries", len(ds), 1)
			state := "inflight"
			switch i % 4 {
			case 0:
				state = "waiting_retry"
				settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Duration(40-i) * time.Minute})
			case 1:
				state = "ready" // without a due time
				released = append(released, ds...)
			}
			want[state] = append(want[state], id)
		}
		serve(b).Return(t.Context(), released)
		for _, ids := range want {
			slices.Reverse(ids) // later ones are due earlier
		}
		read := func(state string, byDue bool, limit int) (ids []string) {
			t.Helper()
			var before status.Lease
			for after := ""; ; {
				page, err := serve(b).Leases("g", "t", status.LeaseQuery{State: state, ByDue: byDue, After: after, Limit: limit})
				assert.MustThat(t, err == nil && len(page.Leases) <= limit, "%+v, %v", page, err)
				for _, l := range page.Leases {
					ids = append(ids, l.MessageID)
					ordered := before.Queue < l.Queue || before.Queue == l.Queue && before.Offset < l.Offset
					if byDue {
						ordered = l.Due.IsZero() || !l.Due.Before(before.Due)
					}
					assert.That(t, before.State == "" || ordered, "%+v follows %+v", l, before)
					if before = l; l.BodySize != 4 || l.Due.IsZero() != (l.State == "ready") || l.Since.Equal(begin) != (l.State == "inflight") || l.Holder != "" {
						t.Errorf("%+v", l)
					}
				}
				if after = page.Next; after == "" {
					return ids
				}
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 20, 1000} {
			for _, byDue := range []bool{false, true} {
				all := read("", byDue, limit)
				if slices.Sort(all); len(slices.Compact(all)) != 20 {
					t.Errorf("pages of %d have %v", limit, all)
				}
				for state, ids := range want {
					got, sorted := read(state, byDue, limit), slices.Clone(ids)
					if !byDue || state == "ready" {
						slices.Sort(got)
						slices.Sort(sorted)
					}
					assert.That(t, slices.Equal(got, sorted), "pages of %d have the %s leases %v, want %v", limit, state, got, sorted)
				}
			}
		}
		s := assert.Value(serve(b).Schedule("g", "t"))(t)
		var retries, flights int64
		for i, d := range s.Buckets {
			assert.That(t, (d.Until == nil) == (i == len(s.Buckets)-1), "bucket %d is %+v", i, d)
			retries += d.WaitingRetry
			flights += d.Inflight
			// Of 24, 28, 32, 36 and 40 minutes, two are within half an hour.
			assert.That(t, d.Until == nil || time.Duration(*d.Until) != 30*time.Minute || d.WaitingRetry == 2,
				"%d retries come within 10 to 30 minutes", d.WaitingRetry)
		}
		if retries != 5 || flights != 10 || !s.Now.Equal(begin) || !s.NextRetry.Equal(begin.Add(24*time.Minute)) || !s.NextLeaseEnd.Equal(begin.Add(21*time.Minute)) {
			t.Errorf("%d retries and %d leases: %+v", retries, flights, s)
		}
		for _, c := range []struct {
			group, topic string
			query        status.LeaseQuery
			want         tidegate.Code
		}{
			{"x", "t", status.LeaseQuery{}, protocol.CodeConsumerGroupNotFound},
			{"g", "x", status.LeaseQuery{}, tidegate.CodeTopicNotFound},
			{"g", "other", status.LeaseQuery{}, protocol.CodeConsumerGroupNotFound},
			{"g", "t", status.LeaseQuery{Limit: 1001}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{State: "done"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{State: "x"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{After: "1-2"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{After: "1-x-2"}, tidegate.CodeBadRequest},
		} {
			putTopic(t, b, "other", settings.Topic{Queues: 1})
			_, err := serve(b).Leases(c.group, c.topic, c.query)
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == c.want, "%+v: %v", c, err)
		}
	})
}
