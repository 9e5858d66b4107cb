package server

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// Settings name topics in namespaces of a length that can be repeated.
func TestSettingsAreBounded(t *testing.T) {
	namespace := subscriber("t")
	namespace.GetSubscription().Subscriptions[0].Topic.ResourceNamespace = strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		in   *rmqpb.Settings
		want string // empty: they are taken
	}{
		"2000 subscribed":  {subscriber(topicNames("t", 2000)...), ""},
		"a long namespace": {namespace, "255"},
	} {
		_, err := profileOf(c.in, "GO")
		if c.want == "" && err != nil || c.want != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// Settings name as many topics as have room in 64 KiB, since an SDK names all that
// it ever used. All that are published are remembered, for checks of transactions.
func TestSettingsOfManyTopics(t *testing.T) {
	e := start(t, Options{})
	for n, want := range map[int]codes.Code{2000: codes.OK, 5500: codes.OK, 10_000: codes.InvalidArgument} {
		id := fmt.Sprint("client-", n)
		st, err := e.Telemetry(as(t.Context(), id))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(producer(topicNames("t", n)...))); err != nil {
			t.Fatal(err)
		}
		cmd, err := st.Recv()
		if status.Code(err) != want || err == nil && tidegate.Code(cmd.GetStatus().GetCode()) != tidegate.CodeOK {
			t.Fatalf("settings of %d topics: %v, %v; want %v", n, cmd.GetStatus(), err, want)
		}
		if want != codes.OK {
			continue
		}
		r := e.s.sessions
		r.mu.Lock()
		if known := len(r.byID[id].topics); known != n {
			t.Errorf("%d of %d topics are known to be published", known, n)
		}
		r.mu.Unlock()
	}
}

// What a client says of a thousand topics is kept as it came, not ten times as large.
func TestSettingsAreKeptSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Options{})
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

// All that is kept of settings has a limit, which a client comes back from; what
// a client says anew, and what is gone, no longer counts.
func TestSettingsOfAllAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Options{})
		r := e.s.sessions
		say := func(id string, s *rmqpb.Settings) *rmqpb.TelemetryCommand {
			st, err := e.Telemetry(as(t.Context(), id))
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Send(command(s)); err != nil {
				t.Fatal(err)
			}
			cmd, err := st.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if err := st.CloseSend(); err != nil {
				t.Fatal(err)
			}
			_, _ = st.Recv()
			return cmd
		}
		one := producer(topicNames("t", 10)...)
		refused(t, say("a", one).GetStatus(), tidegate.CodeOK)
		r.mu.Lock()
		r.keptMost = 2*r.kept + 100
		r.mu.Unlock()
		for range 5 {
			refused(t, say("b", one).GetStatus(), tidegate.CodeOK) // in place of what it said before
		}
		refused(t, say("c", one).GetStatus(), tidegate.CodeTooManyRequests, "530 TOO_MANY_REQUESTS", "limit")
		refused(t, say("a", producer()).GetStatus(), tidegate.CodeOK) // less than before
		refused(t, say("c", one).GetStatus(), tidegate.CodeOK)
		if _, err := e.NotifyClientTermination(as(t.Context(), "b"), &rmqpb.NotifyClientTerminationRequest{}); err != nil {
			t.Fatal(err)
		}
		refused(t, say("d", one).GetStatus(), tidegate.CodeOK)
		time.Sleep(sessionTimeout + sweepInterval)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kept != 0 || len(r.byID) != 0 || len(r.publishers) != 0 {
			t.Errorf("%d bytes of %d clients and %d topics are kept when all are gone", r.kept, len(r.byID), len(r.publishers))
		}
	})
}

// What is remembered of clients is bounded, and the refusal is one that a
// client comes back from.
func TestSessionsAreBounded(t *testing.T) {
	r := newSessions(func(string) {})
	defer r.close()
	ensure := func(id string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, err := r.ensureLocked(id)
		return err
	}
	for i := range maxSessions {
		if err := ensure(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := ensure("one more")
	if refusal.CodeOf(err) != tidegate.CodeTooManyRequests || !strings.Contains(err.Error(), "100000") {
		t.Errorf("%v; want 42900 with the limit", err)
	}
	if err := ensure("0"); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	r.terminate("0")
	if err := ensure("one more"); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
