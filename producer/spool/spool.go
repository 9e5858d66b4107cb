// Package spool stores messages in a local directory while no server accepts them.
//
// Set it as the spool of a producer:
//
//	s, err := spool.Open("orders.spool", spool.Options{})
//	p, err := producer.New(t, producer.Options{Spool: s})
//
// A program can also use a spool without a producer. [Spool.Put] adds a message, and a goroutine in
// [Spool.Drain] sends the messages, with the same IDs. While [Spool.Holds] reports messages of a
// message group, newer messages of the group have to be spooled too. A message that Put accepted
// survives a crash of the process and of the machine. It leaves the spool after a server has stored
// it. A rejected message stays in the spool: [Spool.Discard] removes it, and [Spool.Requeue] makes
// it pending again.
//
// # Which errors the spool takes
//
// A producer moves a message to the spool after one of these:
//
//   - a lost or missing connection, a timeout, an internal error of the server, or a throttle that
//     outlasts the attempts, the deadline or the budget of the send;
//   - a certificate of the server that has expired, or has another name or issuer, and a host name
//     that DNS has lost, at an address that has worked;
//   - credentials that the server rejects (UNAUTHORIZED) after it had accepted them;
//   - a permission that is missing (FORBIDDEN) for a topic that the same server had accepted. Only
//     the messages of this topic move, and the producer logs an event.
//
// The send fails at once, as without a spool, after a fault of the message, for a missing topic,
// and for an address, credentials or a permission that have never worked in this process.
//
// Messages of one message group are sent in the order of their Puts. Only one process can open a
// spool.
//
// # Full disks
//
// When the disk is full, Put returns an error that matches [ErrDisk], and a send of the producer
// fails with it. The messages in the spool stay, and Open and Drain work: they need no free space.
// While messages leave, the spool shrinks its files, and accepts messages again as soon as the disk
// has space for them. Two things need space: the rejection of a message, which otherwise stays at
// the head of its message group, and on a file system that copies on write (btrfs, ZFS) each
// change. MaxBytes should leave space for the files; see its comment for their size.
//
// The spool is a directory with a log of checksummed records in segments. [Open] reports damaged
// records and missing files to the logger and in [Spool.Damage], and keeps the undamaged messages.
package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/filelock"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wallclock"
)

var (
	// ErrFull matches the error of a Put that would exceed Options.MaxBytes.
	ErrFull = errors.New("the spool is full")

	// ErrDisk matches the error of a Put that could not write to the disk, for example because the
	// disk is full. The message is not in the spool.
	ErrDisk = errors.New("the spool cannot be written")

	// ErrInUse matches the error of an Open of a spool that another process has open.
	ErrInUse = errors.New("the spool is in use by another process")
)

const (
	defaultMaxBytes = 1 << 30
	lockWait        = time.Second // wait for another process to close the file
)

// Options configure a [Spool]. The zero value is valid.
type Options struct {
	// MaxBytes bounds the entries, bodies and headers, in bytes. With removed entries the files can
	// have twice as many bytes and four segments more; a segment has the larger of 16 MiB and a
	// 64th of MaxBytes. Each message takes about 100 bytes of memory. Zero means 1 GiB.
	MaxBytes int64

	// MaxAge is the longest time that a message may wait to be sent. Older messages are rejected,
	// see [Spool.Entries]. After a step of the wall clock by more than a minute, and after an Open
	// at which the clock differs by more than an hour from the last message of the spool, older
	// messages are neither sent nor rejected for ten minutes, because the clock may be wrong.
	// Zero means no limit.
	MaxAge time.Duration

	// Logger receives damage as errors, rejected messages as warnings and failed drains as debug
	// records. Nil means that only damage is logged, to slog.Default.
	Logger *slog.Logger
}

// A Spool is an open spool. Several goroutines may share it. Open one with [Open].
//
// Liveness: a Put, Requeue or Discard that waits for its write is woken by the goroutine that
// writes; that goroutine runs while there are writes, and takes all that wait at once. Drain is
// woken by a Put, by a Requeue and by the end of the first pause. Each call of send finishes a
// message or pauses every queue in it, so between two Puts the number of calls is bounded by the
// messages and by one call for each queue and pause.
type Spool struct {
	opts    Options
	log     *slog.Logger
	clock   *wallclock.Clock // nil without MaxAge
	wake    chan struct{}    // signals a Put to Drain
	lock    *os.File
	damages []error

	records *segmentLog // used by the goroutine that writes
	writers sync.WaitGroup

	mu       sync.Mutex // guards the following fields; never held during I/O
	index    *index
	reserved int64    // bytes of concurrent Puts
	queue    []*write // that wait for the goroutine that writes
	writing  bool     // that goroutine runs
	draining bool
	closed   bool
}

// Stats are the numbers of messages in a spool, and their size.
type Stats struct {
	Pending  int   // messages to be sent
	Rejected int   // messages that can never be sent
	Bytes    int64 // of both kinds
}

// Open opens the spool in the directory at path, creates the directory if it does not exist, and
// reads all entries. If another process has the spool open, Open waits for a second and then
// returns an error that matches [ErrInUse].
//
// Damage of the files is no error: Open logs each damaged place and keeps the undamaged messages;
// see [Spool.Damage]. A file that was interrupted in a write by the end of the process or of the
// machine is not damaged.
func Open(path string, o Options) (*Spool, error) {
	switch {
	case o.MaxBytes < 0:
		return nil, invalid("MaxBytes", "%d is negative; give the largest size in bytes, or 0 for %d", o.MaxBytes, defaultMaxBytes)
	case o.MaxAge < 0:
		return nil, invalid("MaxAge", "%v is negative; give the longest wait, or 0 for no limit", o.MaxAge)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	lock, err := prepare(path, syncDir)
	if err != nil {
		return nil, fmt.Errorf("spool: open %s: %w", path, err)
	}
	s, err := openDisk(osDisk{path}, o, max(segmentBytes, o.MaxBytes/64))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("spool: open %s: %w", path, err), lock.Close())
	}
	s.lock = lock
	return s, nil
}

// openDisk opens the spool on a disk.
func openDisk(d disk, o Options, segment int64) (*Spool, error) {
	records, index, damages, err := load(d, segment)
	if err != nil {
		return nil, err
	}
	s := &Spool{
		opts: o, log: o.Logger, wake: make(chan struct{}, 1),
		damages: damages, records: records, index: index,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, err := range damages {
		s.reportDamage(err)
	}
	if o.MaxAge > 0 {
		s.clock = wallclock.New(s.clockChanged)
		if s.clock.Compare(s.newest()).Distrusted {
			s.clockChanged()
		}
	}
	return s, nil
}

// newest returns when the last message was accepted or rejected; zero if there is none.
func (s *Spool) newest() time.Time {
	for _, entry := range slices.Backward(s.index.all) {
		if h, err := s.message(entry); err == nil && !h.Accepted.IsZero() {
			if h.Rejected.After(h.Accepted) {
				return h.Rejected
			}
			return h.Accepted
		}
	}
	return time.Time{}
}

// clockChanged logs a step of the wall clock, and that its time is accepted.
func (s *Spool) clockChanged() {
	if v := s.clock.At(time.Now()); v.Distrusted {
		s.log.Warn("the wall clock was set, or differs from the last message of the spool: messages older than MaxAge are neither sent nor rejected until its time is accepted",
			"time", v.Now, "expected", v.Expected, "until", v.Until, "max_age", s.opts.MaxAge)
	} else {
		s.log.Info("the time of the wall clock is accepted: messages older than MaxAge are rejected again", "time", v.Now)
	}
}

func (s *Spool) reportDamage(err error) {
	log := s.opts.Logger
	if log == nil {
		log = slog.Default()
	}
	log.Error("the spool is damaged", "error", err)
}

// Damage returns the damage that Open found, or nil. The error names each file and the place in it.
// A damaged file stays in the directory. When the messages of its undamaged part have left the
// spool, it is renamed to a name with the ending .damaged, and Open does not report it any more.
func (s *Spool) Damage() error {
	if len(s.damages) == 0 {
		return nil
	}
	return fmt.Errorf("spool: %w", errors.Join(s.damages...))
}

// prepare creates the directory and locks it. sync makes the name of a new directory survive a
// power failure.
func prepare(path string, sync func(parent string) error) (*os.File, error) {
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = sync(filepath.Dir(path))
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return nil, errors.New("it is a file, and a spool is a directory; a file of an earlier version cannot be read. " +
			"Send its messages with that version, then remove it, or use another name")
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for start := time.Now(); ; {
		ok, err := filelock.Try(lock)
		switch {
		case ok:
			return lock, nil
		case err == nil && time.Since(start) >= lockWait:
			err = fmt.Errorf("%w; stop that process, or use another directory", ErrInUse)
		}
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		_ = backoff.Sleep(context.Background(), lockWait/20) // Open has no ctx; lockWait bounds it
	}
}

func invalid(field, format string, args ...any) error {
	return &tidegate.Error{Op: "spool.Open", Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Put adds a message with an ID and returns when the message is on disk. Concurrent Puts share an
// fsync. The end of ctx does not interrupt a write. The error matches [ErrFull] if the message
// would exceed MaxBytes, [ErrDisk] if the disk cannot be written, os.ErrClosed after Close, and the
// cause of ctx if it ended before the write. After an error the message is not in the spool.
func (s *Spool) Put(ctx context.Context, msg *tidegate.Message) error {
	if ctx.Err() != nil {
		return fmt.Errorf("spool: put message %s: %w", msg.ID, context.Cause(ctx))
	}
	p, err := s.admit(msg)
	if err != nil {
		return err
	}
	return s.stored(p, s.write(p.op()))
}

// PutBatch adds messages like Put, in their order and with one fsync, and returns an error for
// each. Concurrent Puts of the same message group have no order.
func (s *Spool) PutBatch(ctx context.Context, msgs []*tidegate.Message) []error {
	errs := make([]error, len(msgs))
	if ctx.Err() != nil {
		for i, m := range msgs {
			errs[i] = fmt.Errorf("spool: put message %s: %w", m.ID, context.Cause(ctx))
		}
		return errs
	}
	puts := make([]*putting, len(msgs))
	var ops []*op
	for i, m := range msgs {
		if puts[i], errs[i] = s.admit(m); errs[i] == nil {
			ops = append(ops, puts[i].op())
		}
	}
	err := s.write(ops...)
	for i, p := range puts {
		if p != nil {
			errs[i] = s.stored(p, err)
		}
	}
	return errs
}

// A putting is a message that is being written.
type putting struct {
	id    string
	queue string
	value []byte
}

func (p *putting) op() *op { return &op{kind: kindPending, name: p.queue, value: p.value} }

// size returns a bound of the size of its record.
func (p *putting) size() int64 { return int64(headBytes + 2*binary.MaxVarintLen64 + len(p.value)) }

// admit encodes a message and reserves its bytes until stored.
func (s *Spool) admit(msg *tidegate.Message) (*putting, error) {
	if msg.ID == "" {
		return nil, &tidegate.Error{Op: "spool.Put", Subject: "ID", Code: protocol.CodeIllegalMessageID,
			Message: "the ID is empty; set the ID that the earlier attempts had"}
	}
	value, err := encode(header{Accepted: time.Now(), Message: *msg}, msg.Body)
	if err != nil {
		return nil, fmt.Errorf("spool: put message %s: %w", msg.ID, err)
	}
	p := &putting{msg.ID, string(queueOf(msg.Topic, msg.OrderKey())), value}
	s.mu.Lock()
	defer s.mu.Unlock()
	if used := s.index.stats.Bytes + s.reserved; used+p.size() > s.opts.MaxBytes {
		return nil, fmt.Errorf("spool: put message %s: %w: it has %d bytes, the message needs %d, and MaxBytes is %d; "+
			"wait until a server accepts messages, or raise MaxBytes", msg.ID, ErrFull, used, p.size(), s.opts.MaxBytes)
	}
	s.reserved += p.size()
	return p, nil
}

// stored releases the reserved bytes after the write.
func (s *Spool) stored(p *putting, err error) error {
	s.mu.Lock()
	s.reserved -= p.size()
	s.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed):
		return fmt.Errorf("spool: put message %s: %w", p.id, os.ErrClosed)
	}
	return fmt.Errorf("spool: put message %s: %w: %w; make space on its disk, or wait until a server has accepted messages of the spool", p.id, ErrDisk, err)
}

// Holds reports whether the spool has messages of the message group or lite topic, so that newer
// ones must be spooled too. It does not block. It is false for an empty group.
func (s *Spool) Holds(topic, group string) bool {
	if group == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.queues[string(queueOf(topic, group))] != nil
}

// Stats returns the current numbers. It does not block.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.stats
}

// Close closes the files. It waits for concurrent Puts. End [Spool.Drain] first. Later calls return
// an error that matches os.ErrClosed.
func (s *Spool) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.writers.Wait()
	err := s.records.close()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

func (s *Spool) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// An Entry is a message in the spool.
type Entry struct {
	Sequence uint64 // identifies the entry within its spool
	Message  *tidegate.Message
	Accepted time.Time // when Put accepted it
	Bytes    int       // on disk

	// Rejected is the time of the rejection, and Reason its reason. Both are zero for a pending
	// message. Message is nil if the entry is corrupt; Reason then has the place.
	Rejected time.Time
	Reason   string
}

// Entries returns up to limit entries with a sequence above after, in order: the pending entries,
// or the rejected ones. It reads them from disk. To read all entries, call it again with the
// sequence of the last one.
func (s *Spool) Entries(rejected bool, after uint64, limit int) ([]Entry, error) {
	s.mu.Lock()
	closed := s.closed
	entries := s.index.list(rejected, after, limit)
	s.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("spool: read: %w", os.ErrClosed)
	}
	var list []Entry
	for _, e := range entries {
		h, err := s.message(e)
		switch {
		case errors.Is(err, errGone):
			continue
		case errors.Is(err, os.ErrClosed):
			return nil, fmt.Errorf("spool: read: %w", err)
		case err != nil:
			h.Reason, h.Corrupt = err.Error(), true
		}
		one := Entry{Sequence: e.seq, Bytes: e.size, Accepted: h.Accepted, Rejected: h.Rejected, Reason: h.Reason}
		if !h.Corrupt {
			one.Message = &h.Message
		}
		list = append(list, one)
	}
	return list, nil
}

// Discard removes rejected entries permanently and returns their number. It ignores sequences of
// other entries.
func (s *Spool) Discard(sequences ...uint64) (int, error) {
	var ops []*op
	for _, e := range s.rejected(sequences) {
		ops = append(ops, &op{kind: kindRemoved, entry: e})
	}
	return s.change(ops)
}

// Requeue moves rejected messages behind all pending ones and returns their number. It ignores
// corrupt entries and sequences of other entries. MaxAge counts from the call.
func (s *Spool) Requeue(sequences ...uint64) (int, error) {
	var ops []*op
	for _, e := range s.rejected(sequences) {
		h, err := s.message(e)
		if errors.Is(err, os.ErrClosed) {
			return 0, fmt.Errorf("spool: change rejected messages: %w", err)
		}
		if err != nil || h.Corrupt {
			continue // a corrupt entry stays rejected
		}
		h.Accepted, h.Rejected, h.Reason = time.Now(), time.Time{}, ""
		value, err := encode(h, h.Message.Body)
		if err != nil {
			return 0, fmt.Errorf("spool: requeue message %s: %w", h.Message.ID, err)
		}
		name := string(queueOf(h.Message.Topic, h.Message.OrderKey()))
		ops = append(ops, &op{kind: kindPending, name: name, entry: e, value: value})
	}
	return s.change(ops)
}

// rejected returns the rejected entries with the sequences.
func (s *Spool) rejected(sequences []uint64) (list []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seq := range sequences {
		if e := s.index.find(seq); e != nil && e.rejected {
			list = append(list, e)
		}
	}
	return list
}

// change writes the operations and returns the number of those that were not too late.
func (s *Spool) change(ops []*op) (n int, err error) {
	if err := s.write(ops...); err != nil {
		return 0, fmt.Errorf("spool: change rejected messages: %w", err)
	}
	for _, o := range ops {
		if !o.skipped {
			n++
		}
	}
	return n, nil
}
