package transporttest

import (
	"time"

	"github.com/tidegate/tidegate/transport"
)

// A Server describes the server of a [Fixture]: the promises of package transport that it keeps or
// lacks, and that no [transport.Capabilities] announce. The zero value is Apache RocketMQ 5.2.0
// with its own proxy, in real time; for a real RocketMQ also set Unit to 5 s.
//
// For each promise that the server does not keep, the suite logs the name and checks the behaviour
// that the comment of the field describes instead, or checks nothing.
type Server struct {
	// Capabilities are the capabilities that the transport must report after the server's first
	// response. They select the cases that run.
	Capabilities transport.Capabilities

	// Virtual runs each case in a [testing/synctest] bubble, including the call of newFixture. The
	// default of Slack is 10 ms then, and a goroutine that is still running at the end fails the
	// case. The server must run in the same process, without sockets. False means real time and
	// cases in parallel.
	Virtual bool

	// Unit scales the durations of the cases. Receives wait for one or two units. Invisible
	// durations are two to four units, or one unit on servers with the verdict Snooze. RocketMQ 5.2
	// needs 5 s: its shortest wait is 5 s, and its shortest invisible duration is 10 s. Zero means
	// 10 s with Virtual and 500 ms without; with 500 ms the server must accept invisible durations
	// of 500 ms.
	Unit time.Duration

	// Slack is the largest accepted delay of an event after its expected time. Zero means 10 ms
	// with Virtual, and half a unit without.
	Slack time.Duration

	// The server keeps these promises, and RocketMQ 5.2 does not.

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

	// TimeoutsTakeTheSchedule: after the invisible time of a delivery to a push consumer has ended,
	// the message is redelivered after the group's retry delay. RocketMQ 5.2 redelivers it without
	// that delay.
	TimeoutsTakeTheSchedule bool

	// DeadLettersAtOnce: a message is in the dead letter topic as soon as its last attempt has
	// ended. RocketMQ 5.2 moves it there when a later receive of the group reads it.
	DeadLettersAtOnce bool

	// DeadLetterOrigins: [tidegate.Message.DeadLetter] returns the origin and the reason of a dead
	// letter, and the properties of the message do not change otherwise. RocketMQ 5.2 records
	// neither origin nor reason, and adds properties of its own.
	DeadLetterOrigins bool

	// Recall: a [transport.Recaller] can cancel a delayed message. RocketMQ 5.2 has no such
	// request: receipts have no recall handle, and Recall fails with [tidegate.CodeNotImplemented].
	// RocketMQ 5.3 to 5.5 without recallMessageEnable return a handle all the same, and Recall
	// fails with [tidegate.CodeForbidden].
	Recall bool

	// RefusesRepeatedRecalls: a second Recall of a message fails with [tidegate.ErrNotFound]. It
	// succeeds on RocketMQ 5.3 to 5.5.
	RefusesRepeatedRecalls bool

	// Priorities: topics of type PRIORITY exist, and a receive returns messages with a higher
	// priority first. RocketMQ has such topics from 5.4.0 on.
	Priorities bool

	// LiteTopics: topics of type LITE exist, and a [transport.LiteSubscriber] receives from their
	// lite topics. RocketMQ has them from 5.5.0 on, with the broker's settings enableLmq and
	// enableMultiDispatch.
	LiteTopics bool

	// RocketMQ 5.2 keeps these promises, and the server does not.

	// LacksPositions: receipts, deliveries and the origins of dead letters may have a queue or an
	// offset of -1.
	LacksPositions bool

	// LacksStoreTimes: Delivery.StoredAt may be zero.
	LacksStoreTimes bool

	// LacksTopicTypes: topics accept messages with and without a message group.
	LacksTopicTypes bool

	// LacksMissingTopics: a topic that does not exist is created by its first use, so no call fails
	// with [tidegate.ErrTopicNotFound].
	LacksMissingTopics bool

	// LacksExactRetries: in groups without an order the server may choose another delay than the
	// one that Retry asks for, up to 5 minutes longer, or none.
	LacksExactRetries bool

	// LacksCountedReleases: a released delivery does not count as an attempt, whether or not the
	// receive had Push set, although the server does not announce Capabilities.Suspend. RocketMQ
	// 5.5 is such a server.
	LacksCountedReleases bool

	// LacksLiteDeadLetters: a message of a lite topic cannot become a dead letter; the verdict fails
	// with [tidegate.CodeNotImplemented]. RocketMQ 5.5 is such a server.
	LacksLiteDeadLetters bool

	only func(testCase) bool // of the suite's own tests; nil: every case
}

// AllGuarantees returns a Server that keeps all promises, without capabilities.
func AllGuarantees() Server {
	return Server{
		ExactWaits: true, RetriesWakeReceives: true, FullReceives: true, BoundsBytes: true, CancelledReceivesEnd: true,
		RefusesStaleHandles: true, RefusesEmptyBodies: true, PushesThrottleBackoff: true,
		GroupsFlow: true, TimeoutsTakeTheSchedule: true, DeadLettersAtOnce: true, DeadLetterOrigins: true, Recall: true, RefusesRepeatedRecalls: true,
		Priorities: true, LiteTopics: true,
	}
}

// withDefaults returns s with its unit and its slack.
func (s Server) withDefaults() Server {
	if s.Unit == 0 {
		s.Unit = 500 * time.Millisecond
		if s.Virtual {
			s.Unit = 10 * time.Second
		}
	}
	if s.Slack == 0 {
		s.Slack = s.Unit / 2
		if s.Virtual {
			s.Slack = 10 * time.Millisecond
		}
	}
	return s
}

// lacks reports that the server does not keep a promise. It logs the field of Server that describes
// the promise, once for each case, and the behaviour that the case allows instead.
func (e *env) lacks(keeps bool, field, instead string) bool {
	e.Helper()
	if !keeps && !e.logged[field] {
		e.logged[field] = true
		e.Logf("the server differs (Server.%s): %s", field, instead)
	}
	return !keeps
}

// A need is the condition on a server for a case to run.
type need struct {
	name string
	has  func(Server) bool
}

var (
	needSuspend     = need{"Capabilities.Suspend", func(s Server) bool { return s.Capabilities.Suspend }}
	needSnooze      = need{"Capabilities.Verdicts with Snooze", func(s Server) bool { return s.Capabilities.Verdicts.Has(transport.Snooze) }}
	needReconsume   = need{"Capabilities.Verdicts with NegativeAck", func(s Server) bool { return s.Capabilities.Verdicts.Has(transport.NegativeAck) }}
	needRetryResult = need{"Capabilities.RetryResult", func(s Server) bool { return s.Capabilities.RetryResult }}
	needRepeat      = need{"Capabilities.RepeatReceive and Suspend", func(s Server) bool { return s.Capabilities.RepeatReceive && s.Capabilities.Suspend }}
	needWatch       = need{"Capabilities.Watch", func(s Server) bool { return s.Capabilities.Watch }}
	needGroupsFlow  = need{"GroupsFlow", func(s Server) bool { return s.GroupsFlow }}
	needLadder      = need{"TimeoutsTakeTheSchedule", func(s Server) bool { return s.TimeoutsTakeTheSchedule }}
	needPriorities  = need{"Priorities", func(s Server) bool { return s.Priorities }}
	needRankedTopic = need{"Priorities in topics of their own", func(s Server) bool { return s.Priorities && !s.LacksTopicTypes }}
	needLite        = need{"LiteTopics", func(s Server) bool { return s.LiteTopics }}
	needLiteTopic   = need{"LiteTopics in topics of their own", func(s Server) bool { return s.LiteTopics && !s.LacksTopicTypes }}
	needStale       = need{"RefusesStaleHandles", func(s Server) bool { return s.RefusesStaleHandles }}
)
