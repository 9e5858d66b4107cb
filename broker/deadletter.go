package broker

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// maxReason is how long the reason of a dead letter may be, in bytes.
const maxReason = 1 << 10

// A deadLetter is a message on its way to the dead letters: written there,
// then removed from the group's leases. The mark that is written with it keeps it
// from arriving twice if the process ends in between.
type deadLetter struct {
	sub    *subscription
	lease  *lease
	place  store.Place
	reason string
	tries  int
	asked  bool // by a consumer

	flight *store.Flight // nil if there was nothing to write
	err    error
}

// dying takes a lease out of circulation. s.mu is held.
func (s *subscription) dying(l *lease, reason string) *deadLetter {
	s.set(l, StateDeadLetter)
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	// A reason goes over wires that take UTF-8 only, and may just have been cut within a rune.
	reason = strings.ToValidUTF8(reason, "")
	return &deadLetter{sub: s, lease: l, place: s.place(l), reason: reason, tries: l.Attempt}
}

// startDying begins to write dead letters, once the leases that they come from
// are on disk: after a power failure the mark finds the lease, or the message would be
// delivered as if nobody had ever had it.
func (b *Broker) startDying(ds ...*deadLetter) {
	if len(ds) == 0 {
		return
	}
	err := b.store.Groups.Add(func(*store.Batch) {}, nil).WaitSynced()
	for _, d := range ds {
		if d.err = err; err == nil {
			d.start(b)
		}
	}
}

// start writes the dead letter, without waiting for the disk.
func (d *deadLetter) start(b *Broker) {
	m, ok, err := b.store.Get(d.place)
	if store.IsDamage(err) {
		d.sub.lost(d.place, d.place.Offset+1, err)
		return
	}
	if err != nil || !ok {
		d.err = err
		return // a message that is not there any more needs no dead letter
	}
	marked, err := b.store.IsDeadLetter(d.sub.group.id, d.place)
	if err != nil || marked {
		d.err = err
		return
	}
	t, err := b.deadLetterTopic(d.sub.group.name)
	if err != nil {
		d.err = err
		return
	}
	m.Properties = d.properties(&m)
	q := (*t.queues.Load())[0]
	d.flight = b.store.Messages.Add(func(w *store.Batch) {
		if t.deleted.Load() {
			d.err = topicNotFound(t.name) // meanwhile; the next try makes it anew
			return
		}
		t.put(w, q, &m, time.Now())
		w.MarkDeadLetter(d.sub.group.id, d.place)
		d.sub.marked.Store(true)
	}, t.publish(q, 1))
}

// properties returns the message's own and those that tell where it comes from.
func (d *deadLetter) properties(m *store.Message) map[string]string {
	p := maps.Clone(m.Properties)
	if p == nil {
		p = map[string]string{}
	}
	if _, again := p[tidegate.PropertyDeadLetterTopic]; !again { // a dead letter's dead letter keeps the first origin
		p[tidegate.PropertyDeadLetterTopic] = d.sub.topic.name
		p[tidegate.PropertyDeadLetterMessageID] = m.ID
		p[tidegate.PropertyDeadLetterQueue] = strconv.Itoa(int(d.place.Queue))
		p[tidegate.PropertyDeadLetterOffset] = strconv.FormatInt(d.place.Offset, 10)
	}
	p[tidegate.PropertyDeadLetterGroup] = d.sub.group.name
	p[tidegate.PropertyDeadLetterAttempts] = strconv.Itoa(d.tries)
	p[tidegate.PropertyDeadLetterReason] = d.reason
	return p
}

// finish waits for the dead letter to be on disk and removes the lease; wait
// waits for that. If something failed, the message is due again in a second, to be tried once more.
func (d *deadLetter) finish() (removed *store.Flight) {
	if d.err == nil && d.flight != nil {
		if err := d.flight.Wait(); err != nil {
			d.err = err
		}
	}
	s := d.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || d.lease.cursor.leases[d.lease.offset] != d.lease { // deleted, or removed
		d.err = nil
		return nil
	}
	if d.err != nil {
		d.lease.Due = time.Now().Add(time.Second)
		s.set(d.lease, StateInflight)
		s.arm()
		return nil
	}
	s.finish(d.lease, StateDeadLetter, time.Now())
	if d.asked {
		s.givenUp++
	}
	return s.remove(d.lease)
}

// wait returns when what finish has written is on disk, or why it is not.
func (d *deadLetter) wait(b *Broker, removed *store.Flight) error {
	if d.err != nil {
		return storeError(d.err)
	}
	if removed == nil {
		return nil // the subscription is gone
	}
	if err := removed.WaitSynced(); err != nil {
		return storeError(err)
	}
	s := d.sub
	b.logger.Warn("a message became a dead letter", "group", s.group.name, "topic", s.topic.name,
		"queue", d.place.Queue, "offset", d.place.Offset, "attempts", d.tries, "reason", d.reason)
	return nil
}

// deadLetterTopic returns the topic of a group's dead letters, and makes it
// for the first one.
func (b *Broker) deadLetterTopic(group string) (*topic, error) {
	name := tidegate.DeadLetterTopic(group)
	b.mu.RLock()
	t := b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	// A dead letter is the broker's own doing: no request's end may stop it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), time.Minute)
	defer cancel()
	if err := b.lockAdmin(ctx); err != nil {
		return nil, fmt.Errorf("making topic %s: %w", name, err)
	}
	defer b.unlockAdmin()
	b.mu.RLock()
	t = b.topics[name]
	b.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	return b.putTopic(name, TopicConfig{Queues: 1})
}
