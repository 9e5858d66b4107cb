package broker_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
)

// A serverLog is a server that records its calls.
type serverLog struct {
	name  string
	takes bool // has a producer for each check
	calls *[]string
}

func (r *serverLog) CheckTransaction(c engine.TransactionCheck) bool {
	*r.calls = append(*r.calls, r.name+" check "+c.Message.ID)
	c.Message.ID = "changed" // it may change its message
	return r.takes
}

func (r *serverLog) ConsumerSettingsChanged(group string) {
	*r.calls = append(*r.calls, r.name+" settings "+group)
}

// A check goes to the servers in the order of Attach until one takes it. All servers learn of
// changed settings. A server that is detached gets no more calls.
func TestServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var calls []string
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(calls, want) {
				t.Errorf("%s: the calls are %s; want %s", when, strings.Join(calls, ", "), strings.Join(want, ", "))
			}
			calls = nil
		}
		none, first, second := &serverLog{"none", false, &calls}, &serverLog{"first", true, &calls}, &serverLog{"second", true, &calls}
		for _, s := range []*serverLog{none, first, second} {
			serve(b).Attach(s)
		}
		sendHalf(t, b, "m")
		<-time.After(7 * time.Second)
		expect("all are attached", "none check m", "first check m")
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		expect("a group", "none settings g", "first settings g", "second settings g")
		serve(b).Detach(first)
		<-time.After(30 * time.Second)
		expect("the first is detached", "none check m", "second check m")
		if _, err := b.PutAddressSettings(t.Context(), "t", settings.Address{}); err != nil {
			t.Fatal(err)
		}
		expect("address settings", "none settings ", "second settings ")
	})
}
