package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// timed is the owner of a message: the time that its next attempt gets.
type timed time.Duration

func (t timed) Share(time.Time) time.Duration { return time.Duration(t) }

// Messages share a request only if neither has less than half of the time of the other: the request
// ends with the shortest one, which would cut the attempts of the others short.
func TestMessagesWithSimilarTimesShareARequest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		shares []time.Duration
		want   int // messages in the first request
	}{
		{"equal", []time.Duration{3 * time.Second, 3 * time.Second, 3 * time.Second}, 3},
		{"half", []time.Duration{2 * time.Second, time.Second}, 2},
		{"twice", []time.Duration{time.Second, 2 * time.Second}, 2},
		{"less than half", []time.Duration{3 * time.Second, time.Second}, 1},
		{"more than twice", []time.Duration{time.Second, 3 * time.Second}, 1},
		{"more than twice of the shortest", []time.Duration{2 * time.Second, time.Second, 3 * time.Second}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			var q Queue[timed, struct{}]
			for i, s := range tt.shares {
				q.Add(&Item[timed, struct{}]{Of: timed(s), Size: 100, Message: &tidegate.Message{ID: fmt.Sprint(i), Topic: "t"}}, now)
			}
			j, ok := q.Next(now, nil)
			assert.MustThat(t, ok && j.Ask != nil, "the first job is %+v, want an ask", j)
			j.Ask.Lanes = []transport.Lane{{Endpoint: "a", MaxMessages: 10}}
			r := q.Routed(j.Ask, now)
			assert.That(t, r != nil && len(r.Items) == tt.want, "request %+v, want one with %d messages", r, tt.want)
		})
	}
}
