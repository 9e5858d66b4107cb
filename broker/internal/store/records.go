package store

import (
	"github.com/tidegate/tidegate/broker/internal/store/internal/diskfs"
	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// The records that callers of a Store write and read. Package record has their form on disk.
type (
	// A Place names one message: a queue of a topic, and the offset in it.
	Place = record.Place
	// A Message is a message as the log keeps it.
	Message = record.Message
	// A Range is the messages of a queue from From on and before To.
	Range = record.Range
	// Stored has the fields of a message's record that are not part of the message.
	Stored = record.Stored
	// A Mark is where a queue begins.
	Mark = record.Mark
	// A Removed counts the messages that were removed from a queue, and has the end of the queue.
	Removed = record.Removed
	// A Waiting is how many messages of a topic wait for their delivery time, and their bytes.
	Waiting = record.Waiting
	// A Cursor is how far a group is in a queue.
	Cursor = record.Cursor
	// A Lease is a group's state of one message that was delivered or skipped and is not finished.
	Lease = record.Lease
	// A Delayed names a message that waits for its delivery time.
	Delayed = record.Delayed
	// A StoredDelayed has the fields of a delayed message that need no read of the message.
	StoredDelayed = record.StoredDelayed
	// A HalfID identifies a half message: a message whose transaction has not ended.
	HalfID = record.HalfID
	// A HalfState is when the producer of a half message is asked next, and how often it was.
	HalfState = record.HalfState
	// A DueHalf is an entry of the index of half messages by the time of their next check.
	DueHalf = record.DueHalf
	// A RecentIDs is a record of the index of message IDs.
	RecentIDs = record.RecentIDs
	// An IDKey is the secret of a store's hashes of message IDs.
	IDKey = record.IDKey
	// A DiskFull is the state of a full disk.
	DiskFull = diskfs.DiskFull
)

// MaxRecentIDs is how many IDs a RecentIDs has at most.
const MaxRecentIDs = record.MaxRecentIDs

// IsDamage reports whether an error is that of a damaged file or record, which no
// second reading will cure.
func IsDamage(err error) bool { return diskfs.IsDamage(err) }
