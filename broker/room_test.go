package broker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// fullBatch returns a broker whose store is stalled, and whose next batch is full.
// done gets the results of the sends that are in it or before it.
func fullBatch(t *testing.T) (b *broker.Broker, fs *stallingFS, sent int, done chan error) {
	fs = &stallingFS{FS: vfs.NewMem()}
	b = open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(256<<10))
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	fs.hold(true)
	t.Cleanup(func() { fs.hold(false) }) // or a failure would hang
	leaveRoom(t, b, 1<<20)
	done = make(chan error, 1000)
	for ; sent < 100; sent++ {
		go func() { done <- send0(t, b, 256<<10) }()
		synctest.Wait()
		if stalled(b) && roomIsFull(b) {
			sent++
			break
		}
	}
	if sent == 100 {
		t.Fatal("25 MiB do not fill it")
	}
	return b, fs, sent, done
}

// While the store stalls, senders that find the next batch full get an error after a second,
// whether or not they came before the stall.
func TestWriteStallEndsTheWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, fs, sent, done := fullBatch(t)
		start := time.Now()
		waiting := make(chan error)
		go func() { waiting <- send0(t, b, 256<<10) }()
		time.Sleep(500 * time.Millisecond)
		select {
		case err := <-waiting:
			t.Fatalf("after half a second: %v", err)
		default:
		}
		for name, err := range map[string]error{"a waiting send": <-waiting, "a new send": send0(t, b, 256<<10)} {
			if !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "write stall") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if d := time.Since(start); d > 1100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		if n := serve(b).Stats().Throttled[engine.WriteStall]; n != 2 {
			t.Errorf("%d are counted, want 2", n)
		}
		fs.hold(false)
		for range sent {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A sender that gives up waiting for space still gets the fault of each message.
func TestEndedWaitForRoomKeepsRejections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, fs, sent, done := fullBatch(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		results := make(chan []transport.SendResult)
		go func() {
			results <- b.Send(ctx, []*tidegate.Message{{ID: "a", Topic: "none", Body: []byte("x")}, {ID: "b", Topic: "t", Body: []byte("x")}})
		}()
		synctest.Wait()
		cause := errors.New("enough")
		cancel(cause)
		rs := <-results
		if e, ok := errors.AsType[*tidegate.Error](rs[0].Err); !ok || e.Code != tidegate.CodeTopicNotFound {
			t.Errorf("the topic that is not there: %v", rs[0].Err)
		}
		if !errors.Is(rs[1].Err, cause) {
			t.Errorf("the other one: %v", rs[1].Err)
		}
		fs.hold(false)
		for range sent {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Commits wait for memory as sends do. A commit that finds the next batch full is rejected while
// the store hangs, and can be repeated.
func TestCommitsWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, size = 14, 256 << 10
		fs := &stallingFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(256<<10))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		ids := map[string]bool{}
		for range n {
			r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, size)}, time.Hour)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			ids[r.Receipt.TransactionID] = true
		}
		fs.hold(true)
		t.Cleanup(func() { fs.hold(false) })
		leaveRoom(t, b, 4*size)
		type result struct {
			id  string
			err error
		}
		done := make(chan result, n)
		for id := range ids {
			go func() {
				done <- result{id, serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: id, Resolution: transport.Commit})}
			}()
			synctest.Wait()
		}
		if !roomIsFull(b) {
			t.Fatalf("%d commits do not fill it", n)
		}
		time.Sleep(2 * time.Second)
		answered, refused := len(done), 0
		for range answered {
			if r := <-done; r.err != nil {
				ids[r.id] = false
				refused++
				if !errors.Is(r.err, tidegate.ErrThrottled) || !strings.Contains(r.err.Error(), "write stall") {
					t.Errorf("a send without space: %v", r.err)
				}
			}
		}
		if refused < n/2 {
			t.Errorf("%d of %d are refused", refused, n)
		}
		fs.hold(false)
		for range n - answered {
			if r := <-done; r.err != nil {
				t.Error(r.err)
			}
		}
		time.Sleep(time.Second)
		for id, ended := range ids {
			if ended {
				continue
			}
			if err := serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: id, Resolution: transport.Commit}); err != nil {
				t.Error(err)
			}
		}
		if got := stored(t, b, "t"); got != n {
			t.Errorf("%d messages are committed, want %d", got, n)
		}
	})
}

// Dead letters that wait for their topic, which cannot be created while settings change, reserve no
// space that sends need.
func TestDeadLettersWaitForTheirTopicWithoutRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, size = 6, 256 << 10 // more than the log has room for below
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for range n {
			if err := send0(t, b, size); err != nil {
				t.Fatal(err)
			}
		}
		var ds []*tidegate.Delivery
		for len(ds) < n {
			ds = append(ds, one(t, b, "g", "t"))
		}
		leaveRoom(t, b, n*size/2)
		release := holdSettings(t, b)
		done := make(chan error, n)
		for _, d := range ds {
			go func() { done <- second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := b.Send(ctx, []*tidegate.Message{{ID: "a", Topic: "t", Body: []byte("x")}})[0]; r.Err != nil {
			t.Errorf("a send meanwhile: %v", r.Err)
		}
		release()
		for range n {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := sent(t, b, tidegate.DeadLetterTopic("g")); got != n {
			t.Errorf("%d dead letters, want %d", got, n)
		}
	})
}

// A commit that waits for space does not hold its transaction: a purge of the topic and a check of
// due transactions do not wait for it.
func TestCommitWaitsForRoomWithoutItsClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x")}, time.Hour)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		id, err := consume.ParseTransactionID(r.Receipt.TransactionID)
		if err != nil {
			t.Fatal(err)
		}
		release := reserveRoom(t, b, 1<<30)
		done := make(chan error)
		go func() {
			done <- serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: r.Receipt.TransactionID, Resolution: transport.Commit})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if unclaim, err := b.Engine().Parts().Transactions.Claim(ctx, id); err != nil {
			t.Errorf("a request that waits for space holds the claim: %v", err)
		} else {
			unclaim()
		}
		release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := stored(t, b, "t"); got != 1 {
			t.Errorf("%d messages are committed, want 1", got)
		}
	})
}
