package pulsar

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// browsedBodies returns the bodies that Browse returns, and its last handle and error.
func browsedBodies(t *testing.T, c *Client, topic string, from time.Time, after string) (bodies []string, handle string, err error) {
	t.Helper()
	for d, err := range c.Browse(t.Context(), topic, from, after) {
		if err != nil {
			return bodies, handle, err
		}
		bodies, handle = append(bodies, string(d.Body)), d.Handle
	}
	return bodies, handle, nil
}

// Browse returns acknowledged, unacknowledged and delayed messages, and changes none of them. A
// handle continues it.
func TestBrowse(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		began := time.Now()
		mustSend(t, c, "acknowledged", "held")
		ds, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 2, InvisibleDuration: time.Minute})
		assert.MustThat(t, err == nil && len(ds) == 2, "received %s, %v", describe(ds), err)
		ack(t, c, ds[0])
		time.Sleep(time.Second)
		later := message("delayed")
		later.DeliverAt = time.Now().Add(time.Hour).Truncate(time.Millisecond)
		assert.Must(t, c.Send(t.Context(), []*tidegate.Message{later})[0].Err)
		var all []*tidegate.Delivery
		for d, err := range c.Browse(t.Context(), "orders", time.Time{}, "") {
			assert.Must(t, err)
			all = append(all, d)
		}
		assert.MustThat(t, len(all) == 3, "%s", describe(all))
		d := all[2]
		assert.That(t, d.ID == later.ID && d.Topic == "orders" && d.DeliverAt.Equal(later.DeliverAt) && d.Queue == -1 && d.StoredAt.Equal(began.Add(time.Second)), "delayed message %+v", d)
		for i, want := range [][]string{{"held", "delayed"}, {"delayed"}, nil} {
			got, _, err := browsedBodies(t, c, "orders", time.Time{}, all[i].Handle)
			assert.NoError(t, err)
			assert.Slices(t, "after a handle", got, want)
		}
		ack(t, c, ds[1]) // its lease is as before
		_, handle, err := browsedBodies(t, c, "orders", time.Time{}, "")
		assert.NoError(t, err)
		mustSend(t, c, "new")
		got, _, err := browsedBodies(t, c, "orders", time.Time{}, handle)
		assert.NoError(t, err)
		assert.Slices(t, "since the last browse", got, []string{"new"})
		assert.Equal(t, "attempts", d.Attempt, 1)
		assert.Equal(t, "readers of the server", openReaders(s), 0)
	})
}

func openReaders(s *fakeServer) int {
	synctest.Wait() // they are closed in the background
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readers
}

// The messages of the partitions of a topic come in the order of their publish times, from a time
// or a handle on. The sequence ends before messages that come after its begin.
func TestBrowsePartitions(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.with(func(s *fakeServer) { s.partitions[namespace+"parts"] = 3 })
		var sent []string
		began := time.Now()
		for _, body := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			m := message(body)
			m.Topic = "parts"
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
			sent = append(sent, body)
			time.Sleep(time.Second)
		}
		got, _, err := browsedBodies(t, c, "parts", time.Time{}, "")
		assert.NoError(t, err)
		assert.Slices(t, "all messages", got, sent)
		for n, want := range map[int][]string{0: sent, 3: sent[3:], 6: sent[6:], 7: nil, 100: nil} {
			got, _, err := browsedBodies(t, c, "parts", began.Add(time.Duration(n)*time.Second-time.Millisecond), "")
			assert.NoError(t, err)
			assert.Slices(t, "from a time", got, want)
		}
		var seen []string
		for d, err := range c.Browse(t.Context(), "parts", time.Time{}, "") {
			assert.Must(t, err)
			seen = append(seen, string(d.Body))
			m := message("later")
			m.Topic = "parts"
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
			if len(seen) == 4 {
				rest, _, err := browsedBodies(t, c, "parts", time.Time{}, d.Handle)
				assert.NoError(t, err)
				assert.Slices(t, "after the fourth", rest, append(append([]string{}, sent[4:]...), "later", "later", "later", "later"))
			}
		}
		assert.Slices(t, "without those that came meanwhile", seen, sent)
	})
}

// A topic without messages, a missing one, a faulty handle, a silent server and a closed client.
func TestBrowseFails(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		got, _, err := browsedBodies(t, c, "orders", time.Time{}, "")
		assert.That(t, got == nil && err == nil, "an empty topic: %v, %v", got, err)
		got, _, err = browsedBodies(t, c, "orders", time.Now(), "")
		assert.That(t, got == nil && err == nil, "an empty topic from a time: %v, %v", got, err)
		for _, handle := range []string{"1", "1:2", "1:2:x", "1:2:3,1:2:3"} {
			_, _, err := browsedBodies(t, c, "orders", time.Time{}, handle)
			assert.That(t, errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), handle), "handle %s: %v", handle, err)
		}
		_, _, err = browsedBodies(t, c, "%DLQ%billing", time.Time{}, "")
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "dead letters: %v", err)
		s.with(func(s *fakeServer) { s.manual = true })
		_, _, err = browsedBodies(t, c, "missing", time.Time{}, "")
		assert.That(t, errors.Is(err, tidegate.ErrTopicNotFound), "a missing topic: %v", err)
		mustSend(t, c, "a")
		s.with(func(s *fakeServer) {
			s.refuse = func(kind, _ string) error {
				s.stalled = kind == "last" // no message arrives
				return nil
			}
		})
		began := time.Now()
		_, _, err = browsedBodies(t, c, "orders", time.Time{}, "")
		assert.That(t, errors.Is(err, tidegate.ErrUnavailable), "a silent server: %v", err)
		assert.Equal(t, "time", time.Since(began), defaultTimeout)
		s.with(func(s *fakeServer) { s.stalled, s.refuse = false, nil })
		assert.NoError(t, c.Close())
		_, _, err = browsedBodies(t, c, "orders", time.Time{}, "")
		assert.That(t, errors.Is(err, tidegate.ErrClosed), "a closed client: %v", err)
	})
}
