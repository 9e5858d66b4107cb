package cli

// This file carries the backlog of a consumer group in a topic from one server to another. It
// receives a message, sends it to the target, records that in a journal, and acknowledges the
// message at the source. A message is carried at least once, with its ID, and the messages of a
// message group or a lite topic keep their order.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// A carrySource is the server that has the messages.
type carrySource interface {
	transport.Receiver
	transport.Settler
	Capabilities(endpoint string) transport.Capabilities
}

// A carryTarget sends messages; a producer.Producer is one.
type carryTarget interface {
	SendAsync(ctx context.Context, m *tidegate.Message, done func(tidegate.Receipt, error)) error
}

// carryOptions are the settings of a run.
type carryOptions struct {
	Source  carrySource
	Target  carryTarget
	Group   string
	Topic   string // of the source
	ToTopic string
	Delay   bool // the target topic has type DELAY: each message needs a time
	Places  bool // queue and offset of a message are the same for each of its deliveries
	Workers int
	Lease   time.Duration // of a received message, extended while the target is away
	Wait    time.Duration // the longest time of one receive without a message
	Journal *carryJournal

	// Pace waits before n messages are sent. Nil means no wait.
	Pace func(ctx context.Context, n int) error

	// Done reports whether the source has no further message. Run calls it after receives without a
	// message while no message is in hand, and ends when it returns true. idle is the time since
	// the last message, and negative until the leases of an earlier run have ended.
	Done func(ctx context.Context, idle time.Duration) (bool, error)

	// OnMoved is called for each acknowledged message by one goroutine at a time.
	OnMoved func()

	// Note is called with events that a user wants to know at once: a server that is away, a
	// message that stays. Nil means none.
	Note func(text string)
}

// A carryReport counts the messages of a run.
type carryReport struct {
	Moved    int64 `json:"moved"`
	Earlier  int64 `json:"sent_by_an_earlier_run"` // and acknowledged by this one
	Attempts int64 `json:"lost_attempts"`          // messages with failed attempts, which begin with 1 again
	Unacked  int64 `json:"unacknowledged"`         // sent, and delivered by the source again
	Renamed  int64 `json:"new_ids"`                // stored under a new ID
	Keyless  int64 `json:"without_id_as_key"`      // stored without their ID as a key, which did not fit
	Aside    int64 `json:"set_aside"`              // rejected by the target; they stay at the source
	Behind   int64 `json:"behind_set_aside"`       // of the same message groups or lite topics; they stay too
}

const (
	// maxAside is the number of rejected messages after which a run ends: the target is not for
	// messages of this kind.
	maxAside = 100

	// maxLeft bounds the messages that a run leaves at the source and leases until its end.
	maxLeft = 10_000

	// asideFor is the invisible duration of a message that stays: each delivery costs an attempt.
	asideFor = 30 * time.Minute

	// maxPause is the longest pause before a failed request is repeated.
	maxPause = 10 * time.Second
)

// A mover is one run. Its workers share it; mu guards the fields below it.
type mover struct {
	carryOptions
	mu      sync.Mutex
	report  carryReport
	last    time.Time            // of the last message
	inHand  int                  // workers that carry messages
	failed  error                // of a worker
	leased  int64                // messages that this run has received and neither acknowledged nor released
	aside   map[carryKey]bool    // messages that the target rejected
	stuck   map[string]bool      // their orders, see orderOf
	left    []*tidegate.Delivery // messages that stay
	place   map[carryKey]int     // of a message in left
	waiting map[string]string    // servers that are away, with the reason
}

// carry moves messages until Done returns true, ctx ends, or an error that a repetition does not
// cure. It repeats requests that fail because a server is away or throttles, and meanwhile extends
// the leases of the messages in hand. After the end of ctx it waits for the receives under way,
// Wait at most, and finishes the messages in hand, unless their target is away.
func carry(ctx context.Context, o carryOptions) (carryReport, error) {
	m := &mover{carryOptions: o, last: time.Now(), aside: map[carryKey]bool{}, stuck: map[string]bool{}, place: map[carryKey]int{}, waiting: map[string]string{}}
	if until := o.Journal.LeasedUntil(); until.After(m.last) {
		m.last = until
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Go(func() {
			err := m.work(ctx)
			if err == nil {
				return
			}
			if !errors.Is(err, errDone) {
				m.fail(err)
			}
			stop(err)
		})
	}
	workers.Wait()
	err := context.Cause(ctx)
	if errors.Is(err, errDone) {
		err = m.failed // of a worker that received a message meanwhile
	}
	m.release(context.WithoutCancel(ctx))
	if m.leased == 0 {
		if end := m.Journal.End(); !errors.Is(err, end) { // a failed journal returns its first error
			err = errors.Join(err, end)
		}
	}
	return m.report, err
}

// errDone ends the other workers when the source is empty.
var errDone = errors.New("the source has no further message")

func (m *mover) work(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; {
		if err := m.Journal.Lease(time.Now().Add(m.Wait + m.Lease)); err != nil {
			return err
		}
		// The end of ctx does not end a receive: messages on their way would stay leased, and the
		// next run would wait for them.
		ds, err := m.Source.Receive(context.WithoutCancel(ctx), transport.ReceiveRequest{
			Group: m.Group, Topic: m.Topic, Queue: transport.AnyQueue, Max: 32, InvisibleDuration: m.Lease, Wait: m.Wait,
		})
		done := false
		switch {
		case err == nil && len(ds) > 0:
			m.away("source", nil)
			failures = 0
			if err := m.carry(ctx, ds); err != nil {
				return err
			}
			continue
		case err == nil:
			if idle, busy := m.idle(); !busy {
				done, err = m.Done(ctx, idle)
			}
		}
		switch {
		case err != nil && !again(err):
			return err
		case err != nil:
			if ctx.Err() == nil {
				m.away("source", err)
				_ = pause(ctx, failures, err) // ctx is asked above
			}
			failures++
		case done:
			return errDone
		default:
			m.away("source", nil)
			failures = 0
		}
	}
	return nil
}

// idle returns the time since the last message, and whether a worker has messages in hand.
func (m *mover) idle() (since time.Duration, busy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.last), m.inHand > 0
}

// fail keeps the first error of a worker.
func (m *mover) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = cmp.Or(m.failed, err)
}

// again reports whether a repetition can cure an error.
func again(err error) bool {
	class := tidegate.Classify(err)
	return class == tidegate.ClassTransient || class == tidegate.ClassThrottled
}

// pause waits before the repetition of a request that has failed n times before.
func pause(ctx context.Context, n int, err error) error {
	return backoff.Sleep(ctx, min(max(backoff.Default().Delay(n), tidegate.RetryAfter(err)), maxPause))
}

// away notes that a server is away, or with a nil error that it is back.
func (m *mover) away(server string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	m.mu.Lock()
	before := m.waiting[server]
	m.waiting[server] = text
	m.mu.Unlock()
	switch {
	case (before == "") == (text == ""):
	case text != "":
		m.note("waiting for the %s: %s", server, text)
	default:
		m.note("the %s responds again", server)
	}
}

func (m *mover) note(format string, args ...any) {
	if m.Note != nil {
		m.Note(fmt.Sprintf(format, args...))
	}
}

// carry sends deliveries, records them and acknowledges them. Messages of one message group are
// sent one after the other, and none after one that failed.
func (m *mover) carry(ctx context.Context, ds []*tidegate.Delivery) error {
	m.mu.Lock()
	m.leased += int64(len(ds))
	m.inHand++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.inHand--
		m.last = later(m.last, time.Now())
	}()
	keys, again := make([]carryKey, len(ds)), make([]bool, len(ds))
	for i, d := range ds {
		keys[i], again[i] = keyOf(d, m.Places), slices.Contains(d.Keys, d.ID)
	}
	names, err := m.Journal.Name(keys, again)
	if err != nil {
		return err
	}
	h := m.hold(ctx, ds)
	results := make([]error, len(ds))
	var chains sync.WaitGroup
	for _, chain := range chainsOf(ds) {
		chains.Go(func() {
			var before error // of the message group or lite topic
			for _, i := range chain {
				switch {
				case before != nil:
				case m.Journal.Sent(keys[i]):
				case m.stays(ds[i], keys[i]):
					before = errStays
				default:
					before = m.send(ctx, h.ctx, ds[i], names[i])
				}
				results[i] = before
				if tidegate.IsMessageFault(before) {
					m.setAside(ds[i], keys[i], before)
					results[i], before = errStays, errStays
				}
			}
		})
	}
	chains.Wait()
	until := h.end()
	var carried []*tidegate.Delivery
	var carriedKeys []carryKey
	var failed error
	for i, err := range results {
		switch {
		case err == nil:
			carried, carriedKeys = append(carried, ds[i]), append(carriedKeys, keys[i])
		case errors.Is(err, errStays):
			failed = cmp.Or(failed, m.leave(h.outer, ds[i], keys[i]))
		case failed == nil && !errors.Is(err, errLeaseOver) && (ctx.Err() == nil || errors.Is(context.Cause(ctx), errDone)):
			failed = fmt.Errorf("message %s: %w", ds[i].ID, err)
		}
	}
	settling, cancel := context.WithDeadline(h.outer, until)
	defer cancel()
	err = m.settle(settling, carried, carriedKeys)
	if err == nil && failed == nil {
		err = m.tooMany()
	}
	return errors.Join(err, failed)
}

// errStays is the result of a message that the target rejected, or that comes after one in its
// message group.
var errStays = errors.New("the message stays at the source")

// errLeaseOver is the result of a message whose lease could not be extended. The source delivers it
// again.
var errLeaseOver = errors.New("the lease of the message has ended before the target accepted it")

// A hold extends the leases of deliveries until it ends.
type hold struct {
	outer context.Context //nolint:containedctx // of the settlements
	ctx   context.Context //nolint:containedctx // of the sends; it ends before the leases do
	until time.Time       // the end of the leases; after end
	stop  chan struct{}
	wait  sync.WaitGroup
	drop  context.CancelCauseFunc
}

// graceful is the time for the messages in hand after the end of the run's ctx.
const graceful = 10 * time.Second

// hold extends the leases of deliveries from half their time on. A message that is sent after the
// end of its lease could pass one that was delivered again, so the ctx for sends ends before.
func (m *mover) hold(ctx context.Context, ds []*tidegate.Delivery) *hold {
	h := &hold{outer: context.WithoutCancel(ctx), until: time.Now().Add(m.Lease), stop: make(chan struct{})}
	for _, d := range ds {
		if !d.InvisibleUntil.IsZero() && d.InvisibleUntil.Before(h.until) {
			h.until = d.InvisibleUntil
		}
	}
	h.ctx, h.drop = context.WithCancelCause(h.outer)
	h.wait.Go(func() {
		interrupted := ctx.Done()
		var grace <-chan time.Time
		for next := h.until.Add(-m.Lease / 2); ; {
			select {
			case <-h.stop:
				return
			case <-interrupted:
				interrupted, grace = nil, time.After(graceful)
				continue
			case <-grace:
				h.drop(fmt.Errorf("interrupted: %w", context.Canceled))
				grace = nil
				continue
			case <-time.After(time.Until(next)):
			}
			last := h.until.Add(-m.Lease / 6)
			if !time.Now().Before(last) {
				h.drop(errLeaseOver)
				return
			}
			if until, ok := m.extend(h.outer, ds, last); ok {
				h.until = until
				next = until.Add(-m.Lease / 2)
				continue
			}
			if next = time.Now().Add(m.Lease / 24); next.After(last) {
				next = last
			}
		}
	})
	return h
}

// end ends the hold and returns the end of the leases.
func (h *hold) end() time.Time {
	close(h.stop)
	h.wait.Wait()
	h.drop(nil)
	return h.until
}

// extend extends the leases of deliveries, and returns their end. It ends at a time at the latest,
// and at the first failure.
func (m *mover) extend(ctx context.Context, ds []*tidegate.Delivery, latest time.Time) (time.Time, bool) {
	ctx, cancel := context.WithDeadline(ctx, latest)
	defer cancel()
	began := time.Now()
	if err := m.Journal.Lease(began.Add(m.Lease)); err != nil {
		return began, false
	}
	for _, d := range ds {
		handle, err := m.Source.Extend(ctx, d, m.Lease, false)
		if err != nil {
			return began, false
		}
		d.Handle = handle
	}
	return began.Add(m.Lease), true
}

// stays reports whether a message stays at the source because the target rejected it, or an earlier
// one of its message group.
func (m *mover) stays(d *tidegate.Delivery, k carryKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aside[k] || orderOf(d) != "" && m.stuck[orderOf(d)]
}

// setAside notes a message that the target rejects. It and the later ones of its message group
// stay.
func (m *mover) setAside(d *tidegate.Delivery, k carryKey, err error) {
	m.mu.Lock()
	m.aside[k] = true
	if orderOf(d) != "" {
		m.stuck[orderOf(d)] = true
	}
	m.report.Aside++
	m.mu.Unlock()
	behind := ""
	switch {
	case d.MessageGroup != "":
		behind = ", as do the later ones of message group " + strconv.Quote(d.MessageGroup)
	case d.LiteTopic != "":
		behind = ", as do the later ones of lite topic " + strconv.Quote(d.LiteTopic)
	}
	m.note("message %s stays%s: the target rejects it: %v", d.ID, behind, err)
}

// leave keeps a message that stays from being delivered again in this run. An error is one of the
// journal.
func (m *mover) leave(ctx context.Context, d *tidegate.Delivery, k carryKey) error {
	if err := m.Journal.Lease(time.Now().Add(asideFor)); err != nil {
		return err
	}
	if handle, err := m.Source.Extend(ctx, d, asideFor, false); err == nil {
		d.Handle = handle
	}
	d.Body = nil // it is released without it
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, again := m.place[k]; again { // the lease of the delivery before has ended
		m.left[i] = d
		m.leased--
		return nil
	}
	m.place[k] = len(m.left)
	m.left = append(m.left, d)
	return nil
}

// tooMany returns an error if the run leaves too many messages.
func (m *mover) tooMany() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.report.Aside < maxAside && len(m.left) < maxLeft {
		return nil
	}
	return fmt.Errorf("the target rejected %d messages, and %d stay with them; the limits are %d and %d: correct the target, or remove the messages from the source", m.report.Aside, int64(len(m.left))-m.report.Aside, maxAside, maxLeft)
}

// release releases the messages that stay, so that consumers of the source get them. Where the
// source can, their attempt does not count: else some runs would make them dead letters.
func (m *mover) release(ctx context.Context) {
	for _, d := range m.left {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		var err error
		if m.Source.Capabilities(d.Endpoint).Verdicts.Has(transport.Snooze) {
			_, err = m.Source.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze})
		} else {
			_, err = m.Source.Extend(ctx, d, 0, false)
		}
		cancel()
		if errors.Is(err, tidegate.ErrUnavailable) {
			return // the other releases would wait as long
		}
		if err == nil || errors.Is(err, tidegate.ErrInvalidHandle) { // the source has delivered it again
			m.leased--
		}
	}
	m.report.Behind = int64(len(m.left)) - m.report.Aside
}

// orderOf returns the name of the messages that stay in order with one: its message group or lite
// topic, empty for none.
func orderOf(d *tidegate.Delivery) string { return cmp.Or(d.MessageGroup, d.LiteTopic) }

// chainsOf returns the indexes of deliveries: one list for each message group or lite topic in the
// order of the deliveries, and one for each message without one.
func chainsOf(ds []*tidegate.Delivery) [][]int {
	var chains [][]int
	at := map[string]int{}
	for i, d := range ds {
		order := orderOf(d)
		n, ok := at[order]
		if order == "" || !ok {
			at[order] = len(chains)
			chains = append(chains, []int{i})
			continue
		}
		chains[n] = append(chains[n], i)
	}
	return chains
}

// carried returns the message that the target gets: with the ID of the journal, the message's own
// ID as a key too, and the delivery time of a delayed message.
//
// A message that has its ID as a key already was moved before, perhaps from this target. A tidegate
// broker that stored the ID minutes ago would treat the message as a duplicate and drop it. The
// journal gives it a new ID, and it keeps its key.
func carried(d *tidegate.Delivery, id, topic string, delay bool) *tidegate.Message {
	out := d.Forward(topic)
	if out.ID = id; !slices.Contains(out.Keys, d.ID) {
		out.Keys = append(slices.Clone(out.Keys), d.ID)
	}
	if delay {
		if out.DeliverAt = d.DeliverAt; out.DeliverAt.IsZero() {
			out.DeliverAt = d.StoredAt // a time in the past means now
		}
	}
	return out
}

// attemptFor bounds a send, with the attempts of the producer. Then the send is repeated.
const attemptFor = 15 * time.Second

// send sends a message until the target accepts or rejects it, or the ctx of sends or the run ends.
// If the target rejects the message with its ID as a key, it is sent without that key.
func (m *mover) send(ctx, sends context.Context, d *tidegate.Delivery, id string) error {
	if m.Pace != nil {
		if err := m.Pace(sends, 1); err != nil {
			return cmp.Or(context.Cause(sends), err)
		}
	}
	waits, cancel := context.WithCancel(sends)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	out := carried(d, id, m.ToTopic, m.Delay)
	keyless := false
	for n := 0; ; n++ {
		if sends.Err() != nil {
			return context.Cause(sends)
		}
		err := m.attempt(sends, out)
		switch {
		case err == nil:
			m.away("target", nil)
			m.stored(d, id, keyless)
			return nil
		case sends.Err() != nil:
			return context.Cause(sends)
		case tidegate.IsMessageFault(err) && len(out.Keys) > len(d.Keys):
			out, keyless = out.Clone(), true
			out.Keys = d.Keys
			continue
		case !again(err) || ctx.Err() != nil:
			return err
		}
		m.away("target", err)
		if pause(waits, n, err) != nil && sends.Err() == nil {
			return err // the run ends
		}
	}
}

func (m *mover) attempt(ctx context.Context, out *tidegate.Message) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attemptFor, fmt.Errorf("no response within %v: %w", attemptFor, context.DeadlineExceeded))
	defer cancel()
	result := make(chan error, 1)
	if err := m.Target.SendAsync(ctx, out, func(_ tidegate.Receipt, err error) { result <- err }); err != nil {
		return err
	}
	return <-result
}

// stored counts a message that the target has.
func (m *mover) stored(d *tidegate.Delivery, id string, keyless bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id != d.ID {
		m.report.Renamed++
	}
	if keyless {
		m.report.Keyless++
	}
}

// settle records sent messages and acknowledges them. A message whose acknowledgement fails is
// delivered again by the source; the journal then keeps it from a second send. Messages that the
// journal cannot record are acknowledged too: else the next run would send them again.
func (m *mover) settle(ctx context.Context, ds []*tidegate.Delivery, keys []carryKey) error {
	if len(ds) == 0 {
		return nil
	}
	var fresh []carryKey
	for _, k := range keys {
		if !m.Journal.Sent(k) {
			fresh = append(fresh, k)
		}
	}
	err := m.Journal.mark(sentEvent, fresh, true)
	acked, gone := m.acknowledge(ctx, ds, keys)
	if err == nil {
		err = m.Journal.mark(ackedEvent, acked, false)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.report.Moved += int64(len(fresh))
	m.report.Earlier += int64(len(keys) - len(fresh))
	m.report.Unacked += int64(len(ds) - len(acked))
	m.leased -= int64(len(acked) + gone)
	for _, d := range ds {
		if d.Attempt > 1 {
			m.report.Attempts++
		}
		if m.OnMoved != nil {
			m.OnMoved()
		}
	}
	return err
}

// acknowledge acknowledges deliveries, and repeats it until the end of ctx while the source is
// away. It returns the keys of the acknowledged ones, and the number of those whose leases had
// ended.
func (m *mover) acknowledge(ctx context.Context, ds []*tidegate.Delivery, keys []carryKey) (acked []carryKey, gone int) {
	for n := 0; len(ds) > 0; n++ {
		var rest []*tidegate.Delivery
		var restKeys []carryKey
		var failed error
		for i, err := range m.Source.Ack(ctx, ds) {
			switch {
			case err == nil:
				acked = append(acked, keys[i])
			case errors.Is(err, tidegate.ErrInvalidHandle):
				gone++
			case again(err):
				rest, restKeys, failed = append(rest, ds[i]), append(restKeys, keys[i]), err
			}
		}
		ds, keys = rest, restKeys
		if len(ds) == 0 {
			break
		}
		m.away("source", failed)
		if pause(ctx, n, failed) != nil {
			break
		}
	}
	return acked, gone
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

var _ carryTarget = (*producer.Producer)(nil)
