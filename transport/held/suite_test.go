package held_test

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// suiteOptions describe a Table over the fake. The suite leaves out:
//   - NegativeAck, RetryResult and RetryByLadder: capabilities of servers with a retry schedule;
//   - PushTimeoutsTakeTheLadder: the message is retried when the lease ends, as in RocketMQ 5.2.
func suiteOptions() transporttest.Options {
	guarantees := transporttest.AllGuarantees()
	guarantees.TimeoutsTakeTheLadder, guarantees.Recall = false, false
	return transporttest.Options{
		Virtual:      true,
		Capabilities: transport.Capabilities{RepeatReceive: true, Suspend: true, Snooze: true, IdempotentDeadLetter: true},
		Guarantees:   guarantees,
	}
}

// The fake responds at once.
func TestSuite(t *testing.T) {
	transporttest.Run(t, func(*testing.T) transporttest.Fixture {
		return newFake(held.Options{Grace: 5 * time.Millisecond}).fixture()
	}, suiteOptions())
}
