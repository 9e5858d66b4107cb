package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A group is rewound while its topic gets more queues.
func TestRewindWhileATopicGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		growQueues(t, b, "t", 3)
		for i := range 9 {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
		}
		for _, to := range []status.Position{{Latest: true}, {Earliest: true}, {Offsets: map[int]int64{2: 1}}} {
			if _, err := b.Rewind(t.Context(), "g", "t", to); err != nil {
				t.Error(err)
			}
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}); len(ds) != 8 {
			t.Errorf("%d messages of 8 are delivered", len(ds))
		}
	})
}
