package spool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
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
//   - a fault of the message (transport.IsMessageFault) moves it to the rejected messages;
//   - after any other error, for example a missing topic or rejected credentials, the message
//     stays at the head of its group.
//
// After a failed message, Drain pauses its message group: for about 1 s after the first failure, up
// to about 5 s after further ones, or for the RetryAfter of the error if that is longer. If all
// messages without a group of a topic failed in one call of send, Drain pauses these messages
// likewise. It continues with the other message groups and topics.
//
// After a crash between send and the removal, Drain sends the message again, with the same ID.
// Drain returns an error if it cannot read or write the file, and if another Drain is under way.
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
	failed := pauses{}
	var after []byte // the last queue of the previous batch
	for ctx.Err() == nil {
		batch, err := s.next(after, failed)
		if err != nil {
			return fmt.Errorf("spool: read: %w", closed(err))
		}
		if len(batch) == 0 {
			wait, cancel := failed.wait(ctx)
			select {
			case <-s.wake:
			case <-wait.Done():
			}
			cancel()
			continue
		}
		after = batch[len(batch)-1].queue
		if err := s.sendBatch(ctx, batch, failed, send); err != nil {
			return err
		}
	}
	return nil
}

// pauses are the waits of queues with failed messages.
type pauses map[string]pause

type pause struct {
	failures int // consecutive ones
	until    time.Time
}

// note updates the pauses after a batch.
func (p pauses) note(batch []item, results []error, now time.Time) {
	asked, progress := map[string]time.Duration{}, map[string]bool{}
	for i, b := range batch {
		queue := string(b.queue)
		if finished(results[i]) {
			progress[queue] = true
			continue
		}
		asked[queue] = max(asked[queue], tidegate.RetryAfter(results[i]))
	}
	for queue := range progress {
		delete(p, queue)
	}
	for queue, wait := range asked {
		if !progress[queue] {
			n := p[queue].failures
			p[queue] = pause{n + 1, now.Add(max(wait, drainBackoff.Delay(n)))}
		}
	}
}

// over reports whether the pause of the queue is over.
func (p pauses) over(queue []byte, now time.Time) bool {
	return !now.Before(p[string(queue)].until)
}

// wait returns a ctx that ends with ctx or with the first pause.
func (p pauses) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	var first time.Time
	for _, pause := range p {
		if first.IsZero() || pause.until.Before(first) {
			first = pause.until
		}
	}
	if first.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, first)
}

// An item is a pending entry.
type item struct {
	queue   []byte
	seq     uint64
	size    int
	header  header
	corrupt error
}

// next returns the next batch: the head of each message group and the first messages of each topic
// without a group. It starts with the queue after the given one, and skips queues in a pause.
func (s *Spool) next(after []byte, failed pauses) ([]item, error) {
	var batch []item
	now := time.Now()
	err := s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketPending).Cursor()
		bytes := 0
		full := func() bool { return len(batch) >= batchMessages || bytes >= batchBytes }
		visit := func(queue []byte) {
			if !failed.over(queue, now) {
				return
			}
			limit := 1
			if !grouped(string(queue)) {
				limit = batchMessages / 2 // the other half is for other queues
			}
			entries := tx.Bucket(bucketPending).Bucket(queue).Cursor()
			for k, v := entries.First(); k != nil && limit > 0 && !full(); k, v = entries.Next() {
				h, err := decode(slices.Clone(v)) // v is valid only during the transaction
				batch = append(batch, item{slices.Clone(queue), sequence(k), len(v), h, err})
				bytes += len(v)
				limit--
			}
		}
		start, _ := c.Seek(append(slices.Clone(after), 0))
		for k := start; k != nil && !full(); k, _ = c.Next() {
			visit(k)
		}
		for k, _ := c.First(); k != nil && string(k) <= string(after) && !full(); k, _ = c.Next() {
			visit(k)
		}
		return nil
	})
	return batch, err
}

// sendBatch sends a batch and records the results.
func (s *Spool) sendBatch(ctx context.Context, batch []item, failed pauses, send func(context.Context, []*tidegate.Message) []error) error {
	now := time.Now()
	results := make([]error, len(batch))
	var msgs []*tidegate.Message
	var sent []int
	for i := range batch {
		switch b := &batch[i]; {
		case b.corrupt != nil:
			results[i] = rejection(b.corrupt.Error())
		case s.opts.MaxAge > 0 && now.Sub(b.header.Accepted) > s.opts.MaxAge:
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
		for n, i := range sent {
			results[i] = errs[n]
		}
	}
	failed.note(batch, results, time.Now())
	if slices.ContainsFunc(results, finished) {
		return s.record(batch, results)
	}
	s.log.Debug("no message of the spool sent", "messages", len(batch), "error", results[0])
	return nil
}

// finished reports whether a result removes a message from its queue.
func finished(err error) bool { return err == nil || transport.IsMessageFault(err) }

func rejection(text string) error {
	return &tidegate.Error{Op: "spool.Drain", Code: tidegate.CodeBadRequest, Message: text}
}

// record removes the sent entries and moves the rejected ones.
func (s *Spool) record(batch []item, results []error) error {
	moved := map[uint64][]byte{}
	err := s.db.Update(func(tx *bolt.Tx) error {
		pending, rejected := tx.Bucket(bucketPending), tx.Bucket(bucketRejected)
		for i, b := range batch {
			if !finished(results[i]) {
				continue
			}
			q := pending.Bucket(b.queue)
			if err := results[i]; err != nil {
				value := slices.Clone(q.Get(key(b.seq)))
				if b.corrupt == nil {
					h := b.header
					h.Reason, h.Rejected = err.Error(), time.Now()
					var err error
					if value, err = encode(h, b.header.Message.Body); err != nil {
						return err
					}
				}
				if err := rejected.Put(key(b.seq), value); err != nil {
					return err
				}
				moved[b.seq] = value
			}
			if err := q.Delete(key(b.seq)); err != nil {
				return err
			}
			if k, _ := q.Cursor().First(); k == nil {
				if err := pending.DeleteBucket(b.queue); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("spool: remove the messages that were sent: %w", closed(err))
	}
	s.mu.Lock()
	for i, b := range batch {
		if !finished(results[i]) {
			continue
		}
		s.count(string(b.queue), -1, -b.size)
		if value, ok := moved[b.seq]; ok {
			s.stats.Rejected++
			s.stats.Bytes += int64(len(value))
		}
	}
	s.mu.Unlock()
	for i, b := range batch {
		if results[i] != nil && finished(results[i]) {
			s.log.Warn("spooled message rejected permanently",
				"topic", b.header.Message.Topic, "message_id", b.header.Message.ID, "error", results[i])
		}
	}
	return nil
}
