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
// first response. The response of a proxy shows nothing about the broker behind it. The client has
// none for another endpoint.
func TestCapabilitiesOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transport.Capabilities{
			Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
		}
		up := false
		c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			if up {
				problem(w, 404, 40402)
				return
			}
			http.Error(w, "<html>no backend</html>", http.StatusBadGateway)
		})
		for _, tt := range []struct {
			endpoint      string
			responded, up bool
			want          transport.Capabilities
		}{
			{"", false, false, transport.Capabilities{}},
			{"broker.test:80", true, false, transport.Capabilities{}},
			{"", true, true, all},
			{"broker.test:80", true, true, all},
			{"other.test:80", true, true, transport.Capabilities{}},
		} {
			if up = tt.up; tt.responded {
				assert.MustThat(t, assert.Err(c.ProducerSettings(t.Context(), "orders")) != nil, "no error")
			}
			if got := c.Capabilities(tt.endpoint); got != tt.want {
				t.Errorf("endpoint %q, after a response: %t, of the broker: %t; %+v, want %+v", tt.endpoint, tt.responded, tt.up, got, tt.want)
			}
		}
	})
}
