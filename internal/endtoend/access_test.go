package endtoend

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"

	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// keys are permissions with one key, shop, which may send to topics; without a topic the key does
// not exist.
func keys(topics ...string) server.AccessConfig {
	c := server.AccessConfig{Keys: []server.Key{{Name: "operator", Secrets: []server.Secret{server.NewSecret("x")}}}}
	if len(topics) > 0 {
		c.Keys = append(c.Keys, server.Key{
			Name: "shop", Secrets: []server.Secret{server.NewSecret("secret")},
			Allow: []server.Rule{{Actions: []server.Action{"send"}, Topics: topics}},
		})
	}
	return c
}

// A shop sends to brokers with access keys.
type shop struct {
	t        *testing.T
	producer *producer.Producer
	spool    *spool.Spool
	log      *lines
}

// lines are the records of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}

// shopAt returns a producer, with or without a spool.
func shopAt(t *testing.T, to producer.Transport, spools bool) *shop {
	t.Helper()
	s := &shop{t: t, log: &lines{}}
	var err error
	if s.spool, err = spool.Open(filepath.Join(t.TempDir(), "spool"), spool.Options{}); err != nil {
		t.Fatal(err)
	}
	o := producer.Options{Logger: slog.New(slog.NewTextHandler(s.log, nil))}
	if spools {
		o.Spool = s.spool
	}
	if s.producer, err = producer.New(to, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { assert.NoError(t, errors.Join(s.producer.Close(), s.spool.Close())) })
	return s
}

func (s *shop) send(topic string) (tidegate.Receipt, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	return s.producer.Send(ctx, &tidegate.Message{Topic: topic, Body: []byte("x"), MessageGroup: "customer-1"})
}

// sends makes one send, and checks whether its message went to the spool.
func (s *shop) sends(topic string, spooled bool) {
	s.t.Helper()
	r, err := s.send(topic)
	assert.That(s.t, err == nil && r.Spooled == spooled, "a send to %s: %+v, %v; spooled: want %v", topic, r, err, spooled)
}

// pending checks the messages in the spool, none of which is rejected.
func (s *shop) pending(n int) {
	s.t.Helper()
	st := s.spool.Stats()
	assert.That(s.t, st.Pending == n && st.Rejected == 0, "the spool has %+v, want %d pending", st, n)
}

// keyed returns a broker with keys and topics, and a client with the key shop.
func keyed(t *testing.T, c server.AccessConfig) (*brokertest.Broker, *rocketmq.Client) {
	t.Helper()
	b := brokertest.NewWith(t, brokertest.Options{Access: c})
	for _, topic := range []string{"orders", "payments", "audit"} {
		b.CreateTopic(topic, settings.Topic{Type: settings.TopicFIFO})
	}
	client := b.ClientWith(rocketmq.Options{Credentials: tidegate.Credentials{AccessKey: "shop", SecretKey: "secret"}})
	return b, client
}

// stored checks the messages of a topic.
func stored(t *testing.T, b *brokertest.Broker, topic string, n int64) {
	t.Helper()
	s, err := b.Topic(topic)
	assert.That(t, err == nil && s.StoredMessages == n, "topic %s has %d messages, %v; want %d", topic, s.StoredMessages, err, n)
}

// The revocation of a key that has worked is an outage: the messages move to the spool, and reach
// the broker once the key is back, in order and each once. This holds whether or not the broker
// restarts in between.
func TestRevokedKeySpools(t *testing.T) {
	for name, restart := range map[string]bool{"reload": false, "restart": true} {
		t.Run(name, inBubble(func(t *testing.T) {
			b, c := keyed(t, keys("*"))
			s := shopAt(t, c, true)
			s.sends("orders", false)
			b.SetAccess(keys())
			if restart {
				b.Restart()
			}
			for range 5 {
				s.sends("orders", true)
			}
			s.sends("payments", true) // no send to it was accepted, but the key was
			s.pending(6)
			if !s.log.has("rejects credentials that it accepted before") || !s.log.has("UNAUTHORIZED") {
				t.Errorf("no event names the rejected credentials:\n%s", s.log.text.String())
			}
			time.Sleep(30 * time.Minute)
			s.pending(6)
			stored(t, b, "orders", 1)

			b.SetAccess(keys("*"))
			time.Sleep(2 * time.Minute)
			s.pending(0)
			stored(t, b, "orders", 6)
			stored(t, b, "payments", 1)
			s.sends("orders", false)
			stored(t, b, "orders", 7)
		}))
	}
}

// Sends leave an endpoint that revokes a key that has worked, without an error. With a spool they
// wait there until the switch. They stay at an endpoint that forbids one topic, and at one whose
// key has never worked.
func TestFailoverFromARevokedKey(t *testing.T) {
	for name, c := range map[string]struct {
		before, after server.AccessConfig
		active        string
		want          error // of a send to orders
		spool         bool
		pending       int // of 10 sends to orders, in the end
	}{
		"revoked key":                       {keys("*"), keys(), "second", nil, false, 0},
		"revoked key, spool":                {keys("*"), keys(), "second", nil, true, 0},
		"never worked":                      {keys(), keys(), "first", tidegate.ErrUnauthorized, true, 0},
		"revoked permission":                {keys("orders", "payments"), keys("payments"), "first", nil, true, 10},
		"revoked permission, without spool": {keys("orders", "payments"), keys("payments"), "first", tidegate.ErrForbidden, false, 0},
		"never permitted":                   {keys("payments"), keys("payments"), "first", tidegate.ErrForbidden, true, 0},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			first, a := keyed(t, c.before)
			second, b := keyed(t, keys("*"))
			x := assert.Value(failover.New([]failover.Endpoint{{Name: "first", Transport: a}, {Name: "second", Transport: b}}, failover.Options{}))(t)
			s := shopAt(t, x, c.spool)
			t.Cleanup(func() { _ = x.Close() }) // the clients are closed by the brokers
			accepted := int64(0)
			for range 2 {
				if r, err := s.send("orders"); err == nil && strings.HasPrefix(r.Endpoint, "first") {
					accepted++
				} else if len(c.before.Keys) > 1 && c.before.Keys[1].Allow[0].Topics[0] != "payments" || !errors.Is(err, c.want) {
					t.Fatalf("before: %+v, %v", r, err)
				}
			}
			first.SetAccess(c.after)
			const n = 10
			for range n {
				r, err := s.send("orders")
				assert.That(t, errors.Is(err, c.want) && (!r.Spooled || c.spool) && (r.Spooled || c.pending <= 0), "after: %+v, %v; want %v", r, err, c.want)
				if len(c.after.Keys) > 1 {
					if r, err := s.send("payments"); err != nil || r.Spooled || !strings.HasPrefix(r.Endpoint, "first") {
						t.Errorf("the other topic: %+v, %v", r, err)
					}
				}
			}
			time.Sleep(time.Minute)
			assert.That(t, x.Active() == c.active, "the active endpoint is %s, want %s", x.Active(), c.active)
			stored(t, first, "orders", accepted)
			stored(t, second, "orders", map[string]int64{"second": n}[c.active])
			s.pending(c.pending)
		}))
	}
}
