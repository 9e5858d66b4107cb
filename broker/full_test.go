package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// fill sends messages of 50 kB until one is rejected, and returns the IDs of
// those that were stored.
func fill(t *testing.T, b *broker.Broker, name string) (stored []string) {
	t.Helper()
	noise := rand.NewChaCha8([32]byte{}) // the tables are compressed
	for n := range 5000 {
		id, body := fmt.Sprint(name, n), make([]byte, 50_000)
		_, _ = noise.Read(body)
		switch err := send(t, b, &tidegate.Message{ID: id, Topic: "t", Body: body})[0].Err; {
		case err == nil:
			stored = append(stored, id)
		case !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "the disk of the data directory is full"):
			t.Fatal(err)
		default:
			return stored
		}
	}
	t.Fatal("the disk does not get full")
	return nil
}

// consume receives and settles n messages, some at the second attempt.
func consumeFailing(t *testing.T, b *broker.Broker, n int) (ids []string) {
	t.Helper()
	for len(ids) < n {
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute})
		if len(ds) == 0 {
			t.Fatalf("%d of %d came", len(ids), n)
		}
		for i, d := range ds {
			var err error
			if i%5 == 0 && d.Attempt == 1 {
				_, err = b.Retry(t.Context(), d, time.Second, "")
			} else {
				err = b.Ack(t.Context(), []*tidegate.Delivery{d})[0]
				ids = append(ids, d.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return ids
}

// On a full disk the broker throttles sends, and no other requests; once there is space again, the
// broker accepts sends without a restart, and no message was lost.
func TestFullDiskThrottlesSendsUntilSpaceIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := newQuotaFS()
		o := broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(1 << 20)
		b, err := broker.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
		all := map[string]bool{}
		for round, free := range []int64{0, 3 << 20, 17 << 20} {
			fs.leave(free)
			stored := fill(t, b, fmt.Sprint(round, "."))
			if th := b.Throttles(); len(th) == 0 || th[0].Limit != limits.DiskFull || !th[0].On || th[0].Value <= 0 {
				t.Errorf("the throttles are %+v", th)
			}
			time.Sleep(3 * time.Second)
			if more := fill(t, b, fmt.Sprint(round, "again")); len(more) > 0 {
				t.Errorf("%d sends were accepted on a full disk", len(more))
			}
			if serve(b).Stats().Throttled[limits.DiskFull] < 2 {
				t.Error("the refusals were not counted")
			}
			for _, id := range consumeFailing(t, b, len(stored)) {
				all[id] = true
			}
			if len(all) < len(stored) || b.Healthy() != nil {
				t.Errorf("%d of %d came; %v", len(all), len(stored), b.Healthy())
			}
			if round == 1 { // a restart on the full disk
				if err := b.Close(); err != nil {
					t.Errorf("closing: %v", err)
				}
				if b, err = broker.Open(o); err != nil {
					t.Fatal(err)
				}
				if more := fill(t, b, "restarted"); len(more) > 0 {
					t.Errorf("%d sends were accepted on a full disk after a restart", len(more))
				}
			}
			fs.leave(1 << 30)
			time.Sleep(2 * time.Second)
			id := fmt.Sprint("after", round)
			mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", Body: []byte("x")})
			if got := consumeFailing(t, b, 1); got[0] != id {
				t.Errorf("%s came, want %s", got, id)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if b, err = broker.Open(o); err != nil {
			t.Fatal(err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) > 0 {
			t.Errorf("%s is redelivered", ds[0].ID)
		}
		for _, d := range receiveAll(t, b, "t") {
			delete(all, d.ID)
		}
		if len(all) > 0 {
			t.Errorf("%d messages were consumed, and are not there any more", len(all))
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// When even the reserve is used up, consumers wait. They continue once space is free.
func TestFullDiskWithoutReserveWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := newQuotaFS()
		b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("a")}, &tidegate.Message{Topic: "t", Body: []byte("b")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, InvisibleDuration: time.Hour})
		fs.leave(0)
		fill(t, b, "full")
		fs.leave(0) // with or without the ballast
		acked := make(chan error, 1)
		go func() { acked <- b.Ack(t.Context(), ds[:1])[0] }()
		time.Sleep(10 * time.Second)
		select {
		case err := <-acked:
			t.Fatalf("acknowledged without space: %v", err)
		default:
		}
		fs.leave(1 << 30)
		if err := <-acked; err != nil {
			t.Error(err)
		}
		fs.leave(0)
		go func() { acked <- b.Ack(t.Context(), ds[1:])[0] }()
		time.Sleep(10 * time.Second)
		fs.leave(1 << 30)
		if err := <-acked; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // writes in the background look for room again; Close would end their wait
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// When even the reserve is used up, Close waits for no space, with or without other waiting calls,
// and all acknowledged data is there afterwards.
func TestFullDiskWithoutReserveCloses(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fs := newQuotaFS()
			o := broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs)
			b, err := broker.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			putTopic(t, b, "t", settings.Topic{})
			mustSend(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("a")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Hour})
			fs.leave(0)
			ids := append(fill(t, b, "full"), "a")
			fs.leave(0) // with or without the ballast
			acked := make(chan error, 1)
			if waits {
				go func() { acked <- b.Ack(t.Context(), ds)[0] }()
				time.Sleep(10 * time.Second)
			}
			closed := make(chan error, 1)
			go func() { closed <- b.Close() }()
			select {
			case err := <-closed: // an error names the disk, or it is nil
				if err != nil && !strings.Contains(err.Error(), "no space left") {
					t.Errorf("closing: %v", err)
				}
			case <-time.After(time.Hour):
				t.Errorf("waits %t: it does not close", waits)
				fs.leave(1 << 30)
				<-closed
			}
			if waits && <-acked == nil {
				t.Error("acknowledged without space")
			}
			fs.leave(1 << 30)
			if b, err = broker.Open(o); err != nil {
				t.Fatal(err)
			}
			for _, d := range receiveAll(t, b, "t") {
				if at := slices.Index(ids, d.ID); at >= 0 {
					ids = slices.Delete(ids, at, at+1)
				}
			}
			if len(ids) > 0 {
				t.Errorf("waits %t: %q are gone", waits, ids)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
