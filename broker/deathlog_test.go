package broker_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Dead letters are logged one by one only in small numbers: a class has two lines a minute at most.
func TestDeadLettersAreSummedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := open(t, broker.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		putTopic(t, b, "t", settings.Topic{})
		const n = 300
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Append(nil, i)})
		}
		for done := 0; done < n; {
			for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute}) {
				if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"}); err != nil {
					t.Fatal(err)
				}
				done++
			}
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if lines := strings.Count(log.String(), "became a dead letter"); lines != 2 || !strings.Contains(log.String(), "further=299") {
			t.Errorf("%d lines, want 2:\n%.2000s", lines, log.String())
		}
	})
}

// Delayed messages that are moved in time are hardly late, and those of a broker that was down are.
func TestLatenessOfDelayedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})
		if h := serve(b).Stats().DelayedLateness; h.Count() != 0 {
			t.Errorf("before its time, %d messages count", h.Count())
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if h := serve(b).Stats().DelayedLateness; h.Count() != 1 || h.Sum > 0.01 {
			t.Errorf("%d messages, %v s late together, want 1 and about 0", h.Count(), h.Sum)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y"), DeliverAt: time.Now().Add(time.Minute)})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		synctest.Wait()
		if h := serve(b).Stats().DelayedLateness; h.Count() != 1 || h.Sum < 119 || h.Sum > 121 {
			t.Errorf("after two minutes without a broker, %d messages, %v s late together", h.Count(), h.Sum)
		}
	})
}

// A broker that opens a directory after a crash logs its content, and only then.
func TestRecoveryAfterCrashIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		var log bytes.Buffer
		begin := func(fs vfs.FS) *broker.Broker {
			return open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(fs))
		}
		b := begin(fs)
		putTopic(t, b, "t", settings.Topic{})
		for i := range 5 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Append(nil, i)})
		}
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, InvisibleDuration: time.Hour})
		time.Sleep(time.Second) // the leases are written
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = begin(fs)
		if strings.Contains(log.String(), "did not close") {
			t.Errorf("of a new directory, or after an orderly close:\n%s", log.String())
		}
		b.Close()
		begin(crashed)
		for _, want := range []string{"level=WARN", "did not close", "stored_messages=5", "deliveries_in_flight=2"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %q in\n%s", want, log.String())
			}
		}
	})
}
