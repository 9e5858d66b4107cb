package broker_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// A broker that closes stops a redrive or a purge of many dead letters. The result has its progress
// and the place to continue.
func TestCloseStopsARedrive(t *testing.T) {
	t.Parallel()
	const n = 3 * deadletter.Chunk
	for name, move := range map[string]func(t *testing.T, b *broker.Broker) (moved int64, next string, err error){
		"redrive": func(t *testing.T, b *broker.Broker) (int64, string, error) {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{To: "t", Limit: n})
			return done.Redriven, done.Next, err
		},
		"purge": func(t *testing.T, b *broker.Broker) (int64, string, error) {
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{Limit: n})
			return done.Purged, done.Next, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{})
				putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
				sendN(t, b, "%DLQ%g", n, 1)
				release := holdWrites(b)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					moved, next, err := move(t, b)
					if !errors.Is(err, tidegate.ErrClosed) || moved == 0 || moved == n || next == "" {
						t.Errorf("%d of %d, continue at %q, %v", moved, n, next, err)
					}
				}()
				synctest.Wait()
				go b.Close()
				synctest.Wait()
				release()
				<-ended
			})
		})
	}
}
