package endtoend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
)

// Every message of the broker is delivered several times: acknowledgements are lost, deliveries are
// late and out of order, and a handler is killed in the middle of its transaction, panics, fails or
// loses its lease. The SQL inbox makes the handler's own writes exactly once, in the same
// transaction as its record.
func TestInboxKeepsEffectsOnceUnderChaos(t *testing.T) {
	const messages = 150
	for round := range 2 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Logf("seed %d", seed)
			path := filepath.Join(t.TempDir(), "effects.db")
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_pragma=synchronous(off)&_txlock=immediate")
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				db.SetMaxOpenConns(1)
				if _, err := db.ExecContext(t.Context(), "CREATE TABLE charges (id TEXT, amount INTEGER)"); err != nil {
					t.Fatal(err)
				}
				box, err := inbox.NewSQL(db, inbox.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if err := box.CreateTable(t.Context()); err != nil {
					t.Fatal(err)
				}
				rnd := rand.New(rand.NewPCG(seed, 5))
				var mu sync.Mutex
				ways := map[string]int{}
				way := func() string {
					mu.Lock()
					defer mu.Unlock()
					w := []string{"kill", "panic", "fail", "fail after", "slow", "", "", "", "", ""}[rnd.IntN(10)]
					ways[w]++
					return w
				}
				handler := box.Handler(func(ctx context.Context, tx *sql.Tx, d *tidegate.Delivery) error {
					w := way()
					if w == "fail" {
						return errors.New("by the test")
					}
					if _, err := tx.ExecContext(ctx, "INSERT INTO charges VALUES (?, ?)", d.ID, d.Attempt); err != nil {
						return err
					}
					switch w {
					case "kill": // the goroutine ends without a word, as the process would
						runtime.Goexit()
					case "panic":
						panic("by the test")
					case "fail after":
						return errors.New("by the test")
					case "slow": // until the lease is lost; the transaction is rolled back with ctx
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				})
				// After the handler committed, the worker may vanish before it acknowledges.
				unacknowledged := func(ctx context.Context, d *tidegate.Delivery) error {
					if err := handler(ctx, d); err != nil {
						return err
					}
					if way() == "kill" {
						return errors.New("killed between the commit and the acknowledgement")
					}
					return nil
				}
				b.CreateTopic("orders", settings.Topic{})
				b.CreateGroup("billing", settings.Group{MaxAttempts: -1})
				var sent []*tidegate.Message
				for n := range messages {
					sent = append(sent, Order(n))
				}
				b.Send(sent...)
				chaos := b.ChaosClient(brokertest.Chaos{Seed: seed, Duplicate: 0.2, Late: 0.2, Reorder: 0.2})
				var seen outcomes
				stop := runPush(t, chaos, unacknowledged, consumer.PushOptions{
					Concurrency: 4, MaxExtension: 20 * time.Second, InvisibleDuration: 10 * time.Second, OnDelivery: seen.Add,
				})
				b.WaitIdle("billing", "orders")
				stop()
				deliveries := len(seen.All())
				var rows, ids, records int
				for query, n := range map[string]*int{
					"SELECT COUNT(*) FROM charges": &rows, "SELECT COUNT(DISTINCT id) FROM charges": &ids, "SELECT COUNT(*) FROM tidegate_inbox": &records,
				} {
					if err := db.QueryRowContext(t.Context(), query).Scan(n); err != nil {
						t.Fatal(err)
					}
				}
				if rows != messages || ids != messages || records != messages {
					t.Errorf("%d effects of %d messages and %d records, want %d of each", rows, ids, records, messages)
				}
				if deliveries < messages*3/2 || ways["kill"] < 10 || ways["slow"] < 5 {
					t.Errorf("%d deliveries of %d messages, handlers ended as %v: the test shows nothing", deliveries, messages, ways)
				}
			})
		})
	}
}
