package interop

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/transport/transporttest"
)

// The suite that every transport passes holds on a RocketMQ without any capability or guarantee,
// and through gRPC on a tidegate broker with all of them.
func TestSuite(t *testing.T) {
	fixture := func(t *testing.T) transporttest.Fixture {
		x := open(t)
		return transporttest.Fixture{Transport: x.client, CreateTopic: x.createTopic, CreateGroup: x.createGroup}
	}
	if *endpoint != "" {
		t.Parallel()
		// RocketMQ 5.2 waits 5 s at least, and has invisible durations of 10 s at least.
		transporttest.Run(t, fixture, transporttest.Server{Unit: 5 * time.Second, Slack: 15 * time.Second})
		return
	}
	s := tidegateBroker()
	s.Virtual = true
	transporttest.Run(t, fixture, s)
}
