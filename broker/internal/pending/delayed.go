package pending

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// DueBatch and dueBytes bound the messages that one write moves to the queues: their number,
	// and the bytes of their bodies.
	DueBatch = 256
	dueBytes = 8 << 20

	// diskPause is the delay before the next try to move due messages while the disk is short of
	// space.
	diskPause = time.Second
)

// Delayed moves messages to their queues when their delivery time comes.
type Delayed struct {
	Config

	// Task is held while messages are recalled or purged, so that no message is also moved.
	Task *maintain.Task

	from lowerBound

	// number starts at a random value, so that a restarted process uses other numbers even if the
	// clock was set back. Changed only within the message log's Add.
	number uint64
}

// NewDelayed returns a Delayed with its task.
func NewDelayed(c Config) *Delayed {
	d := &Delayed{Config: c, number: rand.Uint64()}
	d.Task = c.Loop.Add(maintain.TaskConfig{
		Step: d.move, Failed: "delayed messages not moved to their queues", Pause: time.Second, MaxPause: time.Second,
	})
	return d
}

// Recover restores the counters of the topics and schedules the move of the first message. Nothing
// else runs yet.
func (d *Delayed) Recover(topic func(id uint32) Topic) error {
	if err := d.Store.Waiting(func(id uint32, n store.Waiting) error {
		if t := topic(id); t != nil {
			t.Counters().Restore(n)
		}
		return nil
	}); err != nil {
		return err
	}
	_, _, next, err := d.Store.Due(time.Time{}, time.Time{}, 0, 0)
	if err == nil && !next.IsZero() {
		d.Wake(next)
	}
	return err
}

// AdvanceRetries brings the messages of a retry topic forward whose delivery is further ahead than
// the delay for which the broker stored them, because the wall clock was set back since. Other
// delayed messages keep their time, which their producers chose. Nothing else runs yet.
func (d *Delayed) AdvanceRetries(t Topic, now time.Time) error {
	for from := (store.StoredDelayed{}); ; {
		page, err := d.Store.DelayedOf(t.ID(), from, DueBatch)
		if err != nil || len(page) == 0 {
			return err
		}
		from = page[len(page)-1]
		var changes []func(w *store.Batch)
		bytes := 0
		write := func() error {
			if len(changes) == 0 {
				return nil
			}
			put := d.Store.Messages.Add(func(w *store.Batch) {
				for _, change := range changes {
					change(w)
				}
			}, nil)
			err := put.Wait()
			changes, bytes = nil, 0
			return err
		}
		for _, is := range page {
			delay := is.Due.Sub(is.Stored)
			if is.Gone || is.Due.Sub(now) <= delay {
				continue
			}
			m, ok, err := d.Store.GetDelayed(is.Delayed)
			if store.IsDamage(err) || err == nil && (!ok || m.Properties[protocol.PropertyRetryTopic] != t.Name()) {
				continue
			} else if err != nil {
				return err
			}
			before := is
			is.Due = now.Add(delay)
			m.StoredAt, m.DeliverAt, m.IDHash = now, is.Due, is.IDHash
			changes = append(changes, func(w *store.Batch) {
				w.DeleteDelayed(before.Delayed, before.Stored)
				w.PutDelayed(is.Delayed, &m)
			})
			d.Wake(is.Due)
			if bytes += len(m.Body); bytes >= dueBytes {
				if err := write(); err != nil {
					return err
				}
			}
		}
		if err := write(); err != nil {
			return err
		}
	}
}

// Put writes a message with a delivery time. Only called within the message log's Add; Wake follows
// when the write is on disk.
func (d *Delayed) Put(w *store.Batch, t Topic, m *store.Message, now time.Time) store.Delayed {
	d.number++
	at := store.Delayed{Due: m.DeliverAt, Topic: t.ID(), Number: d.number}
	m.StoredAt = now
	t.HashID(m)
	w.PutDelayed(at, m)
	t.Remember(m, DelayedLocation(at), now)
	addDelayed(w, t, 1, int64(len(m.Body)))
	return at
}

// Last returns the number of the last message of Put. Only called within the message log's Add.
func (d *Delayed) Last() uint64 { return d.number }

// Wake schedules the move of messages that are due at that time of the wall clock, or later.
func (d *Delayed) Wake(due time.Time) {
	d.from.note(due)
	d.Task.Wake(due.Round(0))
}

// From returns a time before which no message is due: the next look for due messages begins there.
func (d *Delayed) From() time.Time {
	d.from.mu.Lock()
	defer d.from.mu.Unlock()
	return d.from.at
}

// move moves one batch of due messages to their queues. While the disk is short of space it moves
// none.
func (d *Delayed) move(_ context.Context, now time.Time) (next time.Time, err error) {
	if d.ShortOfDisk() {
		return now.Add(diskPause), nil
	}
	from := d.from.take()
	defer func() {
		if err != nil {
			d.from.note(from)
		} else if !next.IsZero() {
			d.from.note(next)
		}
	}()
	ds, ms, next, err := d.Store.Due(from, now, DueBatch, dueBytes)
	if err != nil || len(ds) == 0 {
		return next, err
	}
	topic := d.Topics()
	for i := range ds {
		if t := topic(ds[i].Topic); t != nil && ms[i].ID == "" {
			d.Damaged.Add(1)
			d.Logger.Error("delayed message skipped, because it is corrupt", "topic", t.Name(), "due", ds[i].Due)
		}
	}
	var published []func(error)
	moved := moves{}
	if err := d.Store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		for i := range ds {
			w.DeleteDelayed(ds[i], ms[i].StoredAt)
			t := topic(ds[i].Topic)
			if t == nil || t.Deleted() {
				continue
			}
			moved.add(t, len(ms[i].Body))
			if ms[i].ID != "" {
				published = append(published, t.Deliver(w, &ms[i], now))
			}
		}
		moved.count(w)
	}, func(err error) {
		for _, f := range published {
			f(err)
		}
	}).Wait(); err != nil {
		return time.Time{}, err
	}
	for at := time.Now(); len(ds) > 0; ds = ds[1:] {
		if topic(ds[0].Topic) != nil {
			d.Late.Observe(max(at.Sub(ds[0].Due), 0).Seconds())
		}
	}
	return next, nil
}

// moves counts the messages that one write has moved to their queues, by topic.
type moves map[Topic]store.Waiting

func (m moves) add(t Topic, bytes int) {
	n := m[t]
	m[t] = store.Waiting{Messages: n.Messages + 1, Bytes: n.Bytes + int64(bytes)}
}

func (m moves) count(w *store.Batch) {
	for _, t := range slices.SortedFunc(maps.Keys(m), func(x, y Topic) int { return int(x.ID()) - int(y.ID()) }) {
		addDelayed(w, t, -m[t].Messages, -m[t].Bytes)
	}
}

// Recall removes a delayed message before its delivery time. ok is false if the message is no
// longer waiting. ctx ends the wait for a move under way.
func (d *Delayed) Recall(ctx context.Context, t Topic, at store.Delayed) (id string, ok bool, err error) {
	release, err := d.Task.Hold(ctx)
	if err != nil {
		return "", false, err
	}
	defer release()
	m, ok, err := d.Store.GetDelayed(at)
	if err != nil || !ok {
		return "", false, err
	}
	t.HashID(&m)
	err = d.Store.Messages.Add(func(w *store.Batch) {
		w.DeleteDelayed(at, m.StoredAt)
		addDelayed(w, t, -1, -int64(len(m.Body)))
		t.Forget(m.IDHash)
	}, nil).Wait()
	return m.ID, err == nil, err
}
