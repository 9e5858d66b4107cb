package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// The next round removes the messages that a round could not remove after it had moved the queue's
// beginning, for the same cause. A restart in between does no harm.
func TestFailedRoundIsRepeated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		purge, restart bool
		remaining      int64
		cause          engine.RemovalCause
	}{{false, false, 1, engine.RemovedTime}, {false, true, 1, engine.RemovedTime}, {true, false, 1, engine.RemovedPurge}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				sendN(t, b, "t", 3, 100)
				held := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
				release := holdRetention(t, b)
				time.Sleep(time.Minute + time.Second)
				w, err := b.Engine().Parts().Retention.Begin(topicOf(t, b, "t"), time.Now(), c.purge)
				if err != nil {
					t.Fatal(err)
				}
				var repairs []func()
				for o := range int64(3) { // the message to keep cannot be read, nor its neighbour
					repairs = append(repairs, corruptMessage(t, b, "t", 0, o))
				}
				if !c.purge { // which reads nothing, and is left at that
					if err := w.Run(t.Context()); err == nil {
						t.Fatal("a round that cannot read the kept messages has no error")
					}
				}
				for _, repair := range repairs {
					repair()
				}
				if c.restart {
					b = reopen(t, b, fs)
				} else {
					release()
				}
				elapse(2 * time.Minute)
				if n := stored(t, b, "t"); n != c.remaining {
					t.Errorf("%d messages are left, want %d", n, c.remaining)
				}
				st := serve(b).Stats().Topics[0]
				if st.Removed[c.cause] != 3-c.remaining || st.Stored.Bytes != c.remaining*100 {
					t.Errorf("removed %v, %d bytes are left", st.Removed, st.Stored.Bytes)
				}
				if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{Messages: c.remaining, Bytes: c.remaining * 100}) || s.Inflight != c.remaining {
					t.Errorf("the group has %+v", s)
				}
				if tp := topicOf(t, b, "t"); tp.Written().Messages != tp.Before().Messages || tp.Written().Bytes != tp.Before().Bytes {
					t.Errorf("%d of %d messages, %d of %d bytes are counted as removed", tp.Before().Messages, tp.Written().Messages, tp.Before().Bytes, tp.Written().Bytes)
				}
				if err := b.Ack(t.Context(), held)[0]; (err == nil) != (c.remaining > 0) {
					t.Error(err)
				}
				if elapse(2 * time.Minute); stored(t, b, "t") != 0 {
					t.Errorf("%d messages are left", stored(t, b, "t"))
				}
			})
		})
	}
}
