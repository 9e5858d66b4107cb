package deadletter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

func TestSummarize(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		p.fail("customer 7 not found", ids("a", 3)...)
		time.Sleep(time.Hour)
		p.fail("customer 8 not found", ids("b", 2)...)
		p.fail("database is down", ids("c", 4)...)
		for _, src := range []deadletter.Source{p.source(), p.queue()} {
			classes, err := deadletter.Summarize(t.Context(), src, deadletter.Filter{})
			assert.MustThat(t, err == nil && len(classes) == 2, "%T: %+v, %v, want 2 classes", src, classes, err)
			c := classes[0]
			if c.Count != 5 || c.Reason != "customer 8 not found" || c.Topic != "orders" || c.Bytes != 20 || len(c.Sample) != 5 ||
				c.Reasons["customer 7 not found"] != 3 || c.Last.Sub(c.First).Round(time.Minute) != time.Hour {
				t.Errorf("%T: %+v", src, c)
			}
			n := 0
			for l, err := range deadletter.List(t.Context(), src, deadletter.Filter{}, false) {
				assert.MustThat(t, err == nil && l.Message.Body == nil && l.BodySize != 0,
					"without bodies: the letter is %+v: %v", l, err)
			}
			for l, err := range deadletter.List(t.Context(), src, deadletter.Filter{Fingerprint: c.Fingerprint, Match: func(l *deadletter.Letter) bool { return l.Message.ID[0] == 'b' }}, true) {
				assert.That(t, err == nil && string(l.Message.Body) == l.Message.ID, "%T: %+v, %v", src, l, err)
				n++
			}
			assert.That(t, n == 2, "%T: %d letters, want 2", src, n)
		}
	})
}

// A list reaches every dead letter, for any number of them.
func TestListsAll(t *testing.T) {
	n := model.Rounds(100_000)
	b := brokertest.New(t)
	p := newPlace(t, b)
	b.CreateTopic(tidegate.DeadLetterTopic("billing"), settings.Topic{})
	for from := 0; from < n; from += 1000 {
		var msgs []*tidegate.Message
		for i := range 1000 {
			msgs = append(msgs, &tidegate.Message{ID: fmt.Sprint(from + i), Topic: tidegate.DeadLetterTopic("billing"), Body: []byte("x")})
		}
		for _, r := range b.Broker.Send(t.Context(), msgs) {
			assert.Must(t, r.Err)
		}
	}
	seen := make(map[string]bool, n)
	for l, err := range deadletter.List(t.Context(), p.source(), deadletter.Filter{}, false) {
		assert.Must(t, err)
		seen[l.Message.ID] = true
	}
	assert.Equal(t, "dead letters were listed", len(seen), n)
}
