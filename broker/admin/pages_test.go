package admin_test

import (
	"fmt"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// The iterator reaches every dead letter once, with any size of pages, and stops when the loop
// does.
func TestAllDeadLetters(t *testing.T) {
	e := open(t, server.Options{}, admin.Options{}, false)
	assert.Must(t, assert.Err(e.c.PutTopic(t.Context(), "orders", settings.Topic{})))
	const n = 250
	var msgs []*tidegate.Message
	for i := range n {
		msgs = append(msgs, message("orders", fmt.Sprint("m", i)))
	}
	e.send(msgs...)
	e.giveUp("billing", "orders", "why", n)
	for _, limit := range []int{0, 7, 1000} {
		seen := map[string]int{}
		for d, err := range e.c.AllDeadLetters(t.Context(), "billing", status.DeadLetterQuery{Limit: limit}) {
			assert.Must(t, err)
			seen[d.MessageID]++
			if len(seen) == n/2 && limit == 7 {
				break
			}
		}
		want := n
		if limit == 7 {
			want = n / 2
		}
		assert.That(t, len(seen) == want, "limit %d: %d dead letters, want %d", limit, len(seen), want)
		for id, times := range seen {
			assert.That(t, times == 1, "limit %d: %s came %d times", limit, id, times)
		}
	}
	for _, err := range e.c.AllDeadLetters(t.Context(), "nobody", status.DeadLetterQuery{}) {
		assert.That(t, err != nil, "a group that does not exist has dead letters")
	}
}
