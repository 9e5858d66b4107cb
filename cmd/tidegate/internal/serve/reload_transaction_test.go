package serve

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A reload changes the times and the number of the checks of transactions.
func TestReloadOfTransactionSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "transaction_timeout: 7s\ntransaction_check_interval: 11s\ntransaction_check_max: 3\n")
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		srv := assert.Value(server.New(b.Broker, server.Options{}))(t)
		defer srv.Close()
		before := assert.Value(load("", nil, nil))(t)
		r := reloader{file: file, broker: b.Broker, server: srv, logger: slog.New(slog.DiscardHandler), level: new(slog.LevelVar), running: *before.settings}
		r.reload(t.Context())
		var mu sync.Mutex
		var asked []time.Duration
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		client := b.Client()
		checks := make(chan error, 1)
		go func() {
			checks <- client.ServeChecks(ctx, []string{"orders"}, func(context.Context, transport.TransactionCheck) transport.Resolution {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, time.Since(began))
				return transport.ResolutionUnknown
			})
		}()
		synctest.Wait()
		if r := client.SendHalf(ctx, &tidegate.Message{Topic: "orders", ID: tidegate.NewMessageID(), Body: []byte("x")}); r.Err != nil {
			t.Fatal(r.Err)
		}
		time.Sleep(10 * time.Minute)
		stop()
		assert.Must(t, <-checks)
		assert.MustThat(t, len(asked) == 3, "the producer was asked after %v, want 3 times", asked)
		for i, want := range []time.Duration{7 * time.Second, 18 * time.Second, 29 * time.Second} {
			if asked[i] < want || asked[i] > want+2*time.Second {
				t.Errorf("check %d came after %v, want %v", i+1, asked[i], want)
			}
		}
	})
}
