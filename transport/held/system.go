package held

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/held/internal/shelf"
)

// A System opens links. Several goroutines may call Open at the same time.
type System interface {
	// Open opens a link that delivers messages to f, none before the first Grant. It blocks until
	// the link can be used or ctx ends, which is after 10 s at the latest; Open then has to return
	// soon. The receives of the source fail with its error, which is a *tidegate.Error with
	// NotConnected if there is no connection. The next receive, or the next settlement of a lost
	// delivery, opens the link again.
	Open(ctx context.Context, f *Feed) (Link, error)
}

// A Link is the connection of one source to its system. Several goroutines may call its methods at
// the same time, and after Close too. A Table calls them without locks.
type Link interface {
	// Grant allows the system to push n more messages. A message that cannot be decoded does not
	// reach the Feed; the link settles it and grants one more message instead. Grant does not
	// block. It may be called in the goroutine that calls Feed.Deliver.
	Grant(n int)

	// Settle settles messages, which are in flight, at most once successfully. It blocks until the
	// system has confirmed the outcomes, or over a protocol without confirmation until they are
	// written, or until ctx or the link ends. It returns an error for each message, or nil if there
	// is none. After an error the message is still in flight, and the Table settles it again later,
	// perhaps with another outcome, unless the link was lost. If the outcome of the failed call may
	// have reached the system, the error is a *tidegate.Error with MaybeStored, and a repeated
	// settlement must do nothing and return nil. An error for the end of ctx wraps
	// context.Cause(ctx).
	Settle(ctx context.Context, list []Settlement) []error

	// Close ends the link and the calls of Settle under way. The system gets every message back
	// that is not settled, including those that are still on their way, without a failed attempt.
	// Close blocks until that is done, a few seconds at most; the source opens no other link
	// meanwhile. A Table closes a link at most once, and not after
	// Feed.Lost unless that came before the end of Open.
	Close()
}

// An Outcome is the end of a message in its system.
type Outcome int

// The outcomes.
const (
	// Accepted: the message was consumed, or the filter does not select it. The group does not get
	// it again.
	Accepted Outcome = iota

	// Released: the message was not delivered. The system delivers it again, without a failed
	// attempt.
	Released

	// Retried: the attempt failed. The system delivers the message again after Settlement.Delay, or
	// a delay of its own, with the next attempt number.
	Retried

	// DeadLettered: the message becomes a dead letter of the group.
	DeadLettered
)

// A Settlement is the outcome of one message.
type Settlement struct {
	// Native is the message as it was passed to Feed.Deliver.
	Native any

	// Delivery is the decoded message. Attempt is the number of the delivery that ends. Settle must
	// not change or keep it.
	Delivery *tidegate.Delivery

	Outcome Outcome

	// Delay is the requested delay of Retried. Zero means at once.
	Delay time.Duration

	// Reason is the reason of Retried and DeadLettered, for people. It is not empty for
	// DeadLettered.
	Reason string
}

// A Feed takes the messages of one link. Its methods do not block, except that Deliver may call
// Link.Grant. The link calls Deliver in the order of the messages, and holds no lock that Grant
// needs. Both methods have no effect after the end of the link.
type Feed struct {
	Group, Topic string
	// Filter is the filter of the receives. The Table itself accepts messages that a filter of tags
	// does not select. Open fails with CodeNotImplemented if Filter.SQL is set and the system
	// cannot filter.
	Filter tidegate.Filter
	// FIFO reports whether the group's messages are delivered in order.
	FIFO bool

	table *Table
	link  *shelf.Link
}
