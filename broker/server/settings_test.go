package server_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// topicNames returns n names of topics that begin with prefix.
func topicNames(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

// subscriber returns the settings of a push consumer of these topics.
func subscriber(topics ...string) *rmqpb.Settings {
	s := consumer(rmqpb.ClientType_PUSH_CONSUMER)
	var list []*rmqpb.SubscriptionEntry
	for _, t := range topics {
		list = append(list, &rmqpb.SubscriptionEntry{Topic: res(t)})
	}
	s.GetSubscription().Subscriptions = list
	return s
}

// Settings name as many topics as have room in 64 KiB, since an SDK names all that
// it ever used. All that are published are remembered, for checks of transactions.
func TestSettingsOfManyTopics(t *testing.T) {
	e := start(t, server.Options{})
	for n, want := range map[int]tidegate.Code{2000: protocol.CodeOK, 5500: protocol.CodeOK, 10_000: protocol.CodePayloadTooLarge} {
		id := fmt.Sprint("client-", n)
		st, err := e.Telemetry(as(t.Context(), id))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(producer(topicNames("t", n)...))); err != nil {
			t.Fatal(err)
		}
		cmd, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		refused(named{t, id}, cmd.GetStatus(), want)
		if want != protocol.CodeOK {
			continue
		}
		known := 0
		for _, topic := range topicNames("t", n) {
			known += len(e.s.Parts().Sessions.Publishing(topic))
		}
		if known != n {
			t.Errorf("%d of %d topics are known to be published", known, n)
		}
		if err := st.CloseSend(); err != nil {
			t.Fatal(err)
		}
		_, _ = st.Recv()
	}
}

// The settings of a client with a thousand topics are stored in their encoded form, not ten times
// as large.
func TestSettingsAreKeptSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		in := subscriber(topicNames("t", 1000)...)
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		stay := func(i int) { // the stream ends, the session stays
			st, _ := e.telemetry(as(t.Context(), fmt.Sprint("client-", i)), in)
			if err := st.CloseSend(); err != nil {
				t.Fatal(err)
			}
			_, _ = st.Recv()
		}
		stay(0)
		before := heap()
		for i := range 100 {
			stay(i + 1)
		}
		if n := (heap() - before) >> 10; n > 3<<10 {
			t.Errorf("100 clients of 1000 topics have %d KiB", n)
		}
		runtime.KeepAlive(in)
	})
}
