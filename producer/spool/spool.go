// Package spool stores messages in a local file while no server accepts them.
//
// Set it as the spool of a producer:
//
//	s, err := spool.Open("orders.spool", spool.Options{})
//	p, err := producer.New(t, producer.Options{Spool: s})
//
// A program can also use a spool without a producer. [Spool.Put] adds a message, and a goroutine in
// [Spool.Drain] sends the messages, with the same IDs. While [Spool.Holds] reports messages of a
// message group, newer messages of the group have to be spooled too. A message that Put accepted
// survives a crash of the process and of the machine. It leaves the file after a server has stored
// it. A rejected message stays in the file: [Spool.Discard] removes it, and [Spool.Requeue] makes
// it pending again.
//
// Messages of one message group are sent in the order of their Puts. Only one process can open a
// spool. The file is a bbolt database (go.etcd.io/bbolt).
package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/tidegate/tidegate"
)

var (
	// ErrFull matches the error of a Put that would exceed Options.MaxBytes.
	ErrFull = errors.New("the spool is full")

	// ErrDisk matches the error of a Put that could not write the file, for example because the
	// disk is full. The message is not in the spool.
	ErrDisk = errors.New("the file of the spool cannot be written")

	// ErrInUse matches the error of an Open of a file that another process has open.
	ErrInUse = errors.New("the spool is in use by another process")
)

// The defaults of Options.
const (
	DefaultMaxBytes = 1 << 30
	lockWait        = time.Second // wait for another process to close the file
)

var (
	bucketPending  = []byte("pending")  // queue → sequence → entry
	bucketRejected = []byte("rejected") // sequence → entry
)

// Options configure a [Spool]. The zero value is valid.
type Options struct {
	// MaxBytes bounds the entries, bodies and headers, in bytes. The file has additional pages of
	// bbolt and does not shrink. Zero means 1 GiB.
	MaxBytes int64

	// MaxAge is the longest time that a message may wait to be sent. Older messages are rejected,
	// see [Spool.Entries]. Zero means no limit.
	MaxAge time.Duration

	// Logger receives rejected messages as warnings and failed drains as debug records. Nil means
	// no logging.
	Logger *slog.Logger
}

// A Spool is an open spool. Several goroutines may share it. Open one with [Open].
type Spool struct {
	db   *bolt.DB
	opts Options
	log  *slog.Logger
	wake chan struct{} // signals a Put to Drain

	mu       sync.Mutex // guards the following fields; never held during I/O
	stats    Stats
	reserved int64          // bytes of concurrent Puts
	groups   map[string]int // queue → messages, for queues of message groups
	draining bool
}

// Stats are the numbers of messages in a spool, and their size.
type Stats struct {
	Pending  int   // messages to be sent
	Rejected int   // messages that can never be sent
	Bytes    int64 // of both kinds
}

// Open opens the spool in the file at path, creates the file if it does not exist, and reads the
// headers of all entries. If another process has the file open, Open waits for a second and then
// returns an error that matches [ErrInUse].
func Open(path string, o Options) (*Spool, error) {
	switch {
	case o.MaxBytes < 0:
		return nil, invalid("MaxBytes", "%d is negative; give the largest size in bytes, or 0 for %d", o.MaxBytes, DefaultMaxBytes)
	case o.MaxAge < 0:
		return nil, invalid("MaxAge", "%v is negative; give the longest wait, or 0 for no limit", o.MaxAge)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("spool: open %s: %w; stop that process, or use another file", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("spool: open %s: %w", path, err)
	}
	s := &Spool{db: db, opts: o, log: o.Logger, wake: make(chan struct{}, 1), groups: map[string]int{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(s.load(), syncDir(filepath.Dir(path))); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: open %s: %w", path, err), db.Close())
	}
	return s, nil
}

func invalid(field, format string, args ...any) error {
	return &tidegate.Error{Op: "spool.Open", Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// syncDir makes the name of a new file survive a power failure. Windows has no such call.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// load counts the entries.
func (s *Spool) load() error {
	return s.db.Update(func(tx *bolt.Tx) error {
		pending, err := tx.CreateBucketIfNotExists(bucketPending)
		if err != nil {
			return err
		}
		rejected, err := tx.CreateBucketIfNotExists(bucketRejected)
		if err != nil {
			return err
		}
		err = pending.ForEachBucket(func(name []byte) error {
			return pending.Bucket(name).ForEach(func(_, v []byte) error {
				s.count(string(name), 1, len(v))
				return nil
			})
		})
		if err != nil {
			return err
		}
		return rejected.ForEach(func(_, v []byte) error {
			s.stats.Rejected++
			s.stats.Bytes += int64(len(v))
			return nil
		})
	})
}

// count changes the numbers of pending messages. The caller holds s.mu, or is the only user of s.
func (s *Spool) count(queue string, messages, bytes int) {
	s.stats.Pending += messages
	s.stats.Bytes += int64(bytes)
	if !grouped(queue) {
		return
	}
	if s.groups[queue] += messages; s.groups[queue] == 0 {
		delete(s.groups, queue)
	}
}

// Put adds a message with an ID and returns when the message is on disk. Concurrent Puts share an
// fsync. The end of ctx does not interrupt a write. The error matches [ErrFull] if the message
// would exceed MaxBytes, [ErrDisk] if the file cannot be written, os.ErrClosed after Close, and the
// cause of ctx if it ended before the write. After an error the message is not in the spool.
func (s *Spool) Put(ctx context.Context, msg *tidegate.Message) error {
	if ctx.Err() != nil {
		return fmt.Errorf("spool: put message %s: %w", msg.ID, context.Cause(ctx))
	}
	e, err := s.entry(msg)
	if err != nil {
		return err
	}
	err = s.db.Batch(e.write)
	return s.stored(e, err)
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
	entries := make([]*entry, len(msgs))
	for i, m := range msgs {
		entries[i], errs[i] = s.entry(m)
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		for _, e := range entries {
			if e == nil {
				continue
			}
			if err := e.write(tx); err != nil {
				return err
			}
		}
		return nil
	})
	for i, e := range entries {
		if e != nil {
			errs[i] = s.stored(e, err)
		}
	}
	return errs
}

// An entry is a message that is being written.
type entry struct {
	id    string
	queue []byte
	value []byte
}

// entry encodes a message and reserves its bytes until stored.
func (s *Spool) entry(msg *tidegate.Message) (*entry, error) {
	if msg.ID == "" {
		return nil, &tidegate.Error{Op: "spool.Put", Subject: "ID", Code: tidegate.CodeIllegalMessageID,
			Message: "the ID is empty; set the ID that the earlier attempts had"}
	}
	value, err := encode(header{Accepted: time.Now(), Message: *msg}, msg.Body)
	if err != nil {
		return nil, fmt.Errorf("spool: put message %s: %w", msg.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if used := s.stats.Bytes + s.reserved; used+int64(len(value)) > s.opts.MaxBytes {
		return nil, fmt.Errorf("spool: put message %s: %w: it has %d bytes, the message needs %d, and MaxBytes is %d; "+
			"wait until a server accepts messages, or raise MaxBytes", msg.ID, ErrFull, used, len(value), s.opts.MaxBytes)
	}
	s.reserved += int64(len(value))
	return &entry{id: msg.ID, queue: queueOf(msg.Topic, msg.MessageGroup), value: value}, nil
}

func (e *entry) write(tx *bolt.Tx) error {
	pending := tx.Bucket(bucketPending)
	seq, err := pending.NextSequence()
	if err != nil {
		return err
	}
	b, err := pending.CreateBucketIfNotExists(e.queue)
	if err != nil {
		return err
	}
	return b.Put(key(seq), e.value)
}

// stored updates the counters after the write of an entry.
func (s *Spool) stored(e *entry, err error) error {
	s.mu.Lock()
	s.reserved -= int64(len(e.value))
	if err == nil {
		s.count(string(e.queue), 1, len(e.value))
	}
	s.mu.Unlock()
	switch {
	case err == nil:
		s.signal()
		return nil
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		return fmt.Errorf("spool: put message %s: %w", e.id, os.ErrClosed)
	}
	return fmt.Errorf("spool: put message %s: %w: %w; check the space on its disk", e.id, ErrDisk, err)
}

// Holds reports whether the spool has messages of the group, so that newer ones must be spooled
// too. It does not block. It is false for an empty group.
func (s *Spool) Holds(topic, group string) bool {
	if group == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups[string(queueOf(topic, group))] > 0
}

// Stats returns the current numbers. It does not block.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close closes the file. It waits for concurrent Puts and reads. End [Spool.Drain] first. Later
// calls return an error that matches os.ErrClosed.
func (s *Spool) Close() error { return s.db.Close() }

func (s *Spool) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// closed returns os.ErrClosed if err is bbolt's error for a closed file, and err otherwise.
func closed(err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return os.ErrClosed
	}
	return err
}
