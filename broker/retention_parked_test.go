package broker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// parkedTopic returns a broker with n messages of one message group, the
// first of which has failed, so that the group is parked.
func parkedTopic(t *testing.T, fs vfs.FS, r settings.Retention, n int) *broker.Broker {
	b := open(t, broker.Options{Dir: "data"}.On(fs))
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: r})
	putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
	for i := range n {
		mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
	}
	d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})[0]
	settle(t, b, d, transport.Verdict{Kind: transport.Retry})
	receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}) // passes the others
	s := subscriptionOf(t, b, "g")
	assert.MustThat(t, s.Parked == int64(n), "%d messages are parked, want %d", s.Parked, n)
	return b
}

// A message was parked for longer than its topic keeps messages, and is then redriven. It stays
// until it is consumed, also after a long time and with any timers set meanwhile.
func TestRetentionKeepsRedrivenMessages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		messages  int
		before    time.Duration // of the first receive
		between   time.Duration // receives
		restarted bool
	}{
		"the consumer comes late":    {10, time.Hour, 0, false},
		"one message a second":       {2 * consume.FetchLimit, 0, time.Second, false},
		"one message in a long time": {4, time.Second, 30 * time.Minute, false},
		"after a restart":            {2 * consume.FetchLimit, 2 * time.Second, 100 * time.Millisecond, true},
	} {
		subtest(t, name, func(t *testing.T) {
			fs := vfs.NewMem()
			b := parkedTopic(t, fs, settings.Retention{Time: settings.Duration(10 * time.Minute), Consumed: true}, c.messages)
			elapse(time.Hour)
			assert.Must(t, assert.Err(b.RedriveParked(t.Context(), "g", status.ParkedSelection{})))
			elapse(c.before)
			for i := range c.messages {
				if c.restarted && i == c.messages/3 {
					b = reopen(t, b, fs)
				}
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
				assert.MustThat(t, len(ds) == 1 && ds[0].ID == fmt.Sprint(i) && ds[0].Attempt == 1, "delivery %d is %+v", i, ds)
				assert.Must(t, b.Ack(t.Context(), ds)[0])
				elapse(c.between)
			}
			elapse(12 * time.Minute)
			s := subscriptionOf(t, b, "g")
			assert.That(t, stored(t, b, "t") == 0 && s.Overtaken == 0, "%d messages are left, %d were lost", stored(t, b, "t"), s.Overtaken)
		})
	}
}

// A purge removes parked messages too, also for a restart.
func TestPurgeOfAParkedTopic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := parkedTopic(t, fs, settings.Retention{Time: -1}, 10)
		removed, err := b.PurgeTopic(t.Context(), "t")
		assert.MustThat(t, err == nil && removed.Messages == 10, "%+v, %+v", removed, err)
		for range 2 {
			s := subscriptionOf(t, b, "g")
			if s.Backlog != (status.Backlog{}) || s.Parked+s.ParkedGroups+s.Ready+s.Inflight+s.WaitingRetry != 0 || stored(t, b, "t") != 0 {
				t.Errorf("left: %+v", s)
			}
			p, err := b.Parked("g", status.ParkedQuery{})
			assert.That(t, err == nil && len(p.Groups) == 0, "parked: %+v, %v", p, err)
			b = reopen(t, b, fs)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: "a", Body: []byte("y")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		assert.That(t, len(ds) == 1 && string(ds[0].Body) == "y", "the message group does not continue: %+v", ds)
	})
}

// Letters that were removed from the middle of the dead letters count once, with or without a
// removal of the others by retention or a purge.
func TestRetentionOfDeadLettersWithHoles(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(context.Context, *broker.Broker) error{
		"none": func(context.Context, *broker.Broker) error { return nil },
		"time": func(ctx context.Context, b *broker.Broker) error {
			_, err := b.PutTopic(ctx, "%DLQ%g", settings.Topic{Retention: settings.Retention{Time: settings.Duration(90 * time.Second)}})
			return err
		},
		"purge": func(ctx context.Context, b *broker.Broker) error {
			removed, err := b.PurgeTopic(ctx, "%DLQ%g")
			if removed != (status.Backlog{Messages: 6, Bytes: 12}) {
				return fmt.Errorf("removed %+v, %w", removed, err)
			}
			return err
		},
	} {
		subtest(t, name, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1, Retention: settings.Retention{Time: -1}})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
			putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1, DuplicateWindow: -1})
			for i := range 10 {
				mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("xy")})
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				settle(t, b, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})
				elapse(30 * time.Second)
			}
			// The 2nd, 3rd, 8th and last one go.
			sel := status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"1", "2", "7", "9"}}}
			if done, err := b.PurgeDeadLetters(t.Context(), "g", sel); err != nil || done.Purged != 4 {
				t.Fatal(done, err)
			}
			info, err := b.Topic("%DLQ%g")
			assert.MustThat(t, err == nil && info.StoredMessages == 6 && info.StoredBytes == 12, "%+v, %v", info, err)
			assert.Must(t, remove(t.Context(), b))
			elapse(2 * time.Second)
			want := map[string]int64{"none": 6, "time": 1, "purge": 0}[name] // of 90 seconds: 7, 8 and 9
			for range 2 {
				if info, err := b.Topic("%DLQ%g"); err != nil || info.StoredMessages != want || info.StoredBytes != 2*want {
					t.Errorf("%d messages, %d bytes are left, %v; want %d", info.StoredMessages, info.StoredBytes, err, want)
				}
				ds := receiveAll(t, b, "%DLQ%g")
				assert.That(t, len(ds) == int(want), "%d are delivered, want %d", len(ds), want)
				b = reopen(t, b, fs)
			}
			mustSend(t, b, &tidegate.Message{ID: "new", Topic: "t", Body: []byte("xy")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			settle(t, b, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})
			all := receiveAll(t, b, "%DLQ%g")
			if len(all) != int(want)+1 || all[want].Offset != 10 {
				t.Errorf("%d dead letters, the last one at %d; want %d and 10", len(all), all[len(all)-1].Offset, want+1)
			}
		})
	}
}

// A message that was parked for longer than it is kept is removed soon after it was redriven and
// consumed, also if retention does not depend on consumption.
func TestRetentionRemovesConsumedParkedMessages(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]settings.Retention{"time": {Time: settings.Duration(time.Hour)}, "bytes": {Time: -1, Bytes: 1}, "both": {Time: settings.Duration(10 * time.Hour), Bytes: 1}} {
		subtest(t, name, func(t *testing.T) {
			b := parkedTopic(t, vfs.NewMem(), settings.Retention{Time: -1}, 2*consume.FetchLimit)
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: r})
			elapse(2 * time.Hour)
			assert.MustEqual(t, "messages are left while they are parked", stored(t, b, "t"), 2*consume.FetchLimit)
			assert.Must(t, assert.Err(b.RedriveParked(t.Context(), "g", status.ParkedSelection{})))
			for i := range 2 * consume.FetchLimit {
				if i == 3 { // the first is not kept any more, and the next one is only on disk
					elapse(5 * time.Second)
				}
				ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}))
			}
			pause := 2 * time.Second
			if r.Bytes == 0 {
				pause = retention.MaxAgePause + time.Second
			}
			if elapse(pause); stored(t, b, "t") > r.Bytes { // messages of one byte
				t.Errorf("%d messages are left %v after all were consumed", stored(t, b, "t"), pause)
			}
		})
	}
}

// Dead letters that were redriven or purged take no space of their topic's retention, in any place.
func TestRetentionByBytesOfDeadLettersWithHoles(t *testing.T) {
	t.Parallel()
	for _, queues := range []int{1, 3} {
		subtest(t, fmt.Sprint(queues), func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1})
			putTopic(t, b, "back", settings.Topic{})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
			putTopic(t, b, "%DLQ%g", settings.Topic{Queues: queues, DuplicateWindow: -1, Retention: settings.Retention{Bytes: 1000}})
			next := 0
			letters := func(n int) {
				t.Helper()
				for range n {
					mustSend(t, b, &tidegate.Message{ID: fmt.Sprint("m", next), Topic: "t", Body: make([]byte, 100)})
					next++
					settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})
					elapse(1500 * time.Millisecond)
				}
			}
			sel := func(from, to int) (s status.DeadLetterSelection) {
				for i := from; i < to; i++ {
					s.MessageIDs = append(s.MessageIDs, fmt.Sprint("m", i))
				}
				s.To = "back"
				return s
			}
			has := func(when string, want ...int) {
				t.Helper()
				elapse(5 * time.Second)
				found := map[string]bool{}
				for _, d := range receiveAll(t, b, "%DLQ%g") {
					found[d.Properties[protocol.PropertyDeadLetterMessageID]] = true
				}
				var missing []string
				for _, i := range want {
					if id := fmt.Sprint("m", i); !found[id] {
						missing = append(missing, id)
					}
				}
				if info, err := b.Topic("%DLQ%g"); err != nil || len(missing) > 0 || len(found) != len(want) || info.StoredBytes != int64(len(want))*100 {
					t.Fatalf("%s: %d letters, %d bytes, without %s; want %v; %v", when, len(found), info.StoredBytes, strings.Join(missing, " "), want, err)
				}
			}
			letters(9)
			done, err := b.RedriveDeadLetters(t.Context(), "g", sel(2, 9))
			assert.MustThat(t, err == nil && done.Redriven == 7, "%+v, %+v", done, err)
			letters(3)
			has("500 bytes", 0, 1, 9, 10, 11)
			b = reopen(t, b, fs)
			letters(5)
			has("1000 bytes", 0, 1, 9, 10, 11, 12, 13, 14, 15, 16)
			letters(1)
			has("one too many", 1, 9, 10, 11, 12, 13, 14, 15, 16, 17)
			if done, err := b.PurgeDeadLetters(t.Context(), "g", sel(10, 12)); err != nil || done.Purged != 2 {
				t.Fatal(done, err)
			}
			letters(2)
			has("purged", 1, 9, 12, 13, 14, 15, 16, 17, 18, 19)
			letters(4) // the oldest go, with the removed ones between them
			has("four too many", 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
			putTopic(t, b, "%DLQ%g", settings.Topic{Queues: queues, DuplicateWindow: -1, Retention: settings.Retention{Bytes: 250}})
			has("a lower bound", 22, 23)
		})
	}
}

// A rewind during a search of retention for consumed messages: either they are removed before, and
// the rewind reports that they are gone, or they are delivered again. None is lost.
func TestRewindWhileRetentionPlans(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Consumed: true}})
		const n = 100
		sendN(t, b, "t", n, 1)
		for range 4 {
			ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
		}
		release := holdWrites(b) // for which the plan waits: it needs the end of the queue
		elapse(2 * retention.Pause)
		done := make(chan []status.QueueRewind)
		go func() {
			q, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})
			assert.NoError(t, err)
			done <- q
		}()
		synctest.Wait()
		release()
		q := <-done
		elapse(2 * retention.Pause)
		var got int64
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
			if len(ds) == 0 {
				break
			}
			got += int64(len(ds))
		}
		if s := subscriptionOf(t, b, "g"); len(q) != 1 || q[0].To+got != n || s.Overtaken != 0 {
			t.Errorf("%d were delivered after %+v; %d were removed before their delivery", got, q, s.Overtaken)
		}
	})
}

// Messages that a rewind skips or drops are removed soon, even if no other event starts retention.
func TestRewindAheadStartsRetention(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		retention          settings.Retention
		inflight           int
		before, afterwards int64
	}{
		"consumed by all": {settings.Retention{Time: -1, Consumed: true}, 0, 10, 0},
		"kept in flight":  {settings.Retention{Time: -1, Bytes: 40}, 2, 6, 4},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1})
			putGroup(t, b, "g", settings.Group{})
			assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})))
			sendN(t, b, "t", 10, 10)
			for range c.inflight {
				one(t, b, "g", "t")
			}
			putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: c.retention})
			elapse(10 * time.Second)
			assert.MustEqual(t, "messages at first", stored(t, b, "t"), c.before)
			assert.Must(t, assert.Err(b.Rewind(t.Context(), "g", "t", status.Position{Latest: true})))
			elapse(2 * retention.Pause)
			assert.Equal(t, "messages after the rewind", stored(t, b, "t"), c.afterwards)
		})
	}
}
