package amqp

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The suite on a scripted server, in virtual time. The same suite runs on a real Artemis in
// ./interop.
func TestSuiteOnAPeer(t *testing.T) {
	s := transporttest.AllGuarantees()
	s.Virtual, s.Slack = true, 300*time.Millisecond // a receive without a wait takes 200 ms
	s.PushesThrottleBackoff, s.TimeoutsTakeTheSchedule, s.Recall = false, false, false
	s.FullReceives = false
	s.LacksPositions, s.LacksTopicTypes, s.LacksStoreTimes = true, true, true
	s.Capabilities = transport.Capabilities{Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, Verdicts: transport.Snooze}
	transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
		var mu sync.Mutex
		groups, topics := map[string]transport.ConsumerSettings{}, map[string]bool{}
		var conns []net.Conn
		p := &amqppeer.Peer{Refuse: func(address string, _ bool) *amqppeer.Fault {
			mu.Lock()
			defer mu.Unlock()
			if topic, _, _ := strings.Cut(address, "::"); topics[topic] || strings.HasSuffix(topic, ".DLQ") {
				return nil
			}
			return &amqppeer.Fault{Condition: "amqp:not-found", Description: "there is no such address"}
		}}
		c, err := New("orders.example:5672", Options{
			CopyRetries: true, IdleTimeout: 24 * time.Hour, // the peer sends no heartbeats
			Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				n, err := p.Dial(ctx, address)
				if err == nil {
					mu.Lock()
					conns = append(conns, n)
					mu.Unlock()
				}
				return n, err
			},
			Groups: func(group, _ string) transport.ConsumerSettings {
				mu.Lock()
				defer mu.Unlock()
				return groups[group]
			},
		})
		assert.Must(t, err)
		return transporttest.Fixture{
			Transport: c,
			Disconnect: func() {
				p.RefuseNext(1 << 30)
				mu.Lock()
				defer mu.Unlock()
				for _, n := range conns {
					_ = n.Close() // it may have ended
				}
			},
			CreateTopic: func(_ context.Context, name string, _ settings.TopicType) error {
				mu.Lock()
				defer mu.Unlock()
				topics[name] = true
				return nil
			},
			CreateGroup: func(_ context.Context, name string, s transport.ConsumerSettings) error {
				mu.Lock()
				defer mu.Unlock()
				groups[name] = s
				for topic := range topics {
					p.Create(topic + "::" + topic + "." + name)
				}
				return nil
			},
		}
	}, s)
}
