package broker

import "github.com/tidegate/tidegate/broker/internal/consume"

// A State is where a message is in a group's consumption (RocketMQ: consumption retry). The
// package's doc has the table of its changes. String returns the name that RocketMQ uses.
type State = consume.State

// The states. A message that was never delivered has no record and is Ready.
const (
	StateReady        State = consume.Ready
	StateInflight     State = consume.Inflight
	StateWaitingRetry State = consume.WaitingRetry
	StateCommit       State = consume.Commit
	StateDeadLetter   State = consume.DeadLetter

	// StateParked waits, with all later messages of its message group, until
	// [Broker.RedriveParked]. Only in FIFO groups that park.
	StateParked State = consume.Parked
)
