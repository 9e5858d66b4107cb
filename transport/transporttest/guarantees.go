package transporttest

import "github.com/tidegate/tidegate/transport"

// Guarantees are promises of package transport that some servers do not keep and that no
// [transport.Capabilities] announce. The zero value describes Apache RocketMQ 5.2.0 with its own
// proxy. A tidegate broker keeps [AllGuarantees]. For a missing guarantee the suite logs the name
// and checks the behaviour of RocketMQ 5.2 instead, or checks nothing.
type Guarantees struct {
	// ExactWaits: without a message a receive returns after ReceiveRequest.Wait; 0 means at once.
	// RocketMQ 5.2 waits for at least 5 s and at most 20 s.
	ExactWaits bool

	// RetriesWakeReceives: a waiting receive returns a message as soon as its retry delay or its
	// invisible duration ends. RocketMQ 5.2 returns it 1 s to 2 s late, or at the end of the
	// receive's wait, up to 20 s late.
	RetriesWakeReceives bool

	// FullReceives: a receive returns all visible messages up to its maximum of messages and bytes.
	// RocketMQ 5.2 may return fewer, because a receive reads only some of the queues.
	FullReceives bool

	// BoundsBytes: the server returns at most ReceiveRequest.MaxBytes. RocketMQ 5.2 ignores
	// MaxBytes. The transport then releases the messages beyond it, which costs each an attempt.
	BoundsBytes bool

	// CancelledReceivesEnd: the server delivers no message to a receive that the client cancelled
	// during its wait. RocketMQ 5.2 may still deliver one; the client does not get it, and the
	// message is redelivered after its invisible duration.
	CancelledReceivesEnd bool

	// RefusesStaleHandles: settling with a handle that was replaced fails with
	// [tidegate.ErrInvalidHandle]. RocketMQ 5.2 may report success for such an Ack, which has no
	// effect. It creates a dead letter even after the invisible time of the delivery has ended.
	RefusesStaleHandles bool

	// RefusesEmptyBodies: a send without a body fails with [protocol.CodeMessageBodyEmpty].
	// RocketMQ 5.2 stores the message, and receives from its queue fail with 50001.
	RefusesEmptyBodies bool

	// PushesThrottleBackoff: ProducerSettings has a backoff of the server for throttled sends.
	// RocketMQ 5.2 pushes one backoff for retries of every kind. It is shorter than the producers'
	// default, so the transport leaves it out and the default applies.
	PushesThrottleBackoff bool

	// GroupsFlow: a message group that waits for a settlement or a retry does not block other
	// message groups. RocketMQ 5.2 locks the queue with all its message groups.
	GroupsFlow bool

	// TimeoutsTakeTheLadder: after the invisible time of a delivery to a push consumer has ended,
	// the message is redelivered after the group's retry delay. RocketMQ 5.2 redelivers it without
	// that delay.
	TimeoutsTakeTheLadder bool

	// DeadLettersAtOnce: a message is in the dead letter topic as soon as its last attempt has
	// ended. RocketMQ 5.2 moves it there when a later receive of the group reads it.
	DeadLettersAtOnce bool

	// DeadLetterOrigins: [tidegate.Message.DeadLetter] returns the origin and the reason of a dead
	// letter, and the properties of the message do not change otherwise. RocketMQ 5.2 records
	// neither origin nor reason, and adds properties of its own.
	DeadLetterOrigins bool

	// Recall: a [transport.Recaller] can cancel a delayed message. RocketMQ 5.2 has no such
	// request: receipts have no recall handle, and Recall fails with [tidegate.CodeNotImplemented].
	Recall bool
}

// AllGuarantees returns the guarantees of a server that keeps all promises of package transport.
func AllGuarantees() Guarantees {
	return Guarantees{
		ExactWaits: true, RetriesWakeReceives: true, FullReceives: true, BoundsBytes: true, CancelledReceivesEnd: true,
		RefusesStaleHandles: true, RefusesEmptyBodies: true, PushesThrottleBackoff: true,
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
