package rocketmq_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func message(id string) *tidegate.Message {
	return &tidegate.Message{ID: id, Topic: "t", Body: []byte("body " + id)}
}

func inGroup(id, group string) *tidegate.Message {
	m := message(id)
	m.MessageGroup = group
	return m
}

func sendOne(ctx context.Context, c *rocketmq.Client, m *tidegate.Message) (tidegate.Receipt, *tidegate.Error) {
	r := c.Send(ctx, []*tidegate.Message{m})[0]
	e, _ := errors.AsType[*tidegate.Error](r.Err)
	return r.Receipt, e
}

// sent returns the receipt of a message.
func sent(t *testing.T, c *rocketmq.Client, m *tidegate.Message) tidegate.Receipt {
	t.Helper()
	r := c.Send(t.Context(), []*tidegate.Message{m})[0]
	assert.Must(t, r.Err)
	return r.Receipt
}

func TestSend(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.Compression = 100 })
		m := &tidegate.Message{ID: "id", Topic: "t", Tag: "a", Keys: []string{"k"}, Properties: map[string]string{"p": "v"},
			TraceContext: "00-1", DeliverAt: time.Now().Add(time.Hour), Body: make([]byte, 1000)}
		r := sent(t, c, m)
		// It is in no queue yet, and where else it lies is the server's affair.
		want := (tidegate.Receipt{MessageID: "id", Topic: "t", Queue: -1, Offset: -1, Endpoint: testAddr})
		assert.That(t, r == want, "receipt %+v, want %+v", r, want)
		due := message("due")
		due.DeliverAt = time.Now()
		if r, err := sendOne(t.Context(), c, due); err != nil || r != (tidegate.Receipt{MessageID: "due", Topic: "t", Queue: -1, Offset: 40, Endpoint: testAddr}) {
			t.Errorf("receipt %+v, %v, of a message that is due", r, err)
		}
		pb := s.of("SendMessage")[0].req.(*rmqpb.SendMessageRequest).GetMessages()[0]
		sys := pb.GetSystemProperties()
		if sys.GetMessageType() != rmqpb.MessageType_DELAY || !sys.GetDeliveryTimestamp().AsTime().Equal(m.DeliverAt) ||
			sys.GetTag() != "a" || !slices.Equal(sys.GetKeys(), m.Keys) || sys.GetTraceContext() != "00-1" || sys.GetMessageId() != "id" ||
			!sys.GetBornTimestamp().AsTime().Equal(time.Now()) || sys.GetBornHost() == "" || sys.GetBodyEncoding() != rmqpb.Encoding_GZIP ||
			pb.GetUserProperties()["p"] != "v" || pb.GetTopic().GetName() != "t" {
			t.Errorf("sent %v", pb)
		}
		unzip := assert.Value(gzip.NewReader(bytes.NewReader(pb.GetBody())))(t)
		body, err := io.ReadAll(unzip)
		assert.That(t, err == nil && len(body) == 1000, "body of %d bytes, %v", len(body), err)
		assert.Equal(t, "the caller's message was changed", len(m.Body), 1000)
	})
}

// Messages of a group or lite topic are sent one after the other. After a failure that a retry may
// cure, the later messages of the group or lite topic are not sent; after a permanent failure they
// are.
func TestSendGroupInOrder(t *testing.T) {
	inLite := func(id string) *tidegate.Message {
		m := message(id)
		m.LiteTopic = "lite"
		return m
	}
	for code, wantSent := range map[rmqpb.Code][]string{
		rmqpb.Code_TOO_MANY_REQUESTS:      {"a1", "a2", "b1", "b2"},
		rmqpb.Code_MESSAGE_BODY_TOO_LARGE: {"a1", "a2", "a3", "b1", "b2"},
	} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			var mu sync.Mutex
			var sent []string
			s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				id := r.GetMessages()[0].GetSystemProperties().GetMessageId()
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, id)
				if id == "a2" {
					return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: code}}, nil
				}
				return sentAll(r), nil
			}
			results := c.Send(t.Context(), []*tidegate.Message{
				inLite("a1"), inGroup("b1", "b"), inLite("a2"), inLite("a3"), inGroup("b2", "b")})
			slices.Sort(sent)
			assert.That(t, slices.Equal(sent, wantSent), "%s: sent %v, want %v", code, sent, wantSent)
			held := errors.Is(results[3].Err, tidegate.ErrThrottled)
			assert.That(t, results[2].Err != nil && held == (code == rmqpb.Code_TOO_MANY_REQUESTS) && results[4].Err == nil,
				"%s: results %+v", code, results)
		})
	}
}

// Send divides messages beyond the limit of a request into several requests, one after the other. A
// message group continues in the next request only if all its earlier messages were stored.
func TestLargeSendsAreDivided(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "batch"
		s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			out := sentAll(r)
			for i, m := range r.GetMessages() {
				if m.GetSystemProperties().GetMessageId() == "bad" {
					out.Entries[i].Status = &rmqpb.Status{Code: rmqpb.Code_TOO_MANY_REQUESTS}
					out.Status = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS}
				}
			}
			return out, nil
		}
		if _, err := sendOne(t.Context(), c, message("first")); err != nil { // so that it knows the server
			t.Fatal(err)
		}
		var msgs []*tidegate.Message
		for i := range 2500 {
			msgs = append(msgs, inGroup(fmt.Sprint(i), []string{"a", "b"}[i%2]))
		}
		msgs[10].ID = "bad" // of group a
		results := c.Send(t.Context(), msgs)
		for i, r := range results {
			held := i%2 == 0 && i >= 1000
			if failed := r.Err != nil; failed != (held || i == 10) || failed && !errors.Is(r.Err, tidegate.ErrThrottled) {
				t.Fatalf("message %d: %+v", i, r)
			}
		}
		for i, want := range []int{1, 1000, 750} {
			r, _ := s.of("SendMessage")[i].req.(*rmqpb.SendMessageRequest)
			assert.That(t, len(r.GetMessages()) == want, "request %d has %d messages, want %d", i, len(r.GetMessages()), want)
		}
		before := len(s.of("SendMessage"))
		large := []*tidegate.Message{message("1"), message("2"), message("3"), message("4"), message("5")}
		for i, size := range []int{4, 11, 20, 1, 1} {
			large[i].Body = make([]byte, size<<20)
		}
		for i, r := range c.Send(t.Context(), large) {
			assert.That(t, r.Err == nil, "message %d: %v", i, r.Err)
		}
		for i, want := range []int{2, 1, 2} {
			r, _ := s.of("SendMessage")[before+i].req.(*rmqpb.SendMessageRequest)
			assert.That(t, len(r.GetMessages()) == want, "large request %d has %d messages, want %d", i, len(r.GetMessages()), want)
		}
		before = len(s.of("SendMessage"))
		wide := map[string]string{"p": strings.Repeat("x", 20<<10)} // all is counted, not only bodies
		msgs = msgs[:1000]
		for i := range msgs {
			msgs[i] = message(fmt.Sprint(i))
			msgs[i].Properties = wide
		}
		for i, r := range c.Send(t.Context(), msgs) {
			assert.MustThat(t, r.Err == nil, "wide message %d: %v", i, r.Err)
		}
		wideRequests := s.of("SendMessage")[before:]
		for i, g := range wideRequests {
			n := proto.Size(g.req)
			assert.That(t, n <= 16<<20 && len(wideRequests) == 2, "wide request %d of %d has %d bytes", i, len(wideRequests), n)
		}
	})
}

func TestSendEntries(t *testing.T) {
	st := func(c rmqpb.Code) *rmqpb.Status { return &rmqpb.Status{Code: c, Message: "text"} }
	entry := func(id string, c rmqpb.Code) *rmqpb.SendResultEntry {
		return &rmqpb.SendResultEntry{MessageId: id, Status: st(c)}
	}
	type result struct {
		code  tidegate.Code
		maybe bool
	}
	for name, tt := range map[string]struct {
		res  *rmqpb.SendMessageResponse
		want [2]result
	}{
		"all well": {&rmqpb.SendMessageResponse{Status: ok, Entries: []*rmqpb.SendResultEntry{
			entry("0", rmqpb.Code_OK), entry("1", rmqpb.Code_OK)}}, [2]result{}},
		"OK without entries": {&rmqpb.SendMessageResponse{Status: ok}, [2]result{{50001, true}, {50001, true}}},
		"mixed": {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_MULTIPLE_RESULTS), Entries: []*rmqpb.SendResultEntry{
			entry("0", rmqpb.Code_TOO_MANY_REQUESTS), entry("1", rmqpb.Code_OK)}}, [2]result{{42900, false}, {}}},
		"one entry missing": {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_MULTIPLE_RESULTS), Entries: []*rmqpb.SendResultEntry{
			entry("1", rmqpb.Code_OK)}}, [2]result{{50001, true}, {}}},
		"one entry missing of OK": {&rmqpb.SendMessageResponse{Status: ok, Entries: []*rmqpb.SendResultEntry{
			entry("1", rmqpb.Code_OK)}}, [2]result{{50001, true}, {}}},
		"throttled": {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_TOO_MANY_REQUESTS)}, [2]result{{42900, false}, {42900, false}}},
		"flushed late": {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_MASTER_PERSISTENCE_TIMEOUT), Entries: []*rmqpb.SendResultEntry{
			entry("", rmqpb.Code_MASTER_PERSISTENCE_TIMEOUT), entry("", rmqpb.Code_SLAVE_PERSISTENCE_TIMEOUT)}},
			[2]result{{50401, true}, {50402, true}}},
		"proxy timeout":  {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_PROXY_TIMEOUT)}, [2]result{{50400, true}, {50400, true}}},
		"no status":      {&rmqpb.SendMessageResponse{}, [2]result{{50001, true}, {50001, true}}},
		"failed behind":  {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_INTERNAL_SERVER_ERROR)}, [2]result{{50001, true}, {50001, true}}},
		"no replica":     {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_HA_NOT_AVAILABLE)}, [2]result{{50002, true}, {50002, true}}},
		"unsupported":    {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_UNSUPPORTED)}, [2]result{{50500, false}, {50500, false}}},
		"multiple, none": {&rmqpb.SendMessageResponse{Status: st(rmqpb.Code_MULTIPLE_RESULTS)}, [2]result{{50001, true}, {50001, true}}},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			s.features = "batch"
			s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				return tt.res, nil
			}
			for i, r := range newClient(t, s.net, nil).Send(t.Context(), []*tidegate.Message{message("0"), message("1")}) {
				var got result
				if e, isErr := errors.AsType[*tidegate.Error](r.Err); isErr {
					got = result{e.Code, e.MaybeStored}
					assert.That(t, e.Op == "SendMessage" && e.Subject == "t" && e.Endpoint == testAddr, "message %d: %v", i, e)
				} else if r.Receipt.MessageID != fmt.Sprint(i) {
					t.Errorf("message %d: receipt %+v", i, r.Receipt)
				}
				if got != tt.want[i] {
					t.Errorf("message %d: %+v, want %+v (%v)", i, got, tt.want[i], r.Err)
				}
			}
		})
	}
}

// A response without an entry stores no message for certain, whatever its status: a single send, a
// half message and a send that shares its request fail like a batch.
func TestSendWithoutEntry(t *testing.T) {
	for _, features := range []string{"", "batch", "batch, topics"} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.features = features
			if _, err := sendOne(t.Context(), c, message("known")); err != nil { // the features are known then
				t.Fatal(err)
			}
			s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				return &rmqpb.SendMessageResponse{Status: ok}, nil
			}
			_, one := sendOne(t.Context(), c, message("m"))
			half := c.SendHalf(t.Context(), message("half"))
			lane := c.SendLane(t.Context(), transport.Lane{Endpoint: testAddr, MaxMessages: 1}, []*tidegate.Message{message("lane")})
			for i, err := range []error{one, half.Err, lane[0].Err} {
				if e, is := errors.AsType[*tidegate.Error](err); !is || e == nil || e.Code != tidegate.CodeInternalServerError || !e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) {
					t.Errorf("features %q, send %d: %v, want a transient error of a message that may be stored", features, i, err)
				}
			}
		})
	}
}

func TestThrottled(t *testing.T) {
	for trailer, want := range map[string]time.Duration{"": 0, "1500": 1500 * time.Millisecond, "-5": -1, "soon": -1} {
		serving(t, func(t *testing.T, s *fakeServer) {
			s.send = func(ctx context.Context, _ *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				if trailer != "" {
					grpc.SetTrailer(ctx, metadata.Pairs(wire.TrailerPushBack, trailer))
				}
				return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_TOO_MANY_REQUESTS, Message: "530 TOO_MANY_REQUESTS: full"}}, nil
			}
			_, err := sendOne(t.Context(), newClient(t, s.net, nil), message("m"))
			if err == nil || !errors.Is(err, tidegate.ErrThrottled) || err.ReplyCode() != 530 || err.RetryAfter != want || err.MaybeStored {
				t.Errorf("trailer %q: %+v, want RetryAfter %v", trailer, err, want)
			}
		})
	}
}

// The errors of a send after a lost response, with a dead server, and with a server that does not
// respond.
func TestSendFailures(t *testing.T) {
	type env struct {
		n *network
		s *fakeServer
		c *rocketmq.Client
	}
	for name, tt := range map[string]struct {
		prepare     func(*env)
		timeout     time.Duration // of the caller; 0: none
		cancelAfter time.Duration // of the caller; 0: never
		after       time.Duration
		maybe       bool
		unavailable bool
		cause       error
	}{
		"answer lost": {prepare: func(e *env) {
			e.s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				go e.s.stop()
				return silent(ctx, r)
			}
		}, maybe: true, unavailable: true},
		"connection refused": {prepare: func(e *env) { e.s.stop() }, unavailable: true},
		"connect black hole": {prepare: func(e *env) {
			e.n.mu.Lock()
			e.n.hang = true
			e.n.mu.Unlock()
			e.s.stop()
		}, after: 3 * time.Second, unavailable: true},
		"server silent": {prepare: func(e *env) { e.s.send = silent }, after: 3 * time.Second, maybe: true, unavailable: true},
		"caller's deadline": {prepare: func(e *env) { e.s.send = silent }, timeout: time.Second, after: time.Second, maybe: true,
			cause: context.DeadlineExceeded},
		"caller's cancel": {prepare: func(e *env) { e.s.send = silent }, cancelAfter: time.Second, after: time.Second, maybe: true,
			cause: errGone},
		"closed": {prepare: func(e *env) {
			e.s.send = silent
			time.AfterFunc(time.Second, func() { e.c.Close() })
		}, after: time.Second, maybe: true, cause: tidegate.ErrClosed},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			n := newNetwork()
			e := &env{n, newServer(t, n, testAddr), newClient(t, n, nil)}
			sent(t, e.c, message("0"))
			tt.prepare(e)
			synctest.Wait() // for the connection to notice
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.cancelAfter > 0 {
				time.AfterFunc(tt.cancelAfter, func() { cancel(errGone) })
			}
			if tt.timeout > 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, tt.timeout)
				defer stop()
			}
			begin := time.Now()
			_, err := sendOne(ctx, e.c, message("1"))
			assert.MustThat(t, err != nil, "sent")
			assert.Equal(t, "took", time.Since(begin), tt.after)
			if err.MaybeStored != tt.maybe || errors.Is(err, tidegate.ErrUnavailable) != tt.unavailable || err.Code != 0 ||
				err.NotConnected != (tt.unavailable && !tt.maybe) {
				t.Errorf("%+v, want MaybeStored %t, unavailable %t", err, tt.maybe, tt.unavailable)
			}
			assert.That(t, tt.cause == nil || errors.Is(err, tt.cause), "%v does not wrap %v", err, tt.cause)
			want := tidegate.ClassTransient
			if tt.cause == tidegate.ErrClosed {
				want = tidegate.ClassCancelled
			}
			assert.Equal(t, "class", tidegate.Classify(err), want)
		})
	}
}

// A send that fails for lack of a route never reports MaybeStored.
func TestNothingIsStoredByAskingForTheRoute(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		s.route = func() *rmqpb.QueryRouteResponse { time.Sleep(10 * time.Second); return nil }
		_, err := sendOne(t.Context(), newClient(t, s.net, nil), message("m"))
		assert.That(t, err != nil && !err.MaybeStored && errors.Is(err, tidegate.ErrUnavailable),
			"%+v, want unavailable and not stored", err)
		time.Sleep(10 * time.Second)
	})
}

var errGone = errors.New("the caller has gone")

func silent(ctx context.Context, _ *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A send ends at the deadline of its ctx. Without a deadline it ends after RequestTimeout.
func TestSendHasItsCallersTime(t *testing.T) {
	for _, tt := range []struct {
		given, answer, ended time.Duration
		ok                   bool
	}{
		{given: 10 * time.Second, answer: 5 * time.Second, ended: 5 * time.Second, ok: true},
		{given: 10 * time.Second, answer: time.Minute, ended: 10 * time.Second},
		{given: time.Second, answer: 5 * time.Second, ended: time.Second},
		{answer: 5 * time.Second, ended: 3 * time.Second},
	} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				if err := backoff.Sleep(ctx, tt.answer); err != nil {
					return nil, err
				}
				return sentAll(r), nil
			}
			ctx := t.Context()
			if tt.given > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.given)
				defer cancel()
			}
			begin := time.Now()
			_, err := sendOne(ctx, c, message("x"))
			took := time.Since(begin)
			assert.That(t, (err == nil) == tt.ok && took == tt.ended, "%+v: %v after %v", tt, err, took)
		})
	}
}

// accepting returns a queue of a topic that takes messages of the types.
func accepting(kinds ...rmqpb.MessageType) *rmqpb.QueryRouteResponse {
	mqs := queues(testAddr, "b", 1)
	mqs[0].AcceptMessageTypes = kinds
	return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: mqs}
}

// A message of a type that the topic does not take is rejected before the wire; its
// neighbours are sent.
func TestWrongTypeIsRejectedBeforeTheWire(t *testing.T) {
	const normal, fifo, delay = rmqpb.MessageType_NORMAL, rmqpb.MessageType_FIFO, rmqpb.MessageType_DELAY
	const priority = rmqpb.MessageType_PRIORITY
	first := message("first")
	first.Priority = 3
	lite := message("lite")
	lite.LiteTopic = "l"
	late := message("late")
	late.DeliverAt = time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC) // an hour ahead in a bubble
	for _, tt := range []struct {
		takes  []rmqpb.MessageType
		msg    *tidegate.Message
		remedy string // empty: it is sent
	}{
		{[]rmqpb.MessageType{normal}, message("m"), ""},
		{[]rmqpb.MessageType{delay}, message("m"), "set DeliverAt"},
		{[]rmqpb.MessageType{fifo}, message("m"), "set MessageGroup"},
		{[]rmqpb.MessageType{normal}, late, "create the topic as DELAY"},
		{[]rmqpb.MessageType{normal}, inGroup("m", "g"), "create the topic as FIFO"},
		{[]rmqpb.MessageType{rmqpb.MessageType_TRANSACTION}, message("m"), "transaction"},
		{[]rmqpb.MessageType{normal}, first, "create the topic as PRIORITY (RocketMQ from 5.4.0 on)"},
		{[]rmqpb.MessageType{normal}, lite, "create the topic as LITE (RocketMQ from 5.5.0 on, with enableLmq and enableMultiDispatch)"},
		{[]rmqpb.MessageType{rmqpb.MessageType_LITE}, lite, ""},
		{[]rmqpb.MessageType{rmqpb.MessageType_LITE}, message("m"), "set LiteTopic"},
		{[]rmqpb.MessageType{priority}, first, ""},
		{[]rmqpb.MessageType{priority}, message("m"), ""},
		{[]rmqpb.MessageType{priority}, late, "create the topic as DELAY"},
		{[]rmqpb.MessageType{normal, fifo, delay, rmqpb.MessageType_TRANSACTION}, late, ""},
		{[]rmqpb.MessageType{rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED}, late, ""},
		{nil, inGroup("m", "g"), ""},
	} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.route = func() *rmqpb.QueryRouteResponse { return accepting(tt.takes...) }
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			for _, r := range []transport.SendResult{c.Send(t.Context(), []*tidegate.Message{tt.msg})[0], c.SendLane(t.Context(), lane, []*tidegate.Message{tt.msg})[0]} {
				e, isErr := errors.AsType[*tidegate.Error](r.Err)
				assert.That(t, isErr == (tt.remedy != ""), "%v takes: %v", tt.takes, r.Err)
				if isErr && (e.Code != protocol.CodeMessagePropertyConflict || e.Endpoint != "" || e.MaybeStored || !strings.Contains(e.Message, tt.remedy) || !strings.Contains(e.Message, wire.TypeOf(tt.msg).String())) {
					t.Errorf("%v takes: %+v, want %q", tt.takes, e, tt.remedy)
				}
			}
			got := len(s.of("SendMessage"))
			assert.That(t, (got == 0) == (tt.remedy != ""), "%v takes: %d requests", tt.takes, got)
		})
	}
}

// A message for a topic of type PRIORITY has that type and its priority, also the lowest one. One
// for a topic that takes other types too has its own type.
func TestPriority(t *testing.T) {
	const normal, priority = rmqpb.MessageType_NORMAL, rmqpb.MessageType_PRIORITY
	for _, tt := range []struct {
		takes    []rmqpb.MessageType
		priority int
		kind     rmqpb.MessageType
		sent     *int32
	}{
		{[]rmqpb.MessageType{priority}, 7, priority, new(int32(7))},
		{[]rmqpb.MessageType{priority}, 0, priority, new(int32(0))},
		{[]rmqpb.MessageType{normal, priority}, 0, normal, nil},
		{[]rmqpb.MessageType{normal, priority}, 1, priority, new(int32(1))},
		{nil, 0, normal, nil},
	} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.route = func() *rmqpb.QueryRouteResponse { return accepting(tt.takes...) }
			m := message("m")
			m.Priority = tt.priority
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
			sys := s.of("SendMessage")[0].req.(*rmqpb.SendMessageRequest).GetMessages()[0].GetSystemProperties()
			if sys.GetMessageType() != tt.kind || (sys.Priority == nil) != (tt.sent == nil) || sys.GetPriority() != int32(tt.priority) {
				t.Errorf("a topic of %v gets %v with the priority %v, want %v with %v", tt.takes, sys.GetMessageType(), sys.Priority, tt.kind, tt.sent)
			}
		})
	}
}

func TestWrongTypeAmongOthers(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "batch"
		kind := rmqpb.MessageType_NORMAL
		s.route = func() *rmqpb.QueryRouteResponse { return accepting(kind) }
		msgs := []*tidegate.Message{message("0"), inGroup("1", "g"), message("2")}
		for i, r := range c.SendLane(t.Context(), laneOf(t, c, transport.LaneRequest{Topic: "t"}), msgs) {
			assert.That(t, (r.Err != nil) == (i == 1) && (i == 1 || r.Receipt.MessageID == msgs[i].ID), "message %d: %+v", i, r)
		}
		// The topic's type changes: the next message of the new type finds out.
		kind = rmqpb.MessageType_FIFO
		time.Sleep(2 * time.Second)
		_, err := sendOne(t.Context(), c, msgs[1])
		assert.That(t, err == nil, "%v after the topic's type has changed", err)
	})
}

// The client requests the route of a topic again if a server denied the topic, or if the topic has
// no queue to write to. It does so before the next attempt that can wait, because attempts at once
// would all fail by one route.
func TestLostRouteIsQueriedBeforeTheNextAttempt(t *testing.T) {
	for name, denied := range map[string]bool{"denied": true, "no queue": false} {
		servedAs(t, name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			var broken atomic.Bool
			s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				if denied && broken.Load() {
					return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_TOPIC_NOT_FOUND}}, nil
				}
				return sentAll(r), nil
			}
			s.route = func() *rmqpb.QueryRouteResponse {
				mqs := queues(testAddr, "b", 1)
				if !denied && broken.Load() {
					mqs[0].Permission = rmqpb.Permission_READ
				}
				return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: mqs}
			}
			broken.Store(true)
			begin := time.Now()
			if _, err := sendOne(t.Context(), c, message("1")); err == nil || time.Since(begin) > 0 {
				t.Fatalf("%v after %v, want a failure at once", err, time.Since(begin))
			}
			routes := len(s.of("QueryRoute"))
			time.AfterFunc(time.Second/2, func() { broken.Store(false) })
			_, err := sendOne(awaiting(t, time.Minute), c, message("1"))
			assert.That(t, err == nil, "the next attempt: %v", err)
			if took := time.Since(begin); took != time.Second || len(s.of("QueryRoute")) != routes+1 {
				t.Errorf("after %v and %d questions more, want one after 1s", took, len(s.of("QueryRoute"))-routes)
			}
			// The wait is part of the attempt, and ends with it.
			broken.Store(true)
			ctx, cancel := context.WithTimeoutCause(transport.AwaitConnection(t.Context()), time.Second/2, errGone)
			defer cancel()
			if !denied {
				time.Sleep(30 * time.Second) // until the refresh of the route
				synctest.Wait()
			}
			sendOne(t.Context(), c, message("2"))
			begin = time.Now()
			if _, err := sendOne(ctx, c, message("2")); !errors.Is(err, errGone) || err.MaybeStored {
				t.Errorf("%+v after %v, want the cause of the attempt's end", err, time.Since(begin))
			}
		})
	}
}
