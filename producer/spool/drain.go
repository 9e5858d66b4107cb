package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

const (
	batchMessages = 256
	batchBytes    = 4 << 20
)

// drainBackoff paces a queue with failing messages.
var drainBackoff = backoff.Exponential{Max: 5 * time.Second}

// errDraining is the error of a concurrent second Drain.
var errDraining = errors.New("spool: another Drain is running")

// Drain sends the messages until ctx ends, and then returns nil. It sleeps while there are none.
// Each call of send gets at most one message of each message group. send returns an error for each
// message:
//
//   - nil removes the message;
//   - a fault of the message (tidegate.IsMessageFault) moves it to the rejected messages;
//   - after any other error, for example a missing topic or rejected credentials, the message
//     stays at the head of its group.
//
// After a failed message, Drain pauses its message group: for about 1 s after the first failure, up
// to about 5 s after further ones, or for the RetryAfter of the error if that is longer. If all
// messages without a group of a topic failed in one call of send, Drain pauses these messages
// likewise. It continues with the other message groups and topics.
//
// A removal needs no space on the disk, also if the disk is full. After a crash between send and
// the removal, Drain sends the message again, with the same ID. Drain returns an error if it cannot
// read or write the files, and if another Drain is under way. If the disk rejects the record of a
// removal, the next Drain of this Spool writes that without a second send; the later messages of
// the message group wait for it. A rejection needs space for the message and its reason. Without
// space, the message stays at the head of its message group, and Drain returns an error.
func (s *Spool) Drain(ctx context.Context, send func(ctx context.Context, msgs []*tidegate.Message) []error) error {
	s.mu.Lock()
	busy := s.draining
	s.draining = true
	s.mu.Unlock()
	if busy {
		return errDraining
	}
	defer func() {
		s.mu.Lock()
		s.draining = false
		s.mu.Unlock()
	}()
	for ctx.Err() == nil {
		batch, wakeAt, err := s.next()
		if err != nil {
			return fmt.Errorf("spool: read: %w", err)
		}
		if len(batch) == 0 {
			wait, cancel := ctx, context.CancelFunc(func() {})
			if !wakeAt.IsZero() {
				wait, cancel = context.WithDeadline(ctx, wakeAt)
			}
			select {
			case <-s.wake:
			case <-wait.Done():
			}
			cancel()
			continue
		}
		if err := s.sendBatch(ctx, batch, send); err != nil {
			return err
		}
	}
	return nil
}

// An item is a pending entry with its message.
type item struct {
	entry   *entry
	queue   *queue
	sent    bool // its removal is still to be written
	header  header
	corrupt error
}

// next returns the next batch. If there is none, it returns the end of the first pause.
func (s *Spool) next() (batch []item, wakeAt time.Time, err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, time.Time{}, os.ErrClosed
	}
	list := s.index.batch(time.Now())
	wakeAt = s.index.wakeAt()
	for _, e := range list {
		batch = append(batch, item{entry: e, queue: e.queue, sent: e.sent})
	}
	s.mu.Unlock()
	for i := range batch {
		b := &batch[i]
		if b.header, b.corrupt = s.message(b.entry); errors.Is(b.corrupt, os.ErrClosed) {
			return nil, time.Time{}, os.ErrClosed
		}
	}
	return batch, wakeAt, nil
}

// sendBatch sends a batch and records the results.
func (s *Spool) sendBatch(ctx context.Context, batch []item, send func(context.Context, []*tidegate.Message) []error) error {
	clock := s.clock.Look()
	results := make([]error, len(batch))
	var msgs []*tidegate.Message
	var sent []int
	for i := range batch {
		switch b := &batch[i]; {
		case b.sent:
		case b.corrupt != nil:
			results[i] = rejection(b.corrupt.Error())
		case s.opts.MaxAge > 0 && clock.Now.Sub(b.header.Accepted) > s.opts.MaxAge && clock.Distrusted:
			results[i] = distrusted(clock.Until.Sub(clock.Now))
		case s.opts.MaxAge > 0 && clock.Now.Sub(b.header.Accepted) > s.opts.MaxAge:
			results[i] = rejection(fmt.Sprintf("it waited longer than MaxAge (%v)", s.opts.MaxAge))
		default:
			msgs, sent = append(msgs, &b.header.Message), append(sent, i)
		}
	}
	if len(msgs) > 0 {
		errs := send(ctx, msgs)
		if len(errs) != len(msgs) {
			return fmt.Errorf("spool: send returned %d errors for %d messages", len(errs), len(msgs))
		}
		s.mu.Lock()
		for n, i := range sent {
			results[i] = errs[n]
			batch[i].entry.sent = errs[n] == nil
		}
		s.mu.Unlock()
	}
	queues := make([]*queue, len(batch))
	for i, b := range batch {
		queues[i] = b.queue
	}
	s.mu.Lock()
	s.index.note(queues, results, time.Now())
	s.mu.Unlock()
	if slices.ContainsFunc(results, finished) {
		return s.record(batch, results)
	}
	s.log.Debug("no message of the spool sent", "messages", len(batch), "error", results[0])
	return nil
}

// finished reports whether a result removes a message from its queue.
func finished(err error) bool { return err == nil || tidegate.IsMessageFault(err) }

func rejection(text string) error {
	return &tidegate.Error{Op: "spool.Drain", Code: tidegate.CodeBadRequest, Message: text}
}

// distrustPause is the longest pause of a queue while the wall clock is not trusted: it may be
// corrected earlier.
const distrustPause = 5 * time.Second

// distrusted is the result of a message that is too old by a wall clock that is not trusted.
func distrusted(left time.Duration) error {
	return &tidegate.Error{Op: "spool.Drain", Code: tidegate.CodeTooManyRequests, RetryAfter: min(max(left, 0), distrustPause),
		Message: "the message is older than MaxAge by a wall clock that was set; it waits until the time is accepted"}
}

// record removes the sent entries and marks the rejected ones.
func (s *Spool) record(batch []item, results []error) error {
	var removed, rejected []*op
	var queues []*queue // of rejected
	for i, b := range batch {
		switch err := results[i]; {
		case !finished(err):
		case err == nil:
			removed = append(removed, &op{kind: kindRemoved, entry: b.entry})
		default:
			h := b.header
			h.Reason, h.Rejected, h.Corrupt = err.Error(), time.Now(), b.corrupt != nil
			value, err := encode(h, h.Message.Body)
			if err != nil {
				return fmt.Errorf("spool: reject message %s: %w", h.Message.ID, err)
			}
			rejected, queues = append(rejected, &op{kind: kindRejected, entry: b.entry, value: value}), append(queues, b.queue)
		}
	}
	if err := s.write(removed...); err != nil {
		return fmt.Errorf("spool: record the messages that were sent: %w: %w; the next attempt does not send them again; check the disk", ErrDisk, err)
	}
	if err := s.write(rejected...); err != nil { // unlike removals, they need space
		s.mu.Lock()
		s.index.note(queues, slices.Repeat([]error{ErrDisk}, len(queues)), time.Now())
		s.mu.Unlock()
		return fmt.Errorf("spool: record the messages that were rejected: %w: %w; they stay, and the later ones of their message groups; check the space on the disk", ErrDisk, err)
	}
	for i, b := range batch {
		if results[i] != nil && finished(results[i]) {
			s.log.Warn("spooled message rejected permanently",
				"topic", b.header.Message.Topic, "message_id", b.header.Message.ID, "error", results[i])
		}
	}
	return nil
}
