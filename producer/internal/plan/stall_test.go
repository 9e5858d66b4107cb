package plan

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
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
			d := newDesk(t)
			for range 20 {
				d.add("")
			}
			first, second := d.request("a", 10), d.request("a", 10)
			assert.MustThat(t, first != nil && second != nil && len(first.Items) == 10 && len(second.Items) == 10,
				"%+v, %+v", first, second)
			for _, it := range first.Items {
				it.Due = d.now.Add(time.Minute)
			}
			first.Lane.Pause(first, d.now, 0, nil)
			d.q.Finished(first, d.now)
			change(first.Lane)
			d.add("")
			before := d.lanes
			r := d.request("a", 10)
			assert.MustThat(t, r == nil && d.lanes-before <= 1, "the request %+v after %d calls of Lane, although nothing has changed", r, d.lanes-before)
			assert.Equal(t, "units are ready", d.q.loose.Len(), 1)
		})
	}
}
