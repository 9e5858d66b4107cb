package endtoend

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
)

// Transact with two brokers, of which the primary is away at times. The half message goes to the
// active broker, and the resolution to the broker that has the half message. Each committed message
// is delivered once, by that broker, and each transaction is in the accounts.
func TestTransactOverAFailover(t *testing.T) {
	lost := errors.New("the local transaction failed")
	for _, tt := range []struct {
		name   string
		before bool  // the primary is away before the half message
		during bool  // the primary goes away, or returns, during the local transaction
		local  error // of the local transaction; the checker rolls back if it is set
		from   string
	}{
		{name: "no fault", from: "primary"},
		{name: "away before the half message", before: true, from: "secondary"},
		{name: "away before the resolution", during: true, from: "primary"},
		{name: "back before the resolution", before: true, during: true, from: "secondary"},
		{name: "a failed local transaction", before: true, local: lost},
		{name: "a failed local transaction, away before the resolution", during: true, local: lost},
	} {
		t.Run(tt.name, inBubble(func(t *testing.T) {
			primary, secondary := brokertest.New(t), brokertest.New(t)
			var ends []failover.Endpoint
			for name, b := range map[string]*brokertest.Broker{"primary": primary, "secondary": secondary} {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicTransaction})
				ends = append(ends, failover.Endpoint{Name: name, Transport: b.Client()})
			}
			slices.SortFunc(ends, func(a, b failover.Endpoint) int { return strings.Compare(a.Name, b.Name) })
			x, err := failover.New(ends, failover.Options{SwitchBack: time.Second})
			assert.Must(t, err)
			t.Cleanup(func() { x.Close() })

			var mu sync.Mutex
			var delivered []string // endpoints
			c := assert.Value(consumer.NewPush(x, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				delivered = append(delivered, strings.Split(d.Endpoint, "/")[0])
				return nil
			}, consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}}))(t)
			p := assert.Value(producer.New(x, producer.Options{Checker: func(context.Context, transport.TransactionCheck) transport.Resolution {
				if tt.local != nil {
					return transport.Rollback
				}
				return transport.Commit
			}}))(t)
			ctx, stop := context.WithCancel(t.Context())
			var background sync.WaitGroup
			background.Go(func() { assert.NoError(t, c.Run(ctx)) })
			background.Go(func() { assert.NoError(t, p.ServeChecks(ctx, "orders")) })
			time.Sleep(time.Second)

			if tt.before {
				primary.Disconnect()
				time.Sleep(100 * time.Millisecond) // the client has noticed it
			}
			local := 0
			_, err = p.Transact(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")}, func(context.Context, *tidegate.Message) error {
				local++
				switch {
				case tt.during && tt.before:
					primary.Reconnect()
					time.Sleep(30 * time.Second)
				case tt.during:
					primary.Disconnect()
				}
				return tt.local
			})
			assert.That(t, errors.Is(err, tt.local) && local == 1, "Transact: %v after %d local transactions, want %v after one", err, local, tt.local)
			time.Sleep(time.Minute)
			primary.Reconnect()
			time.Sleep(5 * time.Minute) // for the checks
			accounts, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && accounts.Accepted == 1 && accounts.Delivered == 1, "accounts %+v, %v; want one accepted and delivered", accounts, err)
			stop()
			background.Wait()
			var want []string
			if tt.from != "" {
				want = []string{tt.from}
			}
			assert.That(t, slices.Equal(delivered, want), "delivered by %q, want %q", delivered, want)
		}))
	}
}
