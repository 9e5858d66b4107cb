package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

func laneOf(t *testing.T, c *rocketmq.Client, r transport.LaneRequest) transport.Lane {
	t.Helper()
	return assert.Value(c.Lane(t.Context(), r))(t)
}

func several(n int) []*tidegate.Message {
	var msgs []*tidegate.Message
	for i := range n {
		msgs = append(msgs, message(fmt.Sprint(i)))
	}
	return msgs
}

// sizes returns the number of messages of each send that the server received.
func (s *fakeServer) sizes() (list []int) {
	for _, g := range s.of("SendMessage") {
		list = append(list, len(g.req.(*rmqpb.SendMessageRequest).GetMessages()))
	}
	return list
}

func TestLane(t *testing.T) {
	for _, tt := range []struct {
		features string
		most     int
		can      transport.Capabilities
	}{{"", 1, transport.Capabilities{}}, {"pushback,Batch", 1000, transport.Capabilities{PushBack: true, Batch: true}}} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.features = tt.features
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			want := (transport.Lane{Endpoint: testAddr, MaxMessages: tt.most, MaxBytes: 16 << 20})
			assert.That(t, lane == want, "%q: %+v, want %+v", tt.features, lane, want)
			msgs := several(min(10, tt.most))
			for i, r := range c.SendLane(t.Context(), lane, msgs) {
				want := (tidegate.Receipt{MessageID: msgs[i].ID, Topic: "t", Queue: -1, Offset: int64(40 + i), Endpoint: testAddr})
				assert.That(t, r.Err == nil && r.Receipt == want, "%q: message %d: %+v, want %+v", tt.features, i, r, want)
			}
			if got := s.sizes(); !slices.Equal(got, []int{len(msgs)}) {
				t.Errorf("%q: requests of %v messages", tt.features, got)
			}
			got := c.Capabilities(testAddr)
			assert.That(t, got == tt.can, "%q: capabilities %+v", tt.features, got)
			got = c.Capabilities("unknown:1")
			assert.That(t, got == (transport.Capabilities{}), "capabilities %+v of a server that is not known", got)
		})
	}
}

// Lanes take servers in turn, avoid the requested servers if there are others, and keep a message
// group on its server.
func TestLaneAvoids(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		newServer(t, s.net, otherAddr)
		s.route = routed(append(queues(testAddr, "a", 2), queues(otherAddr, "b", 2)...))
		count := func(r transport.LaneRequest) map[string]int {
			r.Topic = "t"
			m := map[string]int{}
			for range 10 {
				m[laneOf(t, c, r).Endpoint]++
			}
			return m
		}
		got := count(transport.LaneRequest{})
		assert.That(t, got[testAddr] == 5 && got[otherAddr] == 5, "in turn: %v", got)
		assert.Equal(t, "one avoided", count(transport.LaneRequest{Avoid: []string{testAddr}})[otherAddr], 10)
		got = count(transport.LaneRequest{Avoid: []string{testAddr, otherAddr}})
		assert.That(t, got[testAddr]+got[otherAddr] == 10, "both avoided: %v", got)
		home := laneOf(t, c, transport.LaneRequest{Topic: "t", MessageGroup: "g"}).Endpoint
		got = count(transport.LaneRequest{MessageGroup: "g", Avoid: []string{home}})
		assert.That(t, got[home] == 10, "a message group left %s: %v", home, got)
		// A route that leads the group elsewhere changes its lane.
		other := map[string]string{testAddr: otherAddr, otherAddr: testAddr}[home]
		for _, r := range c.SendLane(t.Context(), transport.Lane{Endpoint: other}, []*tidegate.Message{message("1"), inGroup("2", "g")}) {
			e, isErr := errors.AsType[*tidegate.Error](r.Err)
			assert.That(t, isErr && errors.Is(e, transport.ErrLaneChanged) && !e.MaybeStored, "%v, want ErrLaneChanged", r.Err)
		}
		err := c.SendLane(t.Context(), transport.Lane{Endpoint: "gone:1"}, several(1))[0].Err
		assert.That(t, errors.Is(err, transport.ErrLaneChanged), "a server that the route does not name: %v", err)
		assert.Equal(t, "something was sent", len(s.of("SendMessage")), 0)
	})
}

// A server with features is replaced, at the same address, by one without between
// planning and writing. It never receives several messages in one request.
func TestBatchNeverReachesAPlainServer(t *testing.T) {
	setup := func(t *testing.T) (c *rocketmq.Client, ours, plain *fakeServer) {
		n := newNetwork()
		ours = newServer(t, n, testAddr)
		ours.features = "batch"
		c = newClient(t, n, nil)
		sent(t, c, message("first"))
		ours.stop()
		plain = newServer(t, n, testAddr)
		synctest.Wait()
		return c, ours, plain
	}
	check := func(t *testing.T, plain *fakeServer, want int) {
		t.Helper()
		got := plain.sizes()
		assert.That(t, len(got) == want && !slices.ContainsFunc(got, func(n int) bool { return n > 1 }),
			"the plain server received requests of %v messages, want %d of 1", got, want)
	}
	assert.Bubble(t, "SendLane", func(t *testing.T) {
		n := newNetwork()
		ours := newServer(t, n, testAddr)
		ours.features = "batch"
		c := newClient(t, n, nil)
		lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
		assert.MustThat(t, lane.MaxMessages == 1000, "%+v", lane)
		ours.stop()
		plain := newServer(t, n, testAddr)
		synctest.Wait()
		for i, r := range c.SendLane(t.Context(), lane, several(5)) {
			if e, isErr := errors.AsType[*tidegate.Error](r.Err); !isErr || !errors.Is(e, transport.ErrLaneChanged) || e.MaybeStored || e.Endpoint != testAddr {
				t.Errorf("message %d: %+v, want ErrLaneChanged", i, r)
			}
		}
		if lane = laneOf(t, c, transport.LaneRequest{Topic: "t"}); lane.MaxMessages != 1 {
			t.Errorf("%+v after the change, want a lane for one message", lane)
		}
		r := c.SendLane(t.Context(), lane, several(1))[0]
		assert.That(t, r.Err == nil, "%v", r.Err)
		check(t, plain, 1)
		assert.That(t, !c.Capabilities("").Batch, "the plain server announces batches")
	})
	assert.Bubble(t, "Send", func(t *testing.T) {
		c, _, plain := setup(t)
		for i, r := range c.Send(t.Context(), several(20)) {
			assert.That(t, r.Err == nil && r.Receipt.MessageID == fmt.Sprint(i), "message %d: %+v", i, r)
		}
		check(t, plain, 20)
	})
	assert.Bubble(t, "while it waits", func(t *testing.T) {
		n := newNetwork()
		ours := newServer(t, n, testAddr)
		ours.features = "batch"
		c := newClient(t, n, nil)
		lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
		ours.stop()
		plain := newServer(t, n, testAddr)
		plain.stop()
		synctest.Wait()
		time.AfterFunc(5*time.Second, plain.start)
		ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), time.Minute)
		defer cancel()
		for i, r := range c.SendLane(ctx, lane, several(5)) {
			assert.That(t, errors.Is(r.Err, transport.ErrLaneChanged), "message %d: %+v, want ErrLaneChanged", i, r)
		}
		check(t, plain, 0)
	})
	assert.Bubble(t, "and back", func(t *testing.T) {
		c, _, plain := setup(t)
		sent(t, c, message("x"))
		plain.stop()
		again := newServer(t, plain.net, testAddr)
		again.features = "batch"
		synctest.Wait()
		for _, r := range c.Send(t.Context(), several(20)) {
			assert.NoError(t, r.Err)
		}
		for _, r := range c.Send(t.Context(), several(20)) {
			assert.NoError(t, r.Err)
		}
		got := again.sizes()
		assert.That(t, got[len(got)-1] == 20, "requests of %v messages, want the last of 20", got)
	})
}

// pair starts two servers of one topic and a client.
func pair(t *testing.T) (c *rocketmq.Client, a, b *fakeServer) {
	n := newNetwork()
	a, b = newServer(t, n, testAddr), newServer(t, n, otherAddr)
	a.route = routed(append(queues(testAddr, "a", 4), queues(otherAddr, "b", 4)...))
	return newClient(t, n, nil), a, b
}

// A server that accepts sends and never responds is excluded after one failure. One
// probe of one message at a time finds out, also if the server takes many in a request, and no
// response to other requests admits it again.
//
// RocketMQ: sending retry and throttling: "Can messages be sent if some nodes are faulty?"
func TestBlackHoleIsProbedByOneSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, well, hole := pair(t)
		well.features, hole.features = "batch", "batch"
		const normal = 10 * time.Millisecond
		well.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			time.Sleep(normal)
			return sentAll(r), nil
		}
		var dead atomic.Bool
		var now, most atomic.Int64
		var mu sync.Mutex
		lanes := map[string]int{} // the most messages of each server's lanes
		hole.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			if !dead.Load() {
				return sentAll(r), nil
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return silent(ctx, r)
		}
		send := func() (tidegate.Receipt, error) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, tidegate.ErrUnavailable)
			defer cancel()
			lane, err := c.Lane(ctx, transport.LaneRequest{Topic: "t"})
			if err != nil {
				return tidegate.Receipt{}, err
			}
			mu.Lock()
			lanes[lane.Endpoint] = max(lanes[lane.Endpoint], lane.MaxMessages)
			mu.Unlock()
			r := c.SendLane(ctx, lane, several(1))[0]
			return r.Receipt, r.Err
		}
		for range 10 {
			assert.Must(t, assert.Err(send()))
		}
		dead.Store(true)
		for failed := 0; failed == 0; {
			if _, err := send(); err != nil {
				failed++
			}
		}
		most.Store(0)
		clear(lanes)
		// Ten senders for a minute, while the server still responds to a consumer.
		begin := time.Now()
		var sent, failed, changed atomic.Int64
		var wg sync.WaitGroup
		var took []time.Duration
		for range 10 {
			wg.Go(func() {
				for time.Since(begin) < time.Minute {
					start := time.Now()
					switch _, err := send(); {
					case err == nil:
						sent.Add(1)
						mu.Lock()
						took = append(took, time.Since(start))
						mu.Unlock()
					case errors.Is(err, transport.ErrLaneChanged):
						changed.Add(1)
					default:
						failed.Add(1)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Go(func() {
			for time.Since(begin) < time.Minute {
				assert.NoError(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
				time.Sleep(100 * time.Millisecond)
			}
		})
		wg.Wait()
		// A probe each 5 s takes a second of patience.
		if failed.Load() < 8 || failed.Load() > 12 || most.Load() != 1 || sent.Load() < 5_000 {
			t.Errorf("%d sends failed, %d at once, %d changed, %d succeeded; want one probe at a time", failed.Load(), most.Load(), changed.Load(), sent.Load())
		}
		assert.That(t, lanes[testAddr] == 1000 && lanes[otherAddr] == 1,
			"lanes for %v messages, want 1000 at %s and 1 at the failed %s", lanes, testAddr, otherAddr)
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		assert.That(t, p99 <= 2*normal, "the p99 of the sends that succeeded is %v, want at most twice %v", p99, normal)
		dead.Store(false)
		time.Sleep(conn.ExcludeFor + conn.ProbeGap)
		got := map[string]int{}
		for range 101 { // the first probes
			r := assert.Value(send())(t)
			got[r.Endpoint]++
		}
		assert.That(t, got[testAddr] >= 45 && got[otherAddr] >= 45, "after the probe: %v, want both in turn", got)
	})
}

// A lane to a server that failed meanwhile leads elsewhere, if there is another
// server; a message group stays.
func TestLaneToAFailedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, b := pair(t)
		lanes := map[string]transport.Lane{}
		for len(lanes) < 2 {
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			lanes[lane.Endpoint] = lane
		}
		b.stop()
		synctest.Wait()
		send := func(lane transport.Lane, m *tidegate.Message) error {
			return c.SendLane(t.Context(), lane, []*tidegate.Message{m})[0].Err
		}
		if err := send(lanes[otherAddr], message("1")); !errors.Is(err, tidegate.ErrUnavailable) {
			t.Fatal(err)
		}
		assert.Is(t, "err", send(lanes[otherAddr], message("2")), transport.ErrLaneChanged)
		var group string // of the server that failed
		for i := 0; group == ""; i++ {
			if g := fmt.Sprint("g", i); laneOf(t, c, transport.LaneRequest{Topic: "t", MessageGroup: g}).Endpoint == otherAddr {
				group = g
			}
		}
		b.start()
		_, err := sendOne(awaiting(t, time.Minute), c, inGroup("3", group))
		assert.That(t, err == nil, "a message group of the server that is back: %v", err)
		for range 10 {
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			assert.That(t, lane.Endpoint == testAddr, "%+v so soon after a failure", lane)
		}
		// If both servers fail, the client uses the one that failed last.
		a.stop()
		synctest.Wait()
		assert.Is(t, "err", send(lanes[testAddr], message("4")), tidegate.ErrUnavailable)
		assert.Is(t, "of the last server", send(lanes[testAddr], message("5")), tidegate.ErrUnavailable)
	})
}

// A message group stays in its queue after any failure that another attempt may cure, although
// other messages avoid the server: a message in another queue could overtake its predecessors.
//
// A message group waits for the server of its queue.
func TestGroupKeepsItsQueueAfterAFailure(t *testing.T) {
	type sending = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error)
	refuse := func(code rmqpb.Code) sending {
		return func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: code}}, nil
		}
	}
	broken := func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		return nil, status.Error(codes.Unavailable, "broken")
	}
	silent := func(ctx context.Context, _ *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, failing := range map[string]sending{
		"50001": refuse(rmqpb.Code_INTERNAL_SERVER_ERROR), "50400": refuse(rmqpb.Code_PROXY_TIMEOUT),
		"42900": refuse(rmqpb.Code_TOO_MANY_REQUESTS), "40402": refuse(rmqpb.Code_TOPIC_NOT_FOUND),
		"connection lost": broken, "no response": silent,
	} {
		for _, byLane := range []bool{false, true} {
			assert.Bubble(t, fmt.Sprint(name, ", by lane: ", byLane), func(t *testing.T) {
				n := newNetwork()
				a, b := newServer(t, n, testAddr), newServer(t, n, otherAddr)
				a.route = routed(append(queues(testAddr, "a", 4), queues(otherAddr, "b", 4)...))
				c := newClient(t, n, nil)
				send := func(group string, avoid []string) (endpoint string, err error) {
					m := inGroup(tidegate.NewMessageID(), group)
					if !byLane {
						r := c.Send(t.Context(), []*tidegate.Message{m})[0]
						return r.Receipt.Endpoint, r.Err
					}
					lane, err := c.Lane(t.Context(), transport.LaneRequest{Topic: m.Topic, MessageGroup: group, Avoid: avoid})
					if err != nil {
						return "", err
					}
					return lane.Endpoint, c.SendLane(t.Context(), lane, []*tidegate.Message{m})[0].Err
				}
				for g := range 8 {
					group := fmt.Sprint("group", g)
					home := assert.Value(send(group, nil))(t)
					s := map[string]*fakeServer{testAddr: a, otherAddr: b}[home]
					synctest.Wait() // the handlers of earlier requests have ended
					good := s.send
					s.send = failing
					for range 3 {
						assert.MustThat(t, assert.Err(send(group, []string{home})) != nil, "the send did not fail")
					}
					synctest.Wait()
					s.send = good
					at, err := send(group, []string{home})
					assert.That(t, err == nil && at == home, "%s: sent to %s, %v; want %s as before", group, at, err, home)
					used := map[string]bool{}
					for _, s := range []*fakeServer{a, b} {
						for _, call := range s.of("SendMessage") {
							x := call.req.(*rmqpb.SendMessageRequest).GetMessages()[0].GetSystemProperties()
							if x.GetMessageGroup() == group {
								used[fmt.Sprint(s.addr, "/", x.GetQueueId())] = true
							}
						}
					}
					assert.That(t, len(used) == 1, "%s: sent to the queues %v, want one", group, used)
					time.Sleep(time.Minute) // the route is queried again, and the server serves others again
				}
			})
		}
	}
}

// topicsOf returns the topics of a request, each once, in order.
func topicsOf(r *rmqpb.SendMessageRequest) (list []string) {
	for _, m := range r.GetMessages() {
		list = append(list, m.GetTopic().GetName())
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// sendToEach sends a message to each topic in one call, from a client that knows the server and the
// topics, and returns the errors.
func sendToEach(t *testing.T, c *rocketmq.Client, topics ...string) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var lane transport.Lane
	var msgs []*tidegate.Message
	for _, topic := range topics {
		lane = laneOf(t, c, transport.LaneRequest{Topic: topic})
		msgs = append(msgs, &tidegate.Message{ID: "id-" + topic, Topic: topic, Body: []byte("x")})
	}
	assert.That(t, lane.Topics, "lane %+v, want one of several topics", lane)
	errs := make([]error, len(topics))
	for i, r := range c.SendLane(ctx, lane, msgs) {
		if errs[i] = r.Err; r.Err == nil && (r.Receipt.MessageID != msgs[i].ID || r.Receipt.Topic != topics[i]) {
			t.Errorf("%s has the receipt %+v", topics[i], r.Receipt)
		}
	}
	return errs
}

func topicNames(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("t", i))
	}
	return list
}

// topicsServer starts a server that announces that topics share requests.
func topicsServer(t *testing.T) (*network, *fakeServer) {
	n := newNetwork()
	s := newServer(t, n, testAddr)
	s.features = "batch, topics"
	return n, s
}

// Topics share requests if the server announces that and is their only one. A RocketMQ never gets
// such a request.
func TestTopicsShareRequests(t *testing.T) {
	for features, want := range map[string]bool{"batch, topics": true, "batch": false, "": false} {
		synctest.Test(t, func(t *testing.T) {
			n, s := topicsServer(t)
			s.features = features
			c := newClient(t, n, nil)
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t0"})
			assert.That(t, lane.Topics == want, "features %q: lane %+v", features, lane)
			msgs := []*tidegate.Message{{ID: "0", Topic: "t0"}, {ID: "1", Topic: "t0"}, {ID: "2", Topic: "t1"}}
			laneOf(t, c, transport.LaneRequest{Topic: "t1"})
			for _, r := range c.SendLane(t.Context(), transport.Lane{Endpoint: testAddr, MaxMessages: 3, Topics: true}, msgs) {
				changed := errors.Is(r.Err, transport.ErrLaneChanged)
				assert.That(t, changed != want && (r.Err == nil || changed), "features %q: %+v", features, r)
			}
			calls := s.of("SendMessage")
			assert.MustThat(t, want == (len(calls) == 1), "features %q: %d requests", features, len(calls))
			for _, c := range calls {
				if got := topicsOf(c.req.(*rmqpb.SendMessageRequest)); len(got) != 2 || !slices.Contains(c.md.Get(wire.HeaderFeatures), wire.FeatureTopics) {
					t.Errorf("a request of the topics %v has the features %q", got, c.md.Get(wire.HeaderFeatures))
				}
			}
			s.route = routed(append(queues(testAddr, "a", 1), queues(otherAddr, "b", 1)...))
			for range 2 {
				lane := laneOf(t, c, transport.LaneRequest{Topic: "two servers"})
				assert.That(t, !lane.Topics, "features %q: a topic with two servers has the lane %+v", features, lane)
			}
			alone := []*tidegate.Message{{ID: "3", Topic: "two servers"}}
			err := c.SendLane(t.Context(), transport.Lane{Endpoint: testAddr, Topics: true}, alone)[0].Err
			assert.That(t, errors.Is(err, transport.ErrLaneChanged), "a topic that has a second server now: %v", err)
		})
	}
}

// A topic that is throttled in a shared request has its own time to wait.
func TestSharedPushBacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := topicsServer(t)
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			res := sentAll(r)
			waits := ""
			for i, m := range r.GetMessages() {
				wait := "0"
				if name := m.GetTopic().GetName(); name == "t5" || name == "t6" {
					res.Status = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS}
					res.Entries[i].Status = &rmqpb.Status{Code: rmqpb.Code_TOO_MANY_REQUESTS}
					wait = map[string]string{"t5": "500", "t6": "700"}[name]
				}
				waits += map[bool]string{true: "", false: ","}[i == 0] + wait
			}
			grpc.SetTrailer(ctx, metadata.Pairs("x-tidegate-pushback-topics", waits))
			return res, nil
		}
		for i, err := range sendToEach(t, newClient(t, n, nil), topicNames(10)...) {
			want := map[int]time.Duration{5: 500 * time.Millisecond, 6: 700 * time.Millisecond}[i]
			got := tidegate.RetryAfter(err)
			assert.That(t, got == want && (err != nil) == (want > 0), "t%d: %v, wait %v; want %v", i, err, got, want)
		}
	})
}

// A topic without permission, which fails a whole request, does not fail the others. Neither does a
// topic that does not accept the message's type, or one whose route is unknown.
func TestOneTopicFailsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := topicsServer(t)
		s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			if slices.Contains(topicsOf(r), "secret") {
				return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_FORBIDDEN}}, nil
			}
			return sentAll(r), nil
		}
		c := newClient(t, n, nil)
		topics := append(topicNames(100), "secret", "fifo")
		for _, topic := range topics {
			if topic == "fifo" {
				s.route = func() *rmqpb.QueryRouteResponse {
					qs := queues(testAddr, "broker-a", 1)
					qs[0].AcceptMessageTypes = []rmqpb.MessageType{rmqpb.MessageType_FIFO}
					return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: qs}
				}
			}
			laneOf(t, c, transport.LaneRequest{Topic: topic})
		}
		topics = append(topics, "unknown")
		var msgs []*tidegate.Message
		for _, topic := range topics {
			msgs = append(msgs, &tidegate.Message{ID: "id-" + topic, Topic: topic, Body: []byte("x")})
		}
		for i, r := range c.SendLane(t.Context(), transport.Lane{Endpoint: testAddr, MaxMessages: 1000, Topics: true}, msgs) {
			e, _ := errors.AsType[*tidegate.Error](r.Err)
			switch want := map[string]tidegate.Code{"secret": tidegate.CodeForbidden, "fifo": protocol.CodeMessagePropertyConflict}[topics[i]]; {
			case topics[i] == "unknown":
				assert.Is(t, "a topic without a route", r.Err, transport.ErrLaneChanged)
			case want != 0 && (e == nil || e.Code != want || e.Subject != topics[i]):
				t.Errorf("%s: %v", topics[i], r.Err)
			case want == 0 && (r.Err != nil || r.Receipt.Topic != topics[i]):
				t.Errorf("%s: %+v", topics[i], r)
			}
		}
		if n := len(s.of("SendMessage")); n > 20 {
			t.Errorf("%d requests to find the topic that fails", n)
		}
	})
}
