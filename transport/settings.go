package transport

import (
	"context"
	"time"
)

// Delayer tells how long to wait before retry n, n being 0 for the first. The
// policies of package backoff are Delayers.
type Delayer interface {
	Delay(n int) time.Duration
}

// ProducerSettings are the settings that a server has for producers. A zero field means that the
// server has no setting, or one that the transport must not follow (see its documentation).
type ProducerSettings struct {
	MaxAttempts int     // of one send, the first included
	Backoff     Delayer // after a throttled attempt
	MaxBodySize int     // bytes
}

// ConsumerSettings are what a server wants of a group's consumers. A zero
// field means that the server said nothing about it.
type ConsumerSettings struct {
	FIFO             bool    // one message of a message group at a time, in order
	MaxAttempts      int     // deliveries of one message, the first included; negative: for ever
	Retry            Delayer // the ladder: the delay after delivery n+1 failed
	ReceiveBatchSize int     // messages per receive
	LongPolling      time.Duration
}

// Capabilities are what an endpoint can do beyond a real RocketMQ 5.2. The
// zero value is a real RocketMQ 5.2.
type Capabilities struct {
	// Batch: several messages in one Send keep their own ID, tag and
	// properties, each with its own result. Without it a transport sends them
	// one by one, at the same time.
	Batch bool

	// PushBack: a throttled answer carries the time to wait.
	PushBack bool

	// Suspend: ChangeInvisibleDuration never ends in a dead letter or counts
	// as a failure by itself.
	Suspend bool

	// IdempotentDeadLetter: a repeated DeadLetter makes no second copy.
	IdempotentDeadLetter bool

	// RetryResult: Retry counts attempts by the settings of that moment, of the
	// topic and group that the message is really in, takes [ByLadder], and tells what
	// becomes of the message. So a consumer leaves it to the server when a message had
	// its last attempt, and how long it waits before the next one.
	RetryResult bool

	// Snooze: the server postpones a delivery without counting its attempt
	// ([Snoozer]).
	Snooze bool

	// RepeatReceive: a receive with an AttemptID can be repeated in groups of every
	// kind, and with [ReceiveRequest].Repeat.
	RepeatReceive bool
}

// A Configurer tells what the server wants and can do.
type Configurer interface {
	// ProducerSettings returns the server's settings for producers of the
	// topic. It may ask the server, or return what was pushed last.
	ProducerSettings(ctx context.Context, topic string) (ProducerSettings, error)

	// ConsumerSettings returns the server's settings for the group's consumers
	// of the topic. It may ask the server, or return what was pushed last.
	ConsumerSettings(ctx context.Context, group, topic string) (ConsumerSettings, error)

	// Queues returns the numbers of the topic's queues that the group's
	// consumers should receive from, each in a Receive of its own;
	// [AnyQueue] alone where one Receive serves them all.
	Queues(ctx context.Context, group, topic string) ([]int, error)

	// Capabilities returns what the endpoint is known to do. Until its first
	// answer that is the zero value.
	Capabilities() Capabilities
}
