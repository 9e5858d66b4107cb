package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Units that no lane takes wait. Calling the transport again at once would return the same result,
// in an endless loop.
func TestNoAskWhileNoLaneTakes(t *testing.T) {
	for name, change := range map[string]func(l *Lane[numbered, struct{}]){
		"the pause is being decided":       func(l *Lane[numbered, struct{}]) { l.Deciding = true },
		"a request beside the next probe":  func(*Lane[numbered, struct{}]) {},
		"the pause has not ended":          func(l *Lane[numbered, struct{}]) { l.PausedUntil = l.PausedUntil.Add(time.Second) },
		"it is probed, and another flies":  func(l *Lane[numbered, struct{}]) { l.sincePause = 1 },
		"not even the lane's window opens": func(l *Lane[numbered, struct{}]) { l.probing, l.flying = false, sharedWindow },
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			var q Queue[numbered, struct{}]
			add := func(n int) {
				for i := range n {
					q.Add(&Item[numbered, struct{}]{Of: numbered(i), Size: 100, Message: &tidegate.Message{ID: fmt.Sprint(i), Topic: "t"}}, now)
				}
			}
			request := func() *Request[numbered, struct{}] {
				j, ok := q.Next(now, nil)
				if !ok || j.Ask == nil {
					return nil
				}
				j.Ask.Lanes = []transport.Lane{{Endpoint: "a", MaxMessages: 10}}
				return q.Routed(j.Ask, now)
			}
			add(20)
			first, second := request(), request()
			assert.MustThat(t, first != nil && second != nil && len(first.Items) == 10 && len(second.Items) == 10,
				"%+v, %+v", first, second)
			for _, it := range first.Items {
				it.Due = now.Add(time.Minute)
			}
			first.Lane.Pause(first, now, 0, nil)
			q.Finished(first, now)
			change(first.Lane)
			add(1)
			r := request()
			assert.MustThat(t, r == nil, "the request %+v", r)
			j, ok := q.Next(now, nil)
			assert.That(t, !ok, "the next job is %+v, although nothing has changed", j)
			assert.Equal(t, "units are ready", q.loose.Len(), 1)
		})
	}
}
