package broker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A retentionMessage is a stored message as the model knows it.
type retentionMessage struct {
	id     string
	place  [2]int64 // queue, offset
	size   int64
	sent   time.Time
	purged bool
}

// A retentionModel is a broker with retention and a plain list of the messages that were sent to
// it.
type retentionModel struct {
	t        *testing.T
	rnd      *rand.Rand
	fs       vfs.FS
	b        *broker.Broker
	config   settings.Topic
	messages []*retentionMessage
	done     map[string]bool // group + ID: acknowledged
	held     []*tidegate.Delivery
	next     map[int]int64 // by queue: the lowest offset that may come
	groups   []string
}

func TestRetentionRandom(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(5), runRetentionModel)
}

func runRetentionModel(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	k := &retentionModel{t: t, rnd: rnd, fs: vfs.NewMem(), done: map[string]bool{}, next: map[int]int64{}}
	k.b = open(t, broker.Options{Dir: "data"}.On(k.fs))
	k.config = settings.Topic{Queues: 1 + rnd.IntN(3), DuplicateWindow: settings.Duration([]time.Duration{-1, time.Second, time.Minute}[rnd.IntN(3)])}
	r := &k.config.Retention
	r.Time = settings.Duration([]time.Duration{-1, time.Minute, 10 * time.Minute}[rnd.IntN(3)])
	r.Bytes = []int64{0, 0, 2000}[rnd.IntN(3)]
	r.Consumed = rnd.IntN(2) == 0
	fifo := rnd.IntN(2) == 0
	if fifo {
		k.config.Type = settings.TopicFIFO
	}
	putTopic(t, k.b, "t", k.config)
	for i := range 1 + rnd.IntN(2) {
		g := fmt.Sprint("g", i)
		putGroup(t, k.b, g, settings.Group{FIFO: fifo && rnd.IntN(2) == 0, MaxAttempts: -1, FIFORetryInterval: settings.Duration(time.Second)})
		receive(t, k.b, transport.ReceiveRequest{Group: g, Topic: "t"})
		k.groups = append(k.groups, g)
	}
	for range 80 {
		switch n := rnd.IntN(20); {
		case n < 6:
			k.send(fifo)
		case n < 11:
			k.receive(k.groups[rnd.IntN(len(k.groups))], 1+rnd.IntN(16))
		case n < 15:
			k.settle()
		case n < 18:
			elapse(time.Duration(rnd.IntN(40_000)) * time.Millisecond)
		case n == 18:
			k.b = reopen(t, k.b, k.fs)
			synctest.Wait()
		case rnd.IntN(4) == 0:
			k.purge()
		}
		k.check()
	}
	elapse(10 * time.Minute) // all leases are over, all times too
	k.check()
	k.consumeAll()
}

func (k *retentionModel) send(fifo bool) {
	for range 1 + k.rnd.IntN(8) {
		m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, 1+k.rnd.IntN(100))}
		if fifo {
			m.MessageGroup = fmt.Sprint(k.rnd.IntN(3))
		}
		r := send(k.t, k.b, m)[0]
		if r.Err != nil || r.Receipt.Offset != k.next[r.Receipt.Queue] {
			k.t.Fatalf("sent to %+v, %v; want offset %d", r.Receipt, r.Err, k.next[r.Receipt.Queue])
		}
		k.next[r.Receipt.Queue]++
		k.messages = append(k.messages, &retentionMessage{m.ID, [2]int64{int64(r.Receipt.Queue), r.Receipt.Offset}, int64(len(m.Body)), time.Now(), false})
	}
}

func (k *retentionModel) receive(group string, n int) int {
	ds := receive(k.t, k.b, transport.ReceiveRequest{Group: group, Topic: "t", Max: n, InvisibleDuration: time.Duration(1+k.rnd.IntN(90)) * time.Second, Push: k.rnd.IntN(2) == 0})
	for _, d := range ds {
		i := slices.IndexFunc(k.messages, func(m *retentionMessage) bool { return m.id == d.ID })
		if i < 0 || k.messages[i].purged || k.done[group+d.ID] || int64(len(d.Body)) != k.messages[i].size {
			k.t.Fatalf("%s was given %s: %d, %v", group, d.ID, i, k.done[group+d.ID])
		}
	}
	k.held = append(k.held, ds...)
	return len(ds)
}

func (k *retentionModel) settle() {
	for range min(len(k.held), 1+k.rnd.IntN(16)) {
		i := k.rnd.IntN(len(k.held))
		d := k.held[i]
		k.held = slices.Delete(k.held, i, i+1)
		purged := slices.ContainsFunc(k.messages, func(m *retentionMessage) bool { return m.id == d.ID && m.purged })
		switch k.rnd.IntN(6) {
		case 0:
			_, _ = k.b.Settle(k.t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Duration(k.rnd.IntN(120)) * time.Second})
		case 1:
			serve(k.b).Return(k.t.Context(), []*tidegate.Delivery{d})
		default:
			err := k.b.Ack(k.t.Context(), []*tidegate.Delivery{d})[0]
			if err == nil {
				k.done[d.ConsumerGroup+d.ID] = true
			} else if !purged && time.Now().Before(d.InvisibleUntil) {
				k.t.Fatalf("%s is in flight until %v: %v", d.ID, d.InvisibleUntil, err)
			}
		}
	}
}

func (k *retentionModel) purge() {
	if _, err := k.b.PurgeTopic(k.t.Context(), "t"); err != nil {
		k.t.Fatal(err)
	}
	for _, m := range k.messages {
		m.purged = true
	}
}

// check compares the stored messages with those that retention allows, and the counters with the
// stored messages.
func (k *retentionModel) check() {
	synctest.Wait()
	topic := topicOf(k.t, k.b, "t")
	r, window := k.config.Retention, k.config.IDWindow()
	there := map[[2]int64]bool{}
	var total, overtaken status.Backlog
	for _, m := range k.messages {
		q := topic.Queues()[m.place[0]]
		ok := isStored(k.t, k.b, topic, uint16(m.place[0]), m.place[1])
		there[m.place] = ok
		age, low := time.Since(m.sent), q.Low().Offset
		everybody := !slices.ContainsFunc(k.groups, func(g string) bool { return !k.done[g+m.id] })
		switch {
		case ok && (m.purged || m.place[1] < low && q.Retention.Leftovers[m.place[1]] == nil):
			k.t.Fatalf("%+v was removed and is still stored", m)
		case ok:
			total.Messages++
			total.Bytes += m.size
		case m.purged:
		case age < window:
			k.t.Fatalf("%+v was removed within the duplicate window", m)
		case r.Consumed && everybody, r.Time > 0 && age >= time.Duration(r.Time), r.Bytes > 0:
		case everybody: // it had been kept for a group
		default:
			k.t.Fatalf("%+v was removed at the age of %v, and is needed", m, age)
		}
	}
	info, err := k.b.Topic("t")
	if err != nil {
		k.t.Fatal(err)
	}
	if info.StoredMessages != total.Messages || info.StoredBytes != total.Bytes {
		k.t.Fatalf("the topic reports %d messages, %d bytes; there are %+v", info.StoredMessages, info.StoredBytes, total)
	}
	for _, s := range subscriptionsTo(k.b, topic) {
		var want status.Backlog
		s.Look(func(p *consume.Progress) {
			for _, m := range k.messages {
				queue := int(m.place[0])
				l, next := p.Lease(queue, m.place[1]), p.Cursor(queue).Next
				if l != nil && !there[m.place] {
					k.t.Fatalf("%s has a lease of %+v, which is gone", s.Group().Name(), m)
				}
				if l != nil || m.place[1] >= next {
					want.Messages++
					want.Bytes += m.size
				}
				if low := s.Topic().Queues()[queue].Low().Offset; next < low {
					k.t.Fatalf("%s is at %d, the queue begins at %d", s.Group().Name(), next, low)
				}
			}
			overtaken.Messages += p.Stats().Overtaken
		})
		if got := status.Backlog(s.Backlog()); got != want {
			k.t.Fatalf("%s reports the backlog %+v, want %+v", s.Group().Name(), got, want)
		}
		if d := s.Status(); d.Ready+d.Inflight+d.WaitingRetry != want.Messages {
			k.t.Fatalf("%s reports %+v, want %d in all", s.Group().Name(), d, want.Messages)
		}
	}
	if overtaken.Messages > 0 && r.Time < 0 && r.Bytes == 0 {
		k.t.Fatalf("%d overtaken, although nothing is removed early here", overtaken.Messages)
	}
}

// consumeAll receives the rest, which must be all stored and unfinished messages.
func (k *retentionModel) consumeAll() {
	for _, g := range k.groups {
		for quiet := 0; quiet < 2; {
			n := k.receive(g, 32)
			for k.settleAll(g) {
			}
			if quiet++; n > 0 {
				quiet = 0
			}
			elapse(2 * time.Minute)
			k.check()
		}
		if s := subscriptionOf(k.t, k.b, g); s.Backlog != (status.Backlog{}) {
			k.t.Fatalf("%s is left with %+v", g, s)
		}
		for _, m := range k.messages {
			if r := k.config.Retention; !k.done[g+m.id] && !m.purged && r.Bytes == 0 && r.Time < 0 {
				k.t.Fatalf("%s never got %+v", g, m)
			}
		}
	}
	if elapse(2 * time.Minute); k.config.Retention.Consumed && stored(k.t, k.b, "t") != 0 {
		k.t.Fatalf("%d are left, although all are consumed", stored(k.t, k.b, "t"))
	}
}

func (k *retentionModel) settleAll(group string) bool {
	for i, d := range k.held {
		if d.ConsumerGroup == group {
			k.held = slices.Delete(k.held, i, i+1)
			if k.b.Ack(k.t.Context(), []*tidegate.Delivery{d})[0] == nil {
				k.done[group+d.ID] = true
			}
			return true
		}
	}
	return false
}
