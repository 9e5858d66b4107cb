package broker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

// A purge does not wait for a redrive after the end of its ctx. The messages that the purge would
// have removed are removed soon after the redrive.
func TestPurgeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		topicOf(t, b, "t").ExpectGaps() // as after a redrive from the topic
		release := holdRedrives(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := b.PurgeTopic(ctx, "t")
			done <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want context.Canceled", err)
			}
		default:
			t.Error("the purge still waits for the redrive")
		}
		release()
		time.Sleep(2 * time.Minute)
		if left, err := b.Topic("t"); err != nil || left.StoredMessages != 0 {
			t.Errorf("%d messages are left, %v", left.StoredMessages, err)
		}
	})
}
