package broker_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// The remembered IDs are the same before and after a restart, orderly or not, with any content of
// the index and any corrupt records of it. They are exact: an ID after the end of its window is
// stored again.
func TestIDsSurviveRestartsAtRandom(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range soak(2) {
		synctest.Test(t, func(t *testing.T) {
			const window = time.Minute
			b, fs := openData(t)
			config := settings.Topic{Queues: 1 + rnd.IntN(3), DuplicateWindow: settings.Duration(window)}
			putTopic(t, b, "t", config)
			type sent struct {
				receipt tidegate.Receipt
				at      time.Time
			}
			first := map[string]sent{}
			var ids []string
			resend := func(n int) {
				for range min(n, len(ids)) {
					id := ids[len(ids)-1-rnd.IntN(min(len(ids), 3000))]
					was := first[id]
					r := send(t, b, &tidegate.Message{ID: id, Topic: "t", Body: []byte("again")})[0]
					if recent := time.Since(was.at) < window; r.Err != nil || (r.Receipt == was.receipt) != recent {
						t.Fatalf("seed %d: %s of %v ago: %+v, first %+v", seed, id, time.Since(was.at), r, was.receipt)
					}
					if r.Receipt != was.receipt {
						first[id] = sent{r.Receipt, time.Now()}
					}
				}
			}
			for range 40 {
				switch rnd.IntN(8) {
				case 0:
					b = reopen(t, b, fs)
					resend(50)
				case 1:
					fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rnd})
					b = open(t, broker.Options{Dir: "data"}.On(fs))
					resend(50)
				case 2:
					for _, k := range records(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rnd})) {
						if k[0] == 'q' && rnd.IntN(4) == 0 {
							corruptRecord(t, b, []byte(k))
						}
					}
				case 3:
					<-time.After(time.Duration(rnd.Int64N(int64(window))))
				case 4:
					if config.Queues < 8 {
						config.Queues++
						putTopic(t, b, "t", config)
					}
				default:
					msgs := make([]*tidegate.Message, 1+rnd.IntN(700))
					for i := range msgs {
						msgs[i] = &tidegate.Message{ID: fmt.Sprint("m", len(ids)+i), Topic: "t", Body: []byte("x")}
					}
					for i, r := range send(t, b, msgs...) {
						assert.Must(t, r.Err)
						ids = append(ids, msgs[i].ID)
						first[msgs[i].ID] = sent{r.Receipt, time.Now()}
					}
					resend(5)
				}
			}
		})
	}
}

// Opening reads the index, and of the messages only those behind its last
// record: others may even be damaged.
func TestOpeningReadsTheIndex(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		const n = 3*store.MaxRecentIDs + 10
		for i := range n {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
		}
		for i := range int64(3*store.MaxRecentIDs - 1) {
			corruptMessage(t, b, "t", 0, i)
		}
		for _, killed := range []bool{true, false} {
			again := fs
			if killed {
				again = fs.CrashClone(vfs.CrashCloneCfg{})
			} else if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			b := open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(again))
			if lines := strings.Count(log.String(), "\n"); lines > 1 || lines == 1 && (!killed || !strings.Contains(log.String(), "did not close")) {
				t.Errorf("killed %t: it logs %s", killed, &log)
			}
			tp := topicOf(t, b, "t")
			inLog(b, func(*store.Batch) {
				for i := range n {
					l, ok := tp.IDs().Find(tp.IDs().Hash(fmt.Sprint(i)), tp.NextOffset)
					assert.That(t, ok && l.Offset == int64(i), "killed %t: %d is at %+v, %v", killed, i, l, ok)
				}
			})
			for _, i := range []int{0, n - 1} { // the first is damaged: sent again it is stored again
				r := send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})[0]
				if damaged := i == 0; r.Err != nil || (r.Receipt.Offset == int64(i)) == damaged {
					t.Errorf("killed %t: %d sent again: %+v", killed, i, r)
				}
			}
		}
	})
}

// The index has at most the records of two windows. It is empty after a window without sends, a
// purge, a deletion, or the end of deduplication.
func TestIndexIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const window = time.Minute
		b, fs := openData(t)
		config := settings.Topic{Queues: 2, DuplicateWindow: settings.Duration(window)}
		count := func() (n int) {
			awaitWrites(t, b)
			for _, k := range records(t, fs.CrashClone(vfs.CrashCloneCfg{})) {
				if k[0] == 'q' {
					n++
				}
			}
			return n
		}
		fillIDs := func(n int) {
			for range n {
				msgs := make([]*tidegate.Message, 2*store.MaxRecentIDs)
				for i := range msgs {
					msgs[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}
				}
				mustSend(t, b, msgs...)
				<-time.After(window / 10)
			}
		}
		for _, c := range []struct {
			name  string
			clear func()
		}{
			{"silence", func() { <-time.After(2*window + 1) }},
			{"a purge", func() {
				assert.Must(t, assert.Err(b.PurgeTopic(t.Context(), "t")))
			}},
			{"no window", func() {
				none := config
				none.DuplicateWindow = -1
				putTopic(t, b, "t", none)
				<-time.After(window)
			}},
			{"a start without a window", func() {
				none := config
				none.DuplicateWindow = -1
				putTopic(t, b, "t", none)
				b = reopen(t, b, fs)
				<-time.After(window)
			}},
			{"a start and silence", func() {
				b = reopen(t, b, fs)
				<-time.After(3 * window)
			}},
			{"a start with expired IDs", func() {
				assert.Must(t, b.Close())
				<-time.After(3 * window)
				b = open(t, broker.Options{Dir: "data"}.On(fs))
				<-time.After(2 * window)
			}},
			{"a start with expired IDs and a purge", func() {
				assert.Must(t, b.Close())
				<-time.After(3 * window)
				b = open(t, broker.Options{Dir: "data"}.On(fs))
				assert.Must(t, assert.Err(b.PurgeTopic(t.Context(), "t")))
			}},
			{"the deletion", func() {
				assert.Must(t, b.DeleteTopic(t.Context(), "t"))
			}},
		} {
			putTopic(t, b, "t", config)
			for range 3 {
				fillIDs(10)
				n := count()
				assert.That(t, n >= 10 && n <= 45, "%d records of a steady stream, 20 a window", n)
			}
			c.clear()
			synctest.Wait()
			n := count()
			assert.That(t, n == 0, "after %s there are %d records", c.name, n)
			if _, err := b.Topic("t"); err == nil {
				if n := topicOf(t, b, "t").IDs().State().Unindexed; n != 0 {
					t.Errorf("after %s %d IDs are kept for the index", c.name, n)
				}
			}
		}
	})
}

// No ID is forgotten before all of them are read.
func TestIDsAreForgottenAfterOpeningOnly(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := broker.Options{Dir: "data"}.On(fs)
	b := open(t, o)
	var names []string
	for i := range 4 {
		names = append(names, fmt.Sprint("t", i))
		putTopic(t, b, names[i], settings.Topic{Type: settings.TopicDelay, DuplicateWindow: settings.Duration(20 * time.Millisecond)})
	}
	for range 10 {
		for _, name := range names {
			msgs := make([]*tidegate.Message, 500)
			for i := range msgs {
				msgs[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: name, Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)}
			}
			mustSend(t, b, msgs...)
		}
		assert.Must(t, b.Close())
		b = open(t, o)
	}
}

// The IDs of a topic are forgotten at the end of the window, also without further sends; nothing
// wakes the broker afterwards.
func TestIDsAreForgottenInSilence(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "short", settings.Topic{DuplicateWindow: settings.Duration(time.Second)})
		remembered := func(name string) (n int, watched bool) {
			ids := topicOf(t, b, name).IDs()
			inLog(b, func(*store.Batch) { n, watched = ids.State().IDs, ids.State().Expires })
			return n, watched
		}
		for _, name := range []string{"t", "short"} {
			mustSend(t, b, &tidegate.Message{ID: "a", Topic: name, Body: []byte("x")})
		}
		for _, c := range []struct {
			wait    time.Duration
			name    string
			want    int
			watched bool
		}{
			{time.Second - 1, "short", 1, true},
			{1 + time.Second, "short", 0, false},
			{2*time.Minute - 2*time.Second, "t", 1, true},
			{2 * time.Minute, "t", 0, false},
		} {
			<-time.After(c.wait)
			synctest.Wait()
			n, watched := remembered(c.name)
			assert.That(t, n == c.want && watched == c.watched, "%s remembers %d, %v; want %d, %v", c.name, n, watched, c.want, c.watched)
		}
		at := b.Engine().Parts().Catalog.ForgetsAt()
		assert.That(t, at.IsZero(), "IDs are forgotten at %v although none is remembered", at)
	})
}

// A message that is sent while the duplicate window is 0 takes the place of a delayed message with
// its ID: with a window again, the ID is new.
func TestIDSentWithoutAWindow(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		sends := func(window, delay time.Duration) tidegate.Receipt {
			t.Helper()
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, DuplicateWindow: settings.Duration(window)})
			r := send(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(delay)})[0]
			assert.NoError(t, r.Err)
			return r.Receipt
		}
		delayed := sends(time.Hour, time.Hour)
		sends(-1, 0)
		assert.That(t, sends(time.Hour, time.Hour) != delayed, "the ID was taken for that of the first message")
	})
}

// The broker stores an ID once within the window, and responds with the first receipt to its
// repetitions, also across restarts and while sends are throttled; after the window it is new.
// RocketMQ: sending retry and throttling: "As a result, duplicate messages may exist on the broker"
func TestDuplicates(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Messages: 2}})
		putTopic(t, b, "other", settings.Topic{})
		putTopic(t, b, "every", settings.Topic{DuplicateWindow: -1})
		putTopic(t, b, "short", settings.Topic{DuplicateWindow: settings.Duration(time.Second)})
		sendID := func(topic, id string) transport.SendResult {
			return b.Send(t.Context(), []*tidegate.Message{{ID: id, Topic: topic, Body: []byte(id)}})[0]
		}
		stored := func(topic string, want int64) {
			t.Helper()
			if info, err := b.Topic(topic); err != nil || info.StoredMessages != want {
				t.Errorf("%s has %d messages, want %d; %v", topic, info.StoredMessages, want, err)
			}
		}
		first := sendID("t", "a")
		for i := range 3 {
			again := sendID("t", "a")
			assert.That(t, again == first && again.Err == nil, "repeated: %+v, want %+v", again, first)
			if i == 1 {
				b = reopen(t, b, fs)
			}
		}
		stored("t", 1)
		sendID("t", "b") // now the topic is throttled
		assert.Is(t, "above the limit", sendID("t", "c").Err, tidegate.ErrThrottled)
		assert.Equal(t, "repeated while throttled", sendID("t", "a"), first)
		for topic, want := range map[string]int64{"other": 1, "every": 2, "short": 1} {
			sendID(topic, "a")
			sendID(topic, "a")
			stored(topic, want)
		}
		<-time.After(time.Second)
		sendID("short", "a")
		stored("short", 2)
		<-time.After(2 * time.Minute)
		sendID("other", "a")
		stored("other", 2)

		// Twice in one request.
		rs := b.Send(t.Context(), []*tidegate.Message{
			{ID: "x", Topic: "other", Body: []byte("1")}, {ID: "y", Topic: "other", Body: []byte("2")}, {ID: "x", Topic: "other", Body: []byte("3")},
		})
		assert.That(t, rs[2] == rs[0] && rs[1] != rs[0] && rs[0].Err == nil, "twice in one request: %+v", rs)
		stored("other", 4)
	})
}

// The memory of IDs has only hashes: another ID with the same hash is stored.
func TestEqualHashesAreNoDuplicates(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	mustSend(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("1")})
	rememberID(t, b, "t", "b", engine.PendingLocation{})
	rs := b.Send(t.Context(), []*tidegate.Message{
		{ID: "b", Topic: "t", Body: []byte("2")}, {ID: "a", Topic: "t", Body: []byte("3")}, {ID: "c", Topic: "t", Body: []byte("4")},
	})
	got := fmt.Sprint(rs[0].Receipt.Offset, rs[1].Receipt.Offset, rs[2].Receipt.Offset, rs[0].Err, rs[1].Err, rs[2].Err)
	assert.Equal(t, "offsets and errors", got, "2 0 1 <nil> <nil> <nil>")
}
