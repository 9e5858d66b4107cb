package rest_test

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A client knows the capabilities of its own broker, by its name or without one, after the broker's
// first response. It has none for another endpoint.
func TestCapabilitiesOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transport.Capabilities{
			Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
		}
		c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) { problem(w, 404, 40402) })
		for _, tt := range []struct {
			endpoint  string
			responded bool
			want      transport.Capabilities
		}{
			{"", false, transport.Capabilities{}},
			{"broker.test:80", false, transport.Capabilities{}},
			{"", true, all},
			{"broker.test:80", true, all},
			{"other.test:80", true, transport.Capabilities{}},
		} {
			if tt.responded {
				assert.MustThat(t, assert.Err(c.ProducerSettings(t.Context(), "orders")) != nil, "no error")
			}
			if got := c.Capabilities(tt.endpoint); got != tt.want {
				t.Errorf("endpoint %q, after a response: %t; %+v, want %+v", tt.endpoint, tt.responded, got, tt.want)
			}
		}
	})
}
