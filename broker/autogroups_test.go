package broker_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Receives create up to MaxAutoGroups groups. Groups of PutGroup do not count. A deletion permits a
// new group. A restart changes none of this.
func TestMaxAutoGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := broker.Options{Dir: "data", MaxAutoGroups: 2, MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(vfs.NewMem())
		b, err := broker.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { b.Close() }()
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		takes := func(group string, want bool) {
			t.Helper()
			groups := len(b.Groups())
			_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "t", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 1})
			_, ensured := serve(b).EnsureGroup(t.Context(), group)
			if (err == nil) != want || (ensured == nil) != want {
				t.Fatalf("group %s: %v, %v", group, err, ensured)
			}
			if want {
				return
			}
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeConsumerGroupNotFound || !strings.Contains(err.Error(), "limit of 2 auto-created groups") || !strings.Contains(err.Error(), "PUT /v1/groups/"+group) {
				t.Errorf("group %s: %v", group, err)
			}
			if n := len(b.Groups()); n != groups {
				t.Errorf("%d groups were %d before a refusal", n, groups)
			}
		}
		putGroup(t, b, "mine", settings.Group{})
		takes("a", true)
		takes("b", true)
		takes("c", false)
		takes("mine", true)
		takes("a", true)
		putGroup(t, b, "c", settings.Group{})
		takes("c", true)
		takes("d", false)
		putGroup(t, b, "a", settings.Group{}) // does not count from now on
		takes("d", true)
		takes("e", false)
		if g, err := b.Group("a"); err != nil || g.AutoCreated {
			t.Errorf("a group that was put is %+v, %v", g, err)
		}
		if g, err := b.Group("d"); err != nil || !g.AutoCreated {
			t.Errorf("one that was not is %+v, %v", g, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if b, err = broker.Open(o); err != nil {
			t.Fatal(err)
		}
		takes("e", false)
		for _, name := range []string{"d", "mine"} {
			if err := b.DeleteGroup(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		takes("e", true)
		takes("f", false)
		if _, err := broker.Open(broker.Options{MaxAutoGroups: -1}); err == nil || !strings.Contains(err.Error(), "MaxAutoGroups is -1") {
			t.Errorf("a negative maximum: %v", err)
		}
	})
}
