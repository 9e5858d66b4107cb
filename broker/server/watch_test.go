package server_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// announcing returns a context of a client that announces features.
func announcing(ctx context.Context, features string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, features)
}

// watch makes a receive that requests a watch. It returns the number of messages, and whether the
// server has left a watch.
func (e *env) watch(ctx context.Context, r *rmqpb.ReceiveMessageRequest) (messages int, left bool) {
	e.t.Helper()
	st, err := e.ReceiveMessage(announcing(ctx, "packed, watch"), r)
	if err != nil {
		e.t.Fatal(err)
	}
	for {
		f, err := st.Recv()
		if err == io.EOF {
			return messages, slices.Equal(st.Trailer().Get("x-tidegate-watched"), []string{"true"})
		}
		if err != nil {
			e.t.Fatal(err)
		}
		if code := f.GetStatus().GetCode(); code != 0 && code != rmqpb.Code_OK && code != rmqpb.Code_MESSAGE_NOT_FOUND {
			e.t.Fatal(f)
		}
		messages += len(f.GetPacked())
	}
}

// mustWatch makes a receive that finds no message and leaves a watch at once.
func (e *env) mustWatch(ctx context.Context, topic string) {
	e.t.Helper()
	began := time.Now()
	if n, left := e.watch(ctx, receiveRequest(topic)); n > 0 || !left || time.Since(began) > 0 {
		e.t.Fatalf("%d messages, left %t, after %v; want a watch at once", n, left, time.Since(began))
	}
}

// watcher opens a Telemetry stream of a client that reads reports. It fails after an hour.
func (e *env) watcher(ctx context.Context, kind rmqpb.ClientType) stream {
	e.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(time.Hour, cancel)
	e.t.Cleanup(func() {
		late.Stop()
		cancel()
	})
	st, _ := e.telemetry(announcing(ctx, "packed, watch"), consumer(kind))
	return st
}

// reported reads the next command besides settings, which has to report queues. A test that deletes
// a group gets new settings beside the reports.
func (e *env) reported(st stream) []wire.Queue {
	e.t.Helper()
	cmd, err := st.Recv()
	for err == nil && cmd.GetSettings() != nil {
		cmd, err = st.Recv()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	queues := wire.ReadyQueues(cmd)
	if len(queues) == 0 {
		e.t.Fatalf("command %v, want a report", cmd)
	}
	slices.SortFunc(queues, func(a, b wire.Queue) int { return int(a.Queue - b.Queue) })
	return queues
}

// wantWatches fails the test unless streams have so many watches.
func (e *env) wantWatches(want int64) {
	e.t.Helper()
	synctest.Wait()
	if n := e.s.Parts().Watches.Count(); n != want {
		e.t.Fatalf("streams have %d watches, want %d", n, want)
	}
}

// A receive of a client that reads reports ends at once and leaves a watch. The next message is
// reported with the topic and the queue that the client has named. Middleware changes nothing.
func TestWatchOverGRPC(t *testing.T) {
	for name, o := range map[string]server.Options{
		"without middleware": {},
		"with middleware": {Intercept: func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			return next(ctx)
		}},
	} {
		for kind, queues := range map[rmqpb.ClientType][]int32{
			rmqpb.ClientType_PUSH_CONSUMER:   {-1, 0},
			rmqpb.ClientType_SIMPLE_CONSUMER: {-1, 1}, // it names a queue and receives from all
		} {
			synctest.Test(t, func(t *testing.T) {
				e := start(named{t, name}, o)
				st := e.watcher(e.ctx(), kind)
				for i, queue := range queues {
					request := receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Id = queue })
					began := time.Now()
					if n, left := e.watch(e.ctx(), request); n != 0 || !left || time.Since(began) > 0 {
						t.Fatalf("%s, queue %d: %d messages, left %t, after %v; want a watch at once", name, queue, n, left, time.Since(began))
					}
					e.wantWatches(1)
					e.send(msg("normal", fmt.Sprint(i, "a")), msg("normal", fmt.Sprint(i, "b"))) // one in each queue
					if got := e.reported(st); !slices.Equal(got, []wire.Queue{{Topic: "normal", Queue: queue}}) {
						t.Errorf("%s, queue %d: %v was reported", name, queue, got)
					}
					e.wantWatches(0)
					if n, left := e.watch(e.ctx(), receiveRequest("normal")); n < 2 || !left {
						t.Errorf("%s, queue %d: %d messages, left %t; want both, and a watch for later ones", name, queue, n, left)
					}
					e.send(msg("normal", fmt.Sprint(i, "c")))
					e.reported(st)
					if n, left := e.watch(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 })); n != 1 || left {
						t.Errorf("%s: a receive of one message has %d, and leaves a watch: %t", name, n, left)
					}
				}
			})
		}
	}
}

// A receive waits as for any client if the client cannot read a report, or the server has reached
// its limit of watches.
func TestNoWatchOverGRPC(t *testing.T) {
	for name, c := range map[string]struct {
		stream  string // features; empty: none is open
		receive string // features
		limit   bool
	}{
		"no stream":                    {"", "packed, watch", false},
		"a stream without the feature": {"packed", "packed, watch", false},
		"a receive without it":         {"packed, watch", "packed", false},
		"the limit":                    {"packed, watch", "packed, watch", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(named{t, name}, server.Options{})
			if c.limit {
				e.s.LimitWatches(0)
			}
			if c.stream != "" {
				e.telemetry(announcing(e.ctx(), c.stream), consumer(rmqpb.ClientType_PUSH_CONSUMER))
			}
			began := time.Now()
			st, err := e.ReceiveMessage(announcing(e.ctx(), c.receive), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) {
				r.LongPollingTimeout = nil
			}))
			fs, err := frames(st, err)
			if err != nil || fs[0].GetStatus().GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND || len(st.Trailer().Get(wire.TrailerWatched)) > 0 {
				t.Errorf("%s: %v, %v, trailer %v", name, fs, err, st.Trailer())
			}
			if d := time.Since(began); d < server.DefaultMinLongPolling {
				t.Errorf("%s: it waited %v, want at least %v", name, d, server.DefaultMinLongPolling)
			}
		})
	}
}

// Each event that ends waiting receives also ends watches. The server asks the client to receive
// again, or ends its stream.
func TestWatchesEnd(t *testing.T) {
	both := map[string]string{"old": "*", "new": "*"}
	all := []wire.Queue{{Topic: "fifo", Queue: -1}, {Topic: "normal", Queue: -1}}
	for name, c := range map[string]struct {
		event func(t *testing.T, e *env, st stream, cancel context.CancelFunc)
		ends  bool // the stream ends
	}{
		"other rules": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			if err := e.s.SetAccess(teams(map[string]string{"old": "normal", "new": "*"})); err != nil {
				t.Fatal(err)
			}
		}, false},
		"other settings of the group": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 7}); err != nil {
				t.Fatal(err)
			}
		}, false},
		"the client terminates": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			r, err := e.NotifyClientTermination(signed(t.Context(), "old"), &rmqpb.NotifyClientTerminationRequest{Group: res("g")})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
		}, false},
		"the group is deleted": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			if err := e.b.DeleteGroup(t.Context(), "g"); err != nil {
				t.Fatal(err)
			}
		}, false},
		"the topics are deleted": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			for _, of := range all {
				if err := e.b.DeleteTopic(t.Context(), of.Topic); err != nil {
					t.Fatal(err)
				}
			}
		}, false},
		"no rules for the client": {func(t *testing.T, e *env, _ stream, _ context.CancelFunc) {
			if err := e.s.SetAccess(teams(map[string]string{"new": "*"})); err != nil {
				t.Fatal(err)
			}
		}, true},
		"the client ends its stream": {func(_ *testing.T, _ *env, st stream, _ context.CancelFunc) { _ = st.CloseSend() }, true},
		"the connection is lost":     {func(_ *testing.T, _ *env, _ stream, cancel context.CancelFunc) { cancel() }, true},
		"the server is shutting down": {func(_ *testing.T, e *env, _ stream, _ context.CancelFunc) {
			go e.s.Shutdown(context.Background())
		}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(named{t, name}, server.Options{Access: teams(both)})
			if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(signed(t.Context(), "old"))
			defer cancel()
			st := e.watcher(ctx, rmqpb.ClientType_PUSH_CONSUMER)
			for _, of := range all {
				e.mustWatch(signed(t.Context(), "old"), of.Topic)
			}
			e.wantWatches(2)
			c.event(t, e, st, cancel)
			e.wantWatches(0)
			if c.ends {
				for {
					if _, err := st.Recv(); err != nil {
						return
					}
				}
			}
			got := map[string]bool{}
			for len(got) < len(all) {
				cmd, err := st.Recv()
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, of := range wire.ReadyQueues(cmd) {
					got[of.Topic] = true
				}
			}
		})
	}
}

// If the rules change while a receive leaves a watch, the client gets a report, because the receive
// may no longer be permitted.
func TestWatchOfAReceiveUnderOldRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		e := start(t, server.Options{Access: teams(map[string]string{"old": "*"})}, f)
		st := e.watcher(signed(t.Context(), "old"), rmqpb.ClientType_PUSH_CONSUMER)
		f.after = func([]*tidegate.Delivery) {
			if err := e.s.SetAccess(teams(map[string]string{"old": "normal"})); err != nil {
				t.Error(err)
			}
			synctest.Wait() // the stream has found no watch to report
		}
		if n, left := e.watch(signed(t.Context(), "old"), receiveRequest("fifo")); n > 0 || left {
			t.Errorf("%d messages, and a watch: %t", n, left)
		}
		if got := e.reported(st); !slices.Equal(got, []wire.Queue{{Topic: "fifo", Queue: -1}}) {
			t.Errorf("%v was reported", got)
		}
		e.wantWatches(0)
	})
}

// Reports of many queues are split: a client reads commands of a limited size.
func TestManyReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		st := e.watcher(e.ctx(), rmqpb.ClientType_SIMPLE_CONSUMER)
		const n = server.MaxReported + 10
		for i := range int32(n) {
			if _, left := e.watch(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Id = i })); !left {
				t.Fatalf("receive %d leaves no watch", i)
			}
		}
		e.wantWatches(n)
		if err := e.b.DeleteGroup(t.Context(), "g"); err != nil {
			t.Fatal(err)
		}
		got := map[int32]bool{}
		for len(got) < n {
			queues := e.reported(st)
			if len(queues) > server.MaxReported {
				t.Fatalf("a command reports %d queues, want at most %d", len(queues), server.MaxReported)
			}
			for _, of := range queues {
				got[of.Queue] = true
			}
		}
		e.wantWatches(0)
	})
}
