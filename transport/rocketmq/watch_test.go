package rocketmq_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A watched is a server that leaves watches, with a client of it.
type watched struct {
	*fakeServer
	t *testing.T
	c *rocketmq.Client

	mu     sync.Mutex
	stream rmqpb.MessagingService_TelemetryServer // the last one of the consumers
	cut    chan struct{}                          // ends it once closed
}

// newWatched returns a server without messages. It must run in a bubble.
func newWatched(t *testing.T, change func(*rocketmq.Options)) *watched {
	n := newNetwork()
	w := &watched{fakeServer: newServer(t, n, testAddr), t: t}
	w.features = "watch, repeat"
	w.receive = w.leave
	w.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
		cut := make(chan struct{})
		w.mu.Lock()
		w.stream, w.cut = st, cut
		w.mu.Unlock()
		go w.answerSettings(st)
		select {
		case <-cut:
		case <-st.Context().Done():
		}
		return nil
	}
	w.c = newClient(t, n, change)
	return w
}

// leave is a receive that finds nothing and leaves a watch if the client requests it.
func (w *watched) leave(r *rmqpb.ReceiveMessageRequest, st receiveStream) error {
	md, _ := metadata.FromIncomingContext(st.Context())
	if slices.Contains(announced(md), "watch") {
		st.SetTrailer(metadata.Pairs(wire.TrailerWatched, "true"))
	}
	return empty(r, st)
}

// announced returns the features that a request announces.
func announced(md metadata.MD) []string {
	return strings.Split(strings.Join(md.Get(wire.HeaderFeatures), ", "), ", ")
}

// report reports a queue in the last stream.
func (w *watched) report(topic string, queue int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.NoError(w.t, w.stream.Send(wire.ReadyCommand([]wire.Queue{{Topic: topic, Queue: queue}})))
}

func (w *watched) endStream() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.cut)
}

// watchOf leaves a watch that is not ready.
func (w *watched) watchOf(ctx context.Context, r transport.ReceiveRequest) <-chan struct{} {
	w.t.Helper()
	start := time.Now()
	ds, ready, err := w.c.ReceiveOrWatch(ctx, r)
	assert.MustThat(w.t, err == nil && len(ds) == 0 && ready != nil && time.Since(start) <= 0,
		"%d deliveries, %v, a watch: %v, after %v; want a watch at once", len(ds), err, ready != nil, time.Since(start))
	w.expect(ready, false, "the receive")
	return ready
}

func (w *watched) expect(ready <-chan struct{}, want bool, after string) {
	w.t.Helper()
	synctest.Wait()
	select {
	case <-ready:
		assert.That(w.t, want, "after %s the watch is ready", after)
	default:
		assert.That(w.t, !want, "after %s the watch is not ready", after)
	}
}

func of(topic string) transport.ReceiveRequest {
	r := request1
	r.Topic, r.AttemptID = topic, ""
	return r
}

// A watch is ready after each event that another receive has to follow, and after no other.
func TestWatchIsReady(t *testing.T) {
	for name, tt := range map[string]struct {
		event func(*watched)
		want  bool
		wait  time.Duration
	}{
		"report":               {func(w *watched) { w.report("t", transport.AnyQueue) }, true, 0},
		"two reports":          {func(w *watched) { w.report("t", -1); w.report("t", -1) }, true, 0},
		"another topic":        {func(w *watched) { w.report("u", transport.AnyQueue) }, false, 0},
		"another queue":        {func(w *watched) { w.report("t", 0) }, false, 0},
		"the stream ends":      {func(w *watched) { w.endStream() }, true, 0},
		"the server ends":      {func(w *watched) { w.stop() }, true, 0},
		"the client is closed": {func(w *watched) { w.c.Close() }, true, 0},
		"nothing, for an hour": {func(*watched) {}, false, time.Hour},
		"other servers": {func(w *watched) {
			w.net.mu.Lock()
			w.net.ports[otherAddr] = w.net.ports[testAddr]
			w.net.mu.Unlock()
			w.route = routed(queues(otherAddr, "broker-a", 1))
			if _, err := w.c.Queues(w.t.Context(), "g", "t"); err != nil { // the topic is in use
				w.t.Error(err)
			}
		}, true, time.Minute},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			w := newWatched(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ready := w.watchOf(ctx, of("t"))
			second := w.watchOf(ctx, of("t")) // of another consumer of the group
			tt.event(w)
			time.Sleep(tt.wait)
			w.expect(ready, tt.want, name)
			w.expect(second, tt.want, name)
			time.Sleep(time.Hour)
			n := w.openSessions()
			assert.That(t, (n > 0) != tt.want, "after an hour %d sessions are open; only a watch keeps one", n)
		})
	}
}

// The server can report a message, or the stream can end, before the response to the receive
// arrives. A later report of the same watch is ignored.
func TestReportBeforeTheResponse(t *testing.T) {
	for name, event := range map[string]func(*watched){
		"report":          func(w *watched) { w.report("t", transport.AnyQueue) },
		"the stream ends": func(w *watched) { w.endStream() },
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			w := newWatched(t, nil)
			early := false
			w.receive = func(r *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				if early {
					event(w)
					time.Sleep(100 * time.Millisecond)
				}
				return w.leave(r, st)
			}
			w.watchOf(t.Context(), of("t"))
			early = true
			ds, ready, err := w.c.ReceiveOrWatch(t.Context(), of("t"))
			assert.MustThat(t, err == nil && len(ds) == 0 && ready != nil, "%d deliveries, %v", len(ds), err)
			w.expect(ready, true, name)
			early = false
			time.Sleep(10 * time.Second) // the session is open again
			w.report("t", transport.AnyQueue)
			synctest.Wait()
			w.watchOf(t.Context(), of("t"))
		})
	}
}

// No watch is requested or returned if there is none. Nothing of it stays in the client.
func TestNoWatch(t *testing.T) {
	two := func(w *watched) {
		newServer(w.t, w.net, otherAddr)
		w.route = routed(append(queues(testAddr, "a", 1), queues(otherAddr, "b", 1)...))
	}
	for name, tt := range map[string]struct {
		change func(*watched)
		asks   bool
		fails  bool
	}{
		"the server does not know watches":   {change: func(w *watched) { w.features = "repeat" }},
		"no trailer":                         {func(w *watched) { w.receive = empty }, true, false},
		"the receive fails after the frames": {func(w *watched) { w.receive = broken }, true, true},
		"any queue of two servers":           {change: two},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			w := newWatched(t, nil)
			tt.change(w)
			ds, ready, err := w.c.ReceiveOrWatch(t.Context(), of("t"))
			assert.That(t, len(ds) == 0 && ready == nil && (err != nil) == tt.fails,
				"%d deliveries, a watch: %v, %v", len(ds), ready != nil, err)
			calls := w.of("receive")
			assert.That(t, len(calls) == 1 && slices.Contains(announced(calls[0].md), "watch") == tt.asks,
				"requests %+v, want one that asks for a watch: %v", calls, tt.asks)
			assert.That(t, len(calls) != 1 || calls[0].req.(*rmqpb.ReceiveMessageRequest).GetLongPollingTimeout().AsDuration() == 0,
				"the receive waits on the server")
			time.Sleep(time.Hour)
			assert.Equal(t, "sessions are open after an hour: a watch is left", w.openSessions(), 0)
		})
	}
}

func broken(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
	st.SetTrailer(metadata.Pairs(wire.TrailerWatched, "true"))
	sendStatus(st, rmqpb.Code_INTERNAL_SERVER_ERROR)
	return nil
}

// The watch of a queue of one of two servers is that of the queue.
func TestWatchOfAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, nil)
		other := newServer(t, w.net, otherAddr)
		other.receive = empty
		both := append(queues(testAddr, "a", 2), queues(otherAddr, "b", 1)...)
		w.route = func() *rmqpb.QueryRouteResponse { return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: both} }
		w.assign = func() *rmqpb.QueryAssignmentResponse {
			return &rmqpb.QueryAssignmentResponse{Status: ok, Assignments: []*rmqpb.Assignment{{MessageQueue: both[1]}}}
		}
		numbers, err := w.c.Queues(t.Context(), "g", "t")
		if err != nil || len(numbers) != 1 {
			t.Fatal(numbers, err)
		}
		r := of("t")
		r.Queue = numbers[0]
		ready := w.watchOf(t.Context(), r)
		w.report("t", 0)
		w.expect(ready, false, "the report of another queue")
		w.report("t", 1)
		w.expect(ready, true, "the report of the queue")
	})
}

// A receive that returns messages can leave a watch too.
func TestWatchBesideMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, nil)
		w.receive = func(r *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendMessage(st, nil)
			sendStatus(st, rmqpb.Code_OK)
			st.SetTrailer(metadata.Pairs(wire.TrailerWatched, "true"))
			return nil
		}
		ds, ready, err := w.c.ReceiveOrWatch(t.Context(), of("t"))
		assert.MustThat(t, err == nil && len(ds) == 1 && ready != nil, "%d deliveries, %v, a watch: %v", len(ds), err, ready != nil)
		w.report("t", transport.AnyQueue)
		w.expect(ready, true, "the report")
	})
}

// The end of its ctx ends a watch. A session stays as long as it has a watch, and then ends like
// any other unused one.
func TestWatchKeepsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, nil)
		first, endFirst := context.WithCancel(t.Context())
		second, endSecond := context.WithCancel(t.Context())
		defer endSecond()
		a, b := w.watchOf(first, of("t")), w.watchOf(second, of("t"))
		endFirst()
		time.Sleep(3 * time.Hour)
		assert.Equal(t, "sessions", w.openSessions(), 1)
		w.report("t", transport.AnyQueue)
		w.expect(a, false, "the end of its ctx")
		w.expect(b, true, "the report")
		b = w.watchOf(second, of("t"))
		endSecond()
		time.Sleep(time.Hour)
		w.expect(b, false, "the end of its ctx")
		assert.Equal(t, "sessions are left", w.openSessions(), 0)
	})
}

// A namespace is a part of the topic in requests, not in the reports of a tidegate broker.
func TestWatchInANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, func(o *rocketmq.Options) { o.Namespace = "prod" })
		ready := w.watchOf(t.Context(), of("t"))
		r := w.of("receive")[0].req.(*rmqpb.ReceiveMessageRequest)
		assert.That(t, r.GetMessageQueue().GetTopic().GetResourceNamespace() == "prod", "received from %v", r.GetMessageQueue())
		w.report("t", transport.AnyQueue)
		w.expect(ready, true, "the report")
	})
}

// Only Telemetry streams of consumers announce that the client reads reports. Ordinary receives do
// not ask for a watch.
func TestWatchIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, nil)
		assert.Must(t, assert.Err(w.c.ProducerSettings(t.Context(), "t")))
		w.watchOf(t.Context(), of("t"))
		assert.Must(t, assert.Err(w.c.Receive(t.Context(), of("t"))))
		streams := w.of("Telemetry")
		if len(streams) != 2 || slices.Contains(announced(streams[0].md), "watch") || !slices.Contains(announced(streams[1].md), "watch") {
			t.Errorf("streams %+v, want that of the producer without, and that of the consumer with the feature", streams)
		}
		receives := w.of("receive")
		assert.That(t, len(receives) == 2 && !slices.Contains(announced(receives[1].md), "watch"),
			"receives %+v, want the second without the feature", receives)
	})
}

// An invalid request leaves nothing.
func TestInvalidWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, nil)
		valid, end := context.WithCancel(t.Context())
		defer end()
		w.watchOf(valid, of("t"))
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(errGone)
		r := of("t")
		r.Group = "a group"
		for name, try := range map[string]func() (<-chan struct{}, error){
			"an ended ctx": func() (<-chan struct{}, error) {
				_, ready, err := w.c.ReceiveOrWatch(ended, of("t"))
				return ready, err
			},
			"a bad group": func() (<-chan struct{}, error) {
				_, ready, err := w.c.ReceiveOrWatch(t.Context(), r)
				return ready, err
			},
		} {
			ready, err := try()
			assert.That(t, err != nil && ready == nil, "%s: %v, a watch: %v; want an error", name, err, ready != nil)
		}
		end()
		time.Sleep(time.Hour)
		assert.Equal(t, "sessions are open an hour after the end of the valid watch", w.openSessions(), 0)
	})
}
