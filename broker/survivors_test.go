package broker_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A dead letter request is repeated at any moment of the first one. It does not return before the
// end of the first one is on disk; otherwise the message could be redelivered after a power
// failure.
func TestRepeatedDeadLetterWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &slowGroupsFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, protocol.DeadLetterPrefix+"g", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 12 * time.Hour})
		if len(ds) != 1 {
			t.Fatalf("received %d messages", len(ds))
		}
		<-time.After(time.Second) // the lease is on disk
		fs.slow.Store(true)
		start := time.Now()
		type end struct {
			begun, ended time.Duration
			err          error
		}
		ends := make(chan end)
		call := func() {
			begun := time.Since(start)
			_, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter})
			ends <- end{begun, time.Since(start), err}
		}
		const repeated = 24
		for range repeated + 1 {
			go call()
			<-time.After(5 * time.Minute)
		}
		fs.slow.Store(false)
		var first time.Duration
		var all []end
		for range repeated + 1 {
			e := <-ends
			if e.err != nil {
				t.Error(e.err)
			}
			if e.begun == 0 {
				first = e.ended
			}
			all = append(all, e)
		}
		if first < time.Hour {
			t.Fatalf("the first request ended after %v, before an fsync of the groups", first)
		}
		for _, e := range all {
			if e.ended < first {
				t.Errorf("the request of %v ended after %v, and the first one after %v", e.begun, e.ended, first)
			}
		}
	})
}

// The number of attempts that a consumer claims for a dead letter is bounded.
func TestClaimedAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
	d.Attempt = math.MaxInt32
	if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter}); err != nil {
		t.Fatal(err)
	}
	page, err := b.DeadLetters("g", status.DeadLetterQuery{})
	if err != nil || len(page.DeadLetters) != 1 {
		t.Fatal(page, err)
	}
	if n := page.DeadLetters[0].Origin.Attempts; n != 1<<20 {
		t.Errorf("the dead letter has %d attempts, want the bound of %d", n, 1<<20)
	}
}

// For several delayed messages of one send, in any order, the broker wakes for the earliest.
func TestEarliestOfOneSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, seconds := range [][]int{{20, 10, 30}, {10, 20, 30}, {30, 20, 10}} {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
			start := time.Now()
			var ms []*tidegate.Message
			for _, s := range seconds {
				ms = append(ms, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: start.Add(time.Duration(s) * time.Second)})
			}
			mustSend(t, b, ms...)
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour})
			if got := time.Since(start); len(ds) != 1 || got != 10*time.Second {
				t.Errorf("%v: %d messages after %v, want the first after 10s", seconds, len(ds), got)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
