package transporttest

import "github.com/tidegate/tidegate/transport"

// Guarantees are promises of the contract that not every server keeps, beside those
// that a server announces as [transport.Capabilities]. The zero value describes Apache
// RocketMQ 5.2.0 with its own proxy; a tidegate broker keeps [AllGuarantees]. Where a
// server lacks one, the suite asserts the behaviour that the server documents, or leaves the
// assertion out and logs the guarantee's name.
type Guarantees struct {
	// ExactWaits: a receive waits for ReceiveRequest.Wait and not longer, and with 0 it
	// returns at once. RocketMQ 5.2 waits 5 s at least and 20 s at most.
	ExactWaits bool

	// RetriesWakeReceives: a waiting receive returns a message at the moment its retry
	// delay or its invisible duration ends. RocketMQ 5.2 returns it at the end of a
	// receive that waits, up to 20 s later, or 1 s to 2 s late.
	RetriesWakeReceives bool

	// FullReceives: a receive returns all visible messages up to its bounds. RocketMQ 5.2
	// may return fewer, because it reads some of the queues.
	FullReceives bool

	// BoundsBytes: the server keeps to ReceiveRequest.MaxBytes. RocketMQ 5.2 ignores it; the
	// transport releases the messages beyond it, which spends an attempt of each.
	BoundsBytes bool

	// CancelledReceivesEnd: the server takes no message on behalf of a receive that the
	// client cancelled while it waited. RocketMQ 5.2 may hand a later message to it; the
	// message is redelivered after its invisible duration.
	CancelledReceivesEnd bool

	// RefusesStaleHandles: settling with a handle that was replaced fails with
	// tidegate.ErrInvalidHandle. RocketMQ 5.2 reports success for an Ack, which then has
	// no effect, and makes a dead letter even after the delivery has expired.
	RefusesStaleHandles bool

	// RepeatsChanges: a transport.ChangeRepeater gets the same handle again.
	// RocketMQ 5.2 creates another one.
	RepeatsChanges bool

	// RefusesEmptyBodies: a send without a body fails with tidegate.CodeMessageBodyEmpty.
	// RocketMQ 5.2 stores the message, and receives of its queue fail with 50001.
	RefusesEmptyBodies bool

	// PushesThrottleBackoff: ProducerSettings has the server's own backoff for throttled
	// sends. RocketMQ 5.2 pushes one backoff for retries of every kind; it is shorter than
	// the default of producers, which remains in force.
	PushesThrottleBackoff bool

	// GroupsFlow: a message group that waits for a settlement or a retry holds no other
	// message group. RocketMQ 5.2 locks the queue with all its message groups.
	GroupsFlow bool

	// TimeoutsTakeTheLadder: a delivery to a push consumer that expires is redelivered
	// after the group's retry delay. RocketMQ 5.2 redelivers it without that delay.
	TimeoutsTakeTheLadder bool

	// DeadLettersAtOnce: a message is in the dead letter queue as soon as its last attempt
	// has ended. RocketMQ 5.2 moves it when a later receive finds it.
	DeadLettersAtOnce bool

	// DeadLetterOrigins: a dead letter names its origin and its reason
	// (tidegate.Delivery.DeadLetter), and keeps the properties of the message.
	// RocketMQ 5.2 records neither and adds properties of its own.
	DeadLetterOrigins bool

	// Recall: a transport.Recaller can cancel a delayed message. RocketMQ 5.2 has no such
	// request: receipts have no recall handle, and Recall fails with
	// tidegate.CodeNotImplemented.
	Recall bool
}

// AllGuarantees returns the guarantees of a server that keeps the whole contract.
func AllGuarantees() Guarantees {
	return Guarantees{
		ExactWaits: true, RetriesWakeReceives: true, FullReceives: true, BoundsBytes: true, CancelledReceivesEnd: true,
		RefusesStaleHandles: true, RepeatsChanges: true, RefusesEmptyBodies: true, PushesThrottleBackoff: true,
		GroupsFlow: true, TimeoutsTakeTheLadder: true, DeadLettersAtOnce: true, DeadLetterOrigins: true, Recall: true,
	}
}

// lacks reports that the server does not keep a guarantee. It logs the guarantee, once for each
// case, and the behaviour that the case allows instead.
func (e *env) lacks(guarantee bool, name, instead string) bool {
	e.Helper()
	if !guarantee && !e.logged[name] {
		e.logged[name] = true
		e.Logf("the server lacks Guarantees.%s: %s", name, instead)
	}
	return !guarantee
}

// A need is the condition on a server for a case to run.
type need struct {
	name string
	has  func(transport.Capabilities, Guarantees) bool
}

var (
	needSuspend     = need{"Capabilities.Suspend", func(c transport.Capabilities, _ Guarantees) bool { return c.Suspend }}
	needSnooze      = need{"Capabilities.Snooze", func(c transport.Capabilities, _ Guarantees) bool { return c.Snooze }}
	needReconsume   = need{"Capabilities.Reconsume", func(c transport.Capabilities, _ Guarantees) bool { return c.Reconsume }}
	needRetryResult = need{"Capabilities.RetryResult", func(c transport.Capabilities, _ Guarantees) bool { return c.RetryResult }}
	needRepeat      = need{"Capabilities.RepeatReceive and Suspend", func(c transport.Capabilities, _ Guarantees) bool { return c.RepeatReceive && c.Suspend }}
	needGroupsFlow  = need{"Guarantees.GroupsFlow", func(_ transport.Capabilities, g Guarantees) bool { return g.GroupsFlow }}
	needLadder      = need{"Guarantees.TimeoutsTakeTheLadder", func(_ transport.Capabilities, g Guarantees) bool { return g.TimeoutsTakeTheLadder }}
	needStale       = need{"Guarantees.RefusesStaleHandles", func(_ transport.Capabilities, g Guarantees) bool { return g.RefusesStaleHandles }}
)
