package interop

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The suite that every transport passes holds on a RocketMQ without any capability or guarantee,
// and through gRPC on a tidegate broker with all of them.
func TestSuite(t *testing.T) {
	fixture := func(t *testing.T) transporttest.Fixture {
		x := open(t)
		return transporttest.Fixture{Transport: x.client, CreateTopic: x.createTopic, CreateGroup: x.createGroup}
	}
	if *port != 0 {
		t.Parallel()
		s := assert.Value(rocketMQ())(t)
		transporttest.Run(t, fixture, realRocketMQ(s.Options()))
		return
	}
	s := tidegateBroker()
	s.Virtual = true
	transporttest.Run(t, fixture, s)
}
