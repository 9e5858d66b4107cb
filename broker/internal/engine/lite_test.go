package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// noRoom is memory that has no room for a message.
type noRoom struct{}

func (noRoom) Admit(int64) error { return errors.New("no room") }

// A receive from a lite topic that was woken, and then ends or cannot keep the message, wakes another
// consumer of the lite topic.
func TestWokenReceiveLeavesAMessage(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Subscription, *Request, *waiter){
		"it ends": func(_ *testing.T, s *Subscription, _ *Request, w *waiter) { s.leave(w) },
		"it has no room": func(t *testing.T, s *Subscription, p *Request, _ *waiter) {
			p.Memory = noRoom{}
			_, _, _, err := s.take(p)
			assert.That(t, err != nil, "a receive without room got a message")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSubscriptionFixture(t)
			f.topic = f.create("p", settings.Topic{Type: settings.TopicLite})
			f.group = newGroup("g", 2, settings.Group{FIFO: true, Lite: settings.LiteGroup{Topic: "p"}}.WithDefaults())
			s := f.subscribe(false)
			requests, waiters := map[string]*Request{}, map[string]*waiter{}
			for _, id := range []string{"c1", "c2"} {
				assert.Must(t, s.syncLite(t.Context(), &transport.LiteSync{LiteConsumer: transport.LiteConsumer{ID: id}, Topics: []string{"a"}}))
				p := &Request{ReceiveRequest: transport.ReceiveRequest{Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute, LiteConsumer: id}}
				p.begin()
				_, _, w, err := s.take(p)
				assert.MustThat(t, w != nil && err == nil, "consumer %s waits at %v, %v", id, w, err)
				requests[id], waiters[id] = p, w
			}
			f.send(store.Message{Message: tidegate.Message{ID: "1", LiteTopic: "a", Body: []byte("x")}})
			isWoken := func(id string) bool {
				select {
				case <-waiters[id].woken:
					return true
				default:
					return false
				}
			}
			first, second := "c1", "c2"
			if isWoken(second) {
				first, second = second, first
			}
			assert.MustThat(t, isWoken(first) && !isWoken(second), "one message woke both consumers or none")
			end(t, s, requests[first], waiters[first])
			assert.That(t, isWoken(second), "the other consumer still waits")
		})
	}
}
