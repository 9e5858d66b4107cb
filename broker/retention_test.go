package broker_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

func stored(tb testing.TB, b *broker.Broker, topic string) int64 {
	tb.Helper()
	info := assert.Value(b.Topic(topic))(tb)
	return info.StoredMessages
}

func subscriptionOf(tb testing.TB, b *broker.Broker, group string) status.Subscription {
	tb.Helper()
	g, err := b.Group(group)
	assert.MustThat(tb, err == nil && len(g.Topics) == 1, "group %s: %+v, %v", group, g, err)
	return g.Topics[0]
}

func sendN(tb testing.TB, b *broker.Broker, topic string, n, size int) {
	tb.Helper()
	for range n {
		mustSend(tb, b, &tidegate.Message{Topic: topic, Body: make([]byte, size)})
	}
}

// reopen closes a broker and opens another one on the same files.
func reopen(tb testing.TB, b *broker.Broker, fs vfs.FS) *broker.Broker {
	tb.Helper()
	assert.Must(tb, b.Close())
	return open(tb, broker.Options{Dir: "data"}.On(fs))
}

// elapse lets time pass, and waits for its effects.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A message is there until the moment in which its time is over, consumed or not, also after a
// restart; offsets continue.
func TestRetentionByTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topic  string
		config settings.Duration
		age    time.Duration
	}{{"t", settings.Duration(time.Hour), time.Hour}, {"%DLQ%g", settings.Duration(time.Hour), time.Hour}, {"t", settings.Duration(time.Second), 2 * time.Minute}, {"t", 0, 72 * time.Hour}} {
		subtest(t, fmt.Sprint(c), func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, c.topic, settings.Topic{Queues: 1, Retention: settings.Retention{Time: c.config}})
			sendN(t, b, c.topic, 10, 100)
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: c.topic, Max: 4})
			ackDeliveriesNow(t, b, ds)
			elapse(c.age / 2)
			b = reopen(t, b, fs)
			elapse(c.age/2 - 1)
			assert.MustEqual(t, "just before: messages", stored(t, b, c.topic), 10)
			elapse(1)
			assert.MustEqual(t, "just after: messages", stored(t, b, c.topic), 0)
			s := subscriptionOf(t, b, "g")
			assert.That(t, s.Overtaken == 6 && s.Backlog == (status.Backlog{}) && s.Ready == 0, "the group is left with %+v", s)
			for range 2 {
				if n := serve(b).Stats().Topics[0]; n.Stored != (status.Backlog{}) || n.Backlog != (status.Backlog{}) {
					t.Errorf("left: %+v", n)
				}
				b = reopen(t, b, fs)
			}
			r := send(t, b, &tidegate.Message{Topic: c.topic, Body: []byte("next")})[0]
			assert.That(t, r.Err == nil && r.Receipt.Offset == 10, "the next message: %+v", r)
			for _, group := range []string{"g", "new"} {
				ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: c.topic, Max: 4})
				assert.That(t, len(ds) == 1 && string(ds[0].Body) == "next", "%s received %v", group, ds)
			}
		})
	}
}

// Messages that are to be kept without end are kept: dead letters by default, others on request.
func TestRetentionForEver(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Retention: settings.Retention{Time: -1}})
		putTopic(t, b, "%DLQ%g", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		sendN(t, b, "%DLQ%g", 3, 1)
		elapse(10000 * time.Hour)
		assert.Equal(t, "are left", stored(t, b, "t")+stored(t, b, "%DLQ%g"), 6)
		putTopic(t, b, "t", settings.Topic{Retention: settings.Retention{Time: settings.Duration(time.Hour)}}) // a change holds at once
		elapse(1)
		assert.Equal(t, "are left", stored(t, b, "t"), 0)
	})
}

// A stream of messages is removed in steps, not one by one: never early, and
// not more than a 64th of the time late.
func TestRetentionOfAStream(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		const retention = 64 * time.Minute
		putTopic(t, b, "t", settings.Topic{Queues: 2, Retention: settings.Retention{Time: settings.Duration(retention)}})
		for i := range 300 {
			sendN(t, b, "t", 1, 10)
			elapse(time.Minute/2 - 1)
			age := min(int64(i)+1, 128)
			n := stored(t, b, "t")
			assert.MustThat(t, n >= age && n <= age+3, "after %d messages there are %d, want %d to %d", i+1, n, age, age+3)
			elapse(1)
		}
		for _, d := range receiveAll(t, b, "t") {
			age := time.Since(d.StoredAt)
			assert.That(t, age <= retention+time.Minute, "one is %v old", age)
		}
	})
}

// Messages that are in flight, wait for their retry, or were ready again just now are kept.
// Messages that were never received are not.
func TestRetentionKeepsUnfinishedMessages(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			subtest(t, fmt.Sprintf("fifo %v restart %v", fifo, restart), func(t *testing.T) {
				var o broker.Options // in memory time costs less
				fs := vfs.NewMem()
				if restart {
					o = broker.Options{Dir: "data"}.On(fs)
				}
				b := open(t, o)
				c := settings.Topic{Queues: 1, Retention: settings.Retention{Time: settings.Duration(3 * time.Hour)}}
				if fifo {
					c.Type = settings.TopicFIFO
				}
				putTopic(t, b, "t", c)
				putGroup(t, b, "g", settings.Group{FIFO: fifo, MaxAttempts: 2})
				groups := []string{"inflight", "waiting", "ready", "new", "inflight"} // in a FIFO group the last one is held
				for i, g := range groups {
					m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte(g)}
					if fifo {
						m.MessageGroup = g
					}
					mustSend(t, b, m)
				}
				elapse(90 * time.Minute)
				req := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 2 * time.Hour, Push: true, Max: 1}
				inflight := receive(t, b, req)[0]
				waiting := receive(t, b, req)[0]
				settle(t, b, waiting, transport.Verdict{Kind: transport.Retry, Delay: 2 * time.Hour})
				req.InvisibleDuration, req.Push = time.Hour, false
				receive(t, b, req)
				if fifo { // skips the last one
					req.Queue, req.Max = transport.AnyQueue, 1
					serve(b).Return(t.Context(), receive(t, b, req))
				}
				elapse(90 * time.Minute) // the third is ready for half an hour
				assert.MustEqual(t, "messages are left", stored(t, b, "t"), 3)
				if s := subscriptionOf(t, b, "g"); s.Overtaken != 2 || s.Backlog.Messages != 3 || s.Ready != 1 || s.Inflight != 1 || s.WaitingRetry != 1 {
					t.Errorf("the group has %+v", s)
				}
				if restart {
					b = reopen(t, b, fs)
					elapse(time.Minute)
					if s := subscriptionOf(t, b, "g"); s.Backlog.Messages != 3 || stored(t, b, "t") != 3 {
						t.Errorf("after a restart the group has %+v, the topic %d", s, stored(t, b, "t"))
					}
				}
				assert.NoError(t, b.Ack(t.Context(), []*tidegate.Delivery{inflight})[0])
				elapse(time.Hour)
				if n, s := stored(t, b, "t"), subscriptionOf(t, b, "g"); n != 1 || s.Backlog.Messages != 1 || s.Ready != 1 {
					t.Errorf("%d messages are left, want the one that waited; the group has %+v", n, s)
				}
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Wait: time.Hour, Max: 8})
				assert.MustThat(t, len(ds) == 1 && string(ds[0].Body) == "waiting" && ds[0].Attempt == 2, "received %v", ds)
				if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Hour}); err != nil { // the last attempt
					t.Error(err)
				}
				if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 1 || string(ds[0].Body) != "waiting" {
					t.Errorf("dead letters: %v", ds)
				}
				elapse(2 * time.Hour)
				assert.Equal(t, "messages are left", stored(t, b, "t"), 0)
			})
		}
	}
}

// Messages that every group has finished are removed once the duplicate window is over. A group
// that has only received nothing counts, also after a restart.
func TestRetentionOfConsumed(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Queues: 2, Retention: settings.Retention{Consumed: true}})
		for _, g := range []string{"one", "two"} {
			ds := receive(t, b, transport.ReceiveRequest{Group: g, Topic: "t"})
			assert.MustThat(t, len(ds) == 0, "%+v", ds)
		}
		b = reopen(t, b, fs)
		mustSend(t, b, &tidegate.Message{ID: "twice", Topic: "t", Body: make([]byte, 10)})
		sendN(t, b, "t", 9, 10)
		consume := func(group string, n int) {
			t.Helper()
			ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: n})
			ackDeliveriesNow(t, b, ds)
			assert.MustThat(t, len(ds) == n, "%s received %d, want %d", group, len(ds), n)
		}
		consume("one", 10)
		elapse(time.Hour)
		assert.MustEqual(t, "are left, but no other group has consumed any", stored(t, b, "t"), 10)
		consume("two", 10)
		elapse(retention.Pause)
		assert.MustEqual(t, "are left, but all groups have consumed all", stored(t, b, "t"), 0)
		assert.Equal(t, "removed as consumed", serve(b).Stats().Topics[0].Removed[retention.Consumed], 10)
		// Within the duplicate window consumed messages stay, so that their IDs are known.
		mustSend(t, b, &tidegate.Message{ID: "twice", Topic: "t", Body: make([]byte, 10)})
		consume("one", 1)
		consume("two", 1)
		elapse(2*time.Minute - time.Second)
		b = reopen(t, b, fs)
		mustSend(t, b, &tidegate.Message{ID: "twice", Topic: "t", Body: make([]byte, 10)})
		assert.Equal(t, "are left", stored(t, b, "t"), 1)
		elapse(2 * time.Second)
		assert.Equal(t, "are left after the duplicate window", stored(t, b, "t"), 0)
		assert.Equal(t, "overtaken", subscriptionOf(t, b, "one").Overtaken, 0)
		// A group that goes away holds nothing back.
		sendN(t, b, "t", 5, 10)
		consume("one", 5)
		elapse(time.Hour)
		assert.Must(t, b.DeleteGroup(t.Context(), "two"))
		elapse(2 * time.Second)
		assert.Equal(t, "are left that only a deleted group needed", stored(t, b, "t"), 0)
	})
}

// One message that fails does not keep all behind it on disk: it is left alone.
func TestConsumedStepsOverFailedMessages(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Consumed: true}})
		sendN(t, b, "t", retention.StepOver+1, 10)
		var failed *tidegate.Delivery
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Push: true})
			if len(ds) == 0 {
				break
			}
			if failed == nil {
				failed, ds = ds[0], ds[1:]
			}
			b.Ack(t.Context(), ds)
		}
		settle(t, b, failed, transport.Verdict{Kind: transport.Retry, Delay: 5 * time.Hour})
		elapse(2 * time.Second)
		for range 2 {
			assert.MustEqual(t, "are left", stored(t, b, "t"), 1)
			for offset := range int64(retention.StepOver + 1) {
				is := isStored(t, b, topicOf(t, b, "t"), 0, offset)
				assert.That(t, is == (offset == failed.Offset), "offset %d is on disk: %t", offset, is)
			}
			b = reopen(t, b, fs)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 6 * time.Hour})
		assert.MustThat(t, len(ds) == 1 && ds[0].Offset == failed.Offset, "received %v", ds)
		b.Ack(t.Context(), ds)
		elapse(2 * time.Second)
		assert.Equal(t, "are left", stored(t, b, "t"), 0)
	})
}

// sizeOf returns the bytes of all files in a directory but write-ahead logs,
// which are used again and have a size of their own.
func sizeOf(tb testing.TB, dir string) (size int64) {
	tb.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".log" {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // Pebble removes unneeded files in the background
		}
		if err != nil {
			return err
		}
		size += info.Size()
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return size
}

// fill sends n times 16 messages of 32 KiB to each of the topics in turn.
func fillTopic(tb testing.TB, b *broker.Broker, n int, topics ...string) {
	tb.Helper()
	noise := rand.NewChaCha8([32]byte{}) // the written data is compressed
	for range n {
		for _, topic := range topics {
			msgs := make([]*tidegate.Message, 16)
			for j := range msgs {
				body := make([]byte, 32<<10)
				_, _ = noise.Read(body)
				msgs[j] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: body}
			}
			mustSend(tb, b, msgs...)
		}
	}
}

// Each removal of messages returns disk space. Messages that share files with removed ones stay.
func TestDiskIsReclaimed(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for name, remove := range map[string]func(*testing.T, *broker.Broker){
		"consumed": func(t *testing.T, b *broker.Broker) {
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Consumed: true}})
			for {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
				if len(ds) == 0 {
					break
				}
				b.Ack(t.Context(), ds)
			}
		},
		"time": func(t *testing.T, b *broker.Broker) {
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(30 * time.Second)}})
		},
		"bytes": func(t *testing.T, b *broker.Broker) {
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Bytes: 1 << 20}})
		},
		"purge": func(t *testing.T, b *broker.Broker) {
			removed, err := b.PurgeTopic(t.Context(), "t")
			assert.That(t, err == nil && removed == (status.Backlog{Messages: 320, Bytes: 10 * mb}), "removed %+v, %v", removed, err)
		},
		"deletion": func(t *testing.T, b *broker.Broker) {
			assert.NoError(t, b.DeleteTopic(t.Context(), "t"))
		},
	} {
		subtest(t, name, func(t *testing.T) {
			dir := t.TempDir()
			b := open(t, broker.Options{Dir: dir}.MemTable(1<<20))
			putTopic(t, b, "t", settings.Topic{})
			putTopic(t, b, "other", settings.Topic{Retention: settings.Retention{Time: -1}})
			fillTopic(t, b, 16, "t")
			fillTopic(t, b, 4, "t", "other")
			if name == "purge" { // exactly the settings above
				assert.Must(t, assert.Err(b.PurgeTopic(t.Context(), "other")))
				fillTopic(t, b, 4, "other")
			}
			nearReclaim(b, 8*mb)
			before := sizeOf(t, dir)
			remove(t, b)
			elapse(time.Minute)
			after, st := sizeOf(t, dir), serve(b).Stats().MessageStore
			t.Logf("%d KiB before, %d after; with the logs %d", before>>10, after>>10, st.Disk>>10)
			assert.That(t, before >= 8*mb && after <= 5*mb && st.Disk <= 12*mb,
				"%d bytes on disk before, %d after; Pebble reports %d", before, after, st.Disk)
			assert.Equal(t, "messages of another topic", len(receiveAll(t, b, "other")), 64)
		})
	}
}

// The next round removes the messages that a round could not remove after it had moved the queue's
// beginning, for the same cause. A restart in between does no harm.
func TestFailedRoundIsRepeated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		purge, restart bool
		remaining      int64
		cause          retention.Cause
	}{{false, false, 1, retention.TooOld}, {false, true, 1, retention.TooOld}, {true, false, 1, retention.Purged}} {
		subtest(t, fmt.Sprintf("%+v", c), func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			sendN(t, b, "t", 3, 100)
			held := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
			release := holdRetention(t, b)
			time.Sleep(time.Minute + time.Second)
			w := assert.Value(b.Engine().Parts().Retention.Begin(topicOf(t, b, "t"), time.Now(), c.purge))(t)
			var repairs []func()
			for o := range int64(3) { // the message to keep cannot be read, nor its neighbour
				repairs = append(repairs, corruptMessage(t, b, "t", 0, o))
			}
			if !c.purge { // which reads nothing, and is left at that
				assert.MustThat(t, w.Run(t.Context()) != nil, "a round that cannot read the kept messages has no error")
			}
			for _, repair := range repairs {
				repair()
			}
			if c.restart {
				b = reopen(t, b, fs)
			} else {
				release()
			}
			elapse(2 * time.Minute)
			assert.Equal(t, "messages are left", stored(t, b, "t"), c.remaining)
			st := serve(b).Stats().Topics[0]
			assert.That(t, st.Removed[c.cause] == 3-c.remaining && st.Stored.Bytes == c.remaining*100,
				"removed %v, %d bytes are left", st.Removed, st.Stored.Bytes)
			if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{Messages: c.remaining, Bytes: c.remaining * 100}) || s.Inflight != c.remaining {
				t.Errorf("the group has %+v", s)
			}
			if tp := topicOf(t, b, "t"); tp.Written().Messages != tp.Before().Messages || tp.Written().Bytes != tp.Before().Bytes {
				t.Errorf("%d of %d messages, %d of %d bytes are counted as removed", tp.Before().Messages, tp.Written().Messages, tp.Before().Bytes, tp.Written().Bytes)
			}
			if err := b.Ack(t.Context(), held)[0]; (err == nil) != (c.remaining > 0) {
				t.Error(err)
			}
			if elapse(2 * time.Minute); stored(t, b, "t") != 0 {
				t.Errorf("%d messages are left", stored(t, b, "t"))
			}
		})
	}
}

// The space of single messages that were kept and then removed can be returned.
func TestDiskOfKeptMessagesIsReclaimed(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
		sendN(t, b, "t", 2, 100)
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
		elapse(2 * time.Minute)
		assert.MustEqual(t, "messages are kept", stored(t, b, "t"), 1)
		nearReclaim(b, 200)
		assert.Must(t, b.Ack(t.Context(), d)[0])
		elapse(5 * time.Second)
		assert.Equal(t, "bytes are left to be reclaimed", freed(b).Bytes(), 0)
	})
}

// The disk space of half messages that a purge removes is returned.
func TestDiskOfHalfMessagesIsReclaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const mb = 1 << 20
		dir := t.TempDir()
		b := open(t, broker.Options{Dir: dir}.MemTable(1<<20))
		nearReclaim(b, 8*mb)
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		noise := rand.NewChaCha8([32]byte{}) // the written data is compressed
		for i := range 12 {
			body := make([]byte, mb)
			_, _ = noise.Read(body)
			r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: body}, time.Hour)
			assert.MustThat(t, r.Err == nil, "%+v", r.Err)
		}
		before := sizeOf(t, dir)
		removed, err := b.PurgeTopic(t.Context(), "t")
		assert.That(t, err == nil && removed.Bytes == 12*mb, "removed %+v, %v", removed, err)
		elapse(time.Minute)
		after := sizeOf(t, dir)
		t.Logf("%d KiB before, %d after", before>>10, after>>10)
		assert.That(t, before >= 10*mb && after <= 2*mb && freed(b).Bytes() == 0, "%d bytes on disk before, %d after", before, after)
	})
}

// Disk space that becomes free while other space is returned is returned after it.
func TestReclaimContinuesWithLaterRemovals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := newStallFS(createsTable)
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		fs.hold(true)
		for _, name := range []string{"a", "b"} {
			putTopic(t, b, name, settings.Topic{Queues: 1})
			sendN(t, b, name, 2, 100)
			nearReclaim(b, 0)
			assert.Must(t, b.DeleteTopic(t.Context(), name))
			elapse(time.Second)
			if n := freed(b).Bytes(); (n == 0) != (name == "a") { // the first reclaim has not ended
				t.Fatalf("after topic %s, %d bytes wait", name, n)
			}
		}
		fs.hold(false)
		elapse(time.Second)
		assert.Equal(t, "bytes are left to be reclaimed", freed(b).Bytes(), 0)
	})
}

// A delayed message is on time while the return of disk space takes an hour.
func TestReclaimDelaysNoDueMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := newStallFS(createsTable)
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		putTopic(t, b, "d", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		mustSend(t, b, &tidegate.Message{ID: "a", Topic: "d", Body: []byte("x"), DeliverAt: time.Now().Add(time.Minute)})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		sendN(t, b, "t", 2, 100)
		fs.hold(true)
		nearReclaim(b, 0)
		assert.Must(t, b.DeleteTopic(t.Context(), "t"))
		elapse(time.Minute)
		assert.Equal(t, "messages are delivered after a minute", stored(t, b, "d"), 1)
		fs.hold(false)
	})
}

// Topics that are created and deleted repeatedly leave little behind: an empty topic leaves no
// record, any other topic its number, until there are many.
func TestDeletedTopicsLeaveLittle(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		for i := range uint32(retention.ReclaimTopics - 5) {
			freed(b).AddDeleted(1<<31+i, 0, true, 0)
		}
		for i := range 20 {
			putTopic(t, b, "t", settings.Topic{Queues: 16, DuplicateWindow: -1})
			if i%2 == 0 {
				sendN(t, b, "t", 3, 10)
			}
			if i%4 == 0 {
				assert.Must(t, assert.Err(b.PurgeTopic(t.Context(), "t")))
			}
			assert.Must(t, b.DeleteTopic(t.Context(), "t"))
			synctest.Wait()
			ranges, topics := freed(b).Remembered()
			assert.MustThat(t, ranges <= 0 && topics <= retention.ReclaimTopics, "%d ranges and %d topics are remembered", ranges, topics)
		}
		if _, topics := freed(b).Remembered(); topics != 5 || freed(b).Bytes() > 1000 {
			t.Errorf("%d topics with %d bytes are remembered, want the last 5", topics, freed(b).Bytes())
		}
	})
}
