package serve

import (
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// A reload changes when producers are asked about their transactions, and how often.
func TestReloadOfTransactionSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "transaction_timeout: 7s\ntransaction_check_interval: 11s\ntransaction_check_max: 3\n")
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.Open(broker.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := b.PutTopic(t.Context(), "orders", settings.Topic{Type: settings.TopicTransaction, Queues: 1}); err != nil {
			t.Fatal(err)
		}
		srv, err := server.New(b, server.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer srv.Close()
		before, err := load("", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := reloader{file: file, broker: b, server: srv, logger: slog.New(slog.DiscardHandler), level: new(slog.LevelVar), running: *before.settings}
		r.reload(t.Context())
		var asked []time.Duration
		began := time.Now()
		stop := b.OnTransactionCheck(func(broker.TransactionCheck) bool {
			asked = append(asked, time.Since(began))
			return true
		})
		defer stop()
		if r := b.SendHalf(t.Context(), &tidegate.Message{Topic: "orders", ID: "1", Body: []byte("x")}, 0); r.Err != nil {
			t.Fatal(r.Err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(asked) != 3 {
			t.Fatalf("the producer was asked after %v, want 3 times", asked)
		}
		for i, want := range []time.Duration{7 * time.Second, 18 * time.Second, 29 * time.Second} {
			if asked[i] < want || asked[i] > want+2*time.Second {
				t.Errorf("check %d came after %v, want %v", i+1, asked[i], want)
			}
		}
	})
}
