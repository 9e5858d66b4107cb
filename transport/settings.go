package transport

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// ProducerSettings are the settings that a server has for producers. A zero field means that the
// server has no setting, or that the transport ignores it (see the documentation of the transport).
type ProducerSettings struct {
	MaxAttempts int            // of one send, the first included
	Backoff     backoff.Policy // after a throttled attempt
	MaxBodySize int            // bytes
}

// ConsumerSettings are the settings that a server has for the consumers of a group. A zero field
// means that the server has no setting.
type ConsumerSettings struct {
	FIFO             bool           // one message of each message group at a time, in order
	MaxAttempts      int            // deliveries of one message, including the first; negative: no maximum
	Retry            backoff.Policy // the retry schedule: Delay(0) follows the first failed delivery
	ReceiveBatchSize int            // messages per receive
	LongPolling      time.Duration
}

// Capabilities are the features of a server that RocketMQ 5.2 does not have. The zero value is
// RocketMQ 5.2.
type Capabilities struct {
	// Batch: the messages of one request keep their own IDs, tags and properties, and have a result
	// each. Without it a transport sends each message in a request of its own, several at the same
	// time.
	Batch bool

	// PushBack: the response to a throttled request has the time to wait.
	PushBack bool

	// Verdicts are the verdicts that the server takes beside [Release], [Retry] and [DeadLetter],
	// for example Snooze|RetryTopic.
	Verdicts VerdictKind

	// Suspend: a [Release] of a delivery that was received with Push does not
	// count as an attempt. Consumers release unhandled messages when they stop or pause. Without
	// Suspend a release counts as an attempt, and after the last attempt the message is a dead
	// letter. RocketMQ 5.5 does not count releases either, but does not announce it, so the SDK
	// treats it like the servers without Suspend.
	Suspend bool

	// IdempotentDeadLetter: repeating a [DeadLetter] creates no second dead letter.
	IdempotentDeadLetter bool

	// RetryResult: a [Retry] can have [BySchedule], and Settle returns the server's decision. The
	// server counts attempts by the current settings of the message's topic and group. The consumer
	// therefore leaves the delay and the last attempt to the server.
	RetryResult bool

	// RepeatChange: an extension can be repeated after its response was lost ([Settler].Extend).
	RepeatChange bool

	// RepeatReceive: a receive with an AttemptID can be repeated in groups of every kind, also with
	// [ReceiveRequest].Repeat.
	RepeatReceive bool

	// Watch: the server can report that a receive may find a message ([Watcher]).
	Watch bool
}

// A Configurer returns the settings and capabilities of a server.
type Configurer interface {
	// ProducerSettings returns the server's settings for producers of the topic. It sends a
	// request, or returns the settings that the server pushed last.
	ProducerSettings(ctx context.Context, topic string) (ProducerSettings, error)

	// ConsumerSettings returns the server's settings for consumers of the group and topic. It sends
	// a request, or returns the settings that the server pushed last.
	ConsumerSettings(ctx context.Context, group, topic string) (ConsumerSettings, error)

	// Queues returns the queues that the group's consumers receive from, each with a Receive of its
	// own. It returns [AnyQueue] alone if one Receive is enough for all of them.
	Queues(ctx context.Context, group, topic string) ([]int, error)

	// Capabilities returns the capabilities of the server at endpoint, as in Delivery.Endpoint, or
	// of the server that the transport connects to first if endpoint is empty. A client can be
	// connected to servers of several kinds. A transport whose servers are all of one kind returns
	// constants. Capabilities does not block.
	//
	// If servers announce their capabilities, these are the ones of the current connection. Until
	// the first response on a new connection they are those of the connection before, without
	// Batch. They are zero for a server that never responded or is unknown.
	Capabilities(endpoint string) Capabilities
}
