package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The consumers of a deleted group get the settings with which their next receive creates the group
// again. If it cannot create the group, their streams remain: the receives report the error.
func TestDeletedGroupPushesSettings(t *testing.T) {
	for _, c := range []struct {
		most   int // auto-created groups
		pushes int
	}{{most: 2, pushes: 1}, {most: 1, pushes: 0}} {
		synctest.Test(t, func(t *testing.T) {
			e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: c.most}, server.Options{})
			if _, err := e.b.Engine().EnsureGroup(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{FIFO: true}); err != nil {
				t.Fatal(err)
			}
			st, first := e.telemetry(as(t.Context(), "client"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
			if !first.GetSubscription().GetFifo() {
				t.Fatal("the group is no FIFO group")
			}
			var pushed []*rmqpb.TelemetryCommand
			var ended error
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ended == nil {
					cmd, err := st.Recv()
					if ended = err; err == nil {
						pushed = append(pushed, cmd)
					}
				}
			}()
			if err := e.b.DeleteGroup(t.Context(), "g"); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
				t.Fatalf("with %d auto-created groups the stream ended with %v after %v", c.most, ended, pushed)
			case <-ctx.Done():
			}
			synctest.Wait()
			if len(pushed) != c.pushes || c.pushes > 0 && (pushed[0].GetSettings() == nil || pushed[0].GetSettings().GetSubscription().GetFifo()) {
				t.Errorf("with %d auto-created groups the stream got %v, want %d settings without FIFO", c.most, pushed, c.pushes)
			}
		})
	}
}
