package catalog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// While the disk does not respond, repeated first receives wait for one creation of their
// subscription: a client that gives up and tries again leaves no goroutine for each try.
func TestOneCreationOfASubscriptionRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, closeStore := open(t, vfs.NewMem())
		tp, g := topicAndGroup(t, c, "")
		calls := c.config.Env.Calls.(*calls)
		disk := make(chan struct{})
		c.config.Store.Messages.Add(func(*store.Batch) {}, func(error) { <-disk })
		left := errors.New("the client left")
		for range 5 {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := c.Subscribe(ctx, "g", "t")
				done <- err
			}()
			synctest.Wait()
			cancel(left)
			if err := <-done; !errors.Is(err, left) {
				t.Errorf("a receive whose client left: %v", err)
			}
		}
		if n := calls.running.Load(); n != 1 {
			t.Errorf("%d creations of one subscription wait for the disk, want 1", n)
		}
		close(disk)
		s, err := c.Subscribe(t.Context(), "g", "t")
		if err != nil || s != c.Find(g.ID(), tp.ID()) {
			t.Errorf("when the disk responds: %v, %v", s, err)
		}
		closeStore()
	})
}
