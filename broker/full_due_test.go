package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Messages that become due on a full disk leave the reserve to the consumers. The broker delivers
// them once there is space.
func TestFullDiskPostponesDelayedMessages(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("known=%t", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n, acks = 1000, 300
				fs := newQuotaFS()
				b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(1<<20))
				putTopic(t, b, "t", settings.Topic{Queues: 2})
				putTopic(t, b, "later", settings.Topic{Type: settings.TopicDelay, Queues: 2})
				var handle string
				for i := range n {
					r := send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "later", Body: make([]byte, 5_000), DeliverAt: time.Now().Add(time.Hour)})[0]
					if r.Err != nil {
						t.Fatal(r.Err)
					}
					handle = r.Receipt.RecallHandle
				}
				sendN(t, b, "t", acks, 10)
				var ds []*tidegate.Delivery
				for len(ds) < acks {
					ds = append(ds, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: 12 * time.Hour, Wait: time.Minute})...)
				}
				fs.leave(0)
				if known {
					fill(t, b, "full")
				}
				elapse(2 * time.Hour)
				start := time.Now()
				for _, d := range ds {
					if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
						t.Fatal(err)
					}
				}
				if id, err := b.Recall(t.Context(), "later", handle); err != nil || id != fmt.Sprint(n-1) {
					t.Errorf("recalling: %q, %v", id, err)
				}
				if d := time.Since(start); d > time.Second {
					t.Errorf("they took %v", d)
				}
				moved := stored(t, b, "later")
				if moved > 512 || known && moved > 0 {
					t.Errorf("%d messages were moved on a full disk", moved)
				}
				fs.leave(1 << 30)
				elapse(5 * time.Second)
				if moved := stored(t, b, "later"); moved != n-1 {
					t.Errorf("%d messages were delivered once there was space, want %d", moved, n-1)
				}
			})
		})
	}
}

// With too little disk space the broker rejects commits and gives up no transaction, but accepts
// rollbacks. Once space is free, commits and checks continue.
func TestShortDiskPostponesTransactions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := newQuotaFS()
		b := open(t, broker.Options{Dir: "data", Transaction: settings.Transaction{Timeout: settings.Duration(time.Minute), CheckInterval: settings.Duration(time.Minute), CheckMax: 1}}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var ids []string
		for i := range 3 {
			r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: make([]byte, 1000)}, 0)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			ids = append(ids, r.Receipt.TransactionID)
		}
		end := func(i int, r transport.Resolution) error {
			return serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: ids[i], Resolution: r})
		}
		fs.leave(100 << 20) // less than MinFreeDisk
		time.Sleep(time.Second)
		if err := end(0, transport.Commit); !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "free disk") {
			t.Errorf("commit: %v", err)
		}
		if err := end(0, transport.ResolutionUnknown); err != nil {
			t.Errorf("the transaction does not exist: %v", err)
		}
		if err := end(1, transport.Rollback); err != nil {
			t.Errorf("rollback: %v", err)
		}
		elapse(10 * time.Minute)
		if _, err := b.Topic(broker.AbandonedTransactions); err == nil {
			t.Error("a transaction was given up")
		}
		fs.leave(1 << 40)
		time.Sleep(time.Second)
		if err := end(0, transport.Commit); err != nil {
			t.Errorf("commit once there is space: %v", err)
		}
		elapse(2 * time.Minute)
		if got, given := stored(t, b, "t"), stored(t, b, broker.AbandonedTransactions); got != 1 || given != 1 {
			t.Errorf("%d are committed and %d given up, want one each", got, given)
		}
	})
}
