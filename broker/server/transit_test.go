package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	rpcPath     = "/apache.rocketmq.v2.MessagingService/"
	leastMemory = 64 << 20 // for bodies of 4 MiB
)

// raw connects a client that speaks frame by frame and reads so much of each response.
func (e *env) raw(window uint32) *endtoend.Conn {
	e.t.Helper()
	c := assert.Value(e.lis.Dial())(e.t)
	e.t.Cleanup(func() { c.Close() })
	r := assert.Value(endtoend.New(c, window))(e.t)
	return r
}

// open begins an RPC with these bytes.
func (e *env) open(c *endtoend.Conn, op string, data []byte, end bool) {
	e.t.Helper()
	id := assert.Value(c.Open(rpcPath+op, wire.HeaderClientID, "raw"))(e.t)
	if err := c.Write(id, data, end); err != nil && !errors.Is(err, endtoend.ErrEnded) {
		e.t.Fatal(err)
	}
}

// A filling is holds of many connections, which do not yield.
type filling []*admission.Hold

// Release empties all of them.
func (f filling) Release() {
	for _, h := range f {
		h.Release()
	}
}

// fillUp uses up a budget except for the given bytes.
func fillUp(b *admission.Budget, left int64) (f filling) {
	for free := b.Limit() - b.Held(); free > left && free > 1; free = b.Limit() - b.Held() {
		h := b.Hold(new(int), nil)
		_ = h.Resize(max(min(free/2, free-left), 1), false)
		f = append(f, &h)
	}
	return f
}

// settled waits until nothing is held for requests and responses.
func (e *env) settled() {
	e.t.Helper()
	synctest.Wait()
	assert.Equal(e.t, "bytes are held by no request", e.s.Parts().Bodies.Held(), 0)
	assert.Equal(e.t, "bytes are held by no receive", e.s.Parts().Parked.Held(), 0)
}

// Half-sent requests hold the budget, never more, until their time limit; then their connection
// ends. Others are served meanwhile.
func TestHalfSentRequests(t *testing.T) {
	withServer(t, server.Options{MaxTransitBytes: leastMemory}, func(t *testing.T, e *env) {
		c := e.raw(1 << 16)
		half := endtoend.Message(8<<20, make([]byte, 6<<20))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { e.open(c, "SendMessage", half, false) })
		}
		wg.Wait()
		synctest.Wait()
		held := e.s.Parts().Bodies.Held()
		if held > e.s.Parts().Bodies.Largest() || held < e.s.Parts().Bodies.Largest()/2 {
			t.Errorf("they hold %d bytes of %d", held, e.s.Parts().Bodies.Largest())
		}
		if open := c.Streams(); open == 0 || open > 3 || e.s.Parts().Bodies.Refused() < 17 {
			t.Errorf("%d of 20 wait for more, and %d were refused", open, e.s.Parts().Bodies.Refused())
		}
		e.send(msg("normal", "other"))
		if _, ms := e.receive(e.ctx(), receiveRequest("normal")); len(ms) != 1 {
			t.Errorf("others receive %d messages", len(ms))
		}
		time.Sleep(admission.Pace(8 << 20))
		synctest.Wait()
		select {
		case <-c.Closed():
		default:
			t.Errorf("the connection is open after %v", admission.Pace(8<<20))
		}
		assert.That(t, e.s.Parts().Slow != 0, "it was not counted")
		e.settled()
	})
}

// A small request has a time limit too.
func TestHalfSentSmallRequest(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		c := e.raw(1 << 16)
		e.open(c, "AckMessage", []byte{0, 0}, false)
		time.Sleep(admission.Pace(requests.StreamWindow) - time.Nanosecond)
		synctest.Wait()
		assert.That(t, e.s.Parts().Bodies.Held() != 0, "it holds nothing")
		time.Sleep(time.Nanosecond)
		<-c.Closed()
		e.settled()
	})
}

// A request whose length is too large is rejected before its first byte.
func TestLargeRequestIsNotRead(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for op, size := range map[string]int{"SendMessage": 32<<20 + 1, "AckMessage": 2 << 20, "QueryRoute": 64<<10 + 1, "Telemetry": 64<<10 + 1} {
			c := e.raw(1 << 16)
			e.open(c, op, endtoend.Message(size, nil), false)
			synctest.Wait()
			assert.That(t, c.Streams() == 0, "%s: the server waits for %d bytes", op, size)
		}
		e.settled()
	})
}

// A response that is not read holds memory, and gives the messages and the memory back when its
// time is over.
func TestUnreadReceive(t *testing.T) {
	withServer(t, server.Options{MaxTransitBytes: leastMemory}, func(t *testing.T, e *env) {
		const size = 3 << 20
		for i := range 2 {
			e.send(msg("normal", fmt.Sprint(i), body(make([]byte, size))))
		}
		c := e.raw(0)
		raw := assert.Value(proto.Marshal(receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(time.Hour) })))(t)
		e.open(c, "ReceiveMessage", endtoend.Message(len(raw), raw), true)
		synctest.Wait()
		held := e.s.Parts().Bodies.Held()
		assert.That(t, held >= 2*size && held <= 3*size, "two messages of %d bytes hold %d", size, held)
		time.Sleep(admission.Pace(held))
		<-c.Closed()
		e.settled()
		if _, ms := e.receive(e.ctx(), receiveRequest("normal")); len(ms) != 2 || ms[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
			t.Errorf("afterwards %d messages are received, the first with attempt %d", len(ms), ms[0].GetSystemProperties().GetDeliveryAttempt())
		}
		e.settled()
	})
}

// A receive gets as many messages as there is memory for, and is rejected where there is none; the
// messages stay.
func TestReceiveIsBoundedByMemory(t *testing.T) {
	withServer(t, server.Options{MaxTransitBytes: leastMemory}, func(t *testing.T, e *env) {
		const size = 1 << 20
		for i := range 8 {
			e.send(msg("normal", fmt.Sprint(i), body(make([]byte, size))))
		}
		first := fillUp(e.s.Parts().Bodies, 8*size) // of which one connection gets half
		_, ms := e.receive(e.ctx(), receiveRequest("normal"))
		assert.That(t, len(ms) >= 2 && len(ms) <= 4, "with memory for at most 4 messages it got %d", len(ms))
		second := fillUp(e.s.Parts().Bodies, size/2)
		st, none := e.receive(e.ctx(), receiveRequest("normal"))
		if refused(t, st, tidegate.CodeTooManyRequests, "memory for requests and responses"); len(none) != 0 {
			t.Errorf("it got %d messages", len(none))
		}
		first.Release()
		second.Release()
		for n := len(ms); n < 8; n += len(ms) {
			if _, ms = e.receive(e.ctx(), receiveRequest("normal")); len(ms) == 0 || ms[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
				t.Fatalf("%d of 8 messages are received, and then %v", n, ms)
			}
		}
	})
}

// Receives that wait have a budget of their own, and a connection has half of it.
func TestWaitingReceivesAreBounded(t *testing.T) {
	withServer(t, server.Options{MaxParkedBytes: 2 << 20}, func(t *testing.T, e *env) {
		ctx, cancel := context.WithCancel(e.ctx())
		defer cancel()
		codes := make(chan *rmqpb.Status, 100)
		for range cap(codes) {
			go func() {
				if fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal"))); err == nil {
					codes <- fs[0].GetStatus()
				}
			}()
		}
		synctest.Wait()
		n := len(codes)
		if n < 50 || n > 60 {
			t.Errorf("%d of %d receives were refused", n, cap(codes))
		}
		for range n {
			refused(t, <-codes, tidegate.CodeTooManyRequests, "memory for waiting receives")
		}
		e.send(msg("normal", "m")) // sends have another budget
		cancel()
		e.settled()
	})
}

// Over HTTP a body that finds no memory gets 429 and Retry-After, and its memory is released.
func TestHTTPBodiesAreBounded(t *testing.T) {
	e := start(t, server.Options{MaxTransitBytes: leastMemory})
	ask := func(kind string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/v1/topics/normal/messages", strings.NewReader(`{"body":"`+strings.Repeat("A", 3<<20)+`"}`))
		r.Header.Set("Content-Type", kind)
		w := e.serve(r)
		return w
	}
	for _, kind := range []string{"application/json", "application/octet-stream"} {
		others := fillUp(e.s.Parts().Bodies, 8<<20)
		before := e.s.Parts().Bodies.Held()
		resp := ask(kind)
		if resp.Code != http.StatusTooManyRequests || resp.Header().Get("Retry-After") == "" || !strings.Contains(resp.Body.String(), "memory for requests") {
			t.Errorf("%s: %d, %v: %s", kind, resp.Code, resp.Header(), resp.Body)
		}
		if held := e.s.Parts().Bodies.Held(); held != before {
			t.Errorf("%s: the refused request holds %d bytes", kind, held-before)
		}
		others.Release()
	}
	if resp := ask("application/json"); resp.Code != http.StatusOK || e.s.Parts().Bodies.Held() != 0 {
		t.Errorf("with memory: %d, and %d bytes are held", resp.Code, e.s.Parts().Bodies.Held())
	}
}

// A key without the permission to send to any topic is rejected before the body of its request
// arrives.
func TestObserverSendsNoBody(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	answer, raw := &rmqpb.SendMessageResponse{}, make([]byte, 16<<20)
	n := assert.AllocatedBytes(func() {
		assert.Must(t, e.invokeRaw(signed(t.Context(), "consumer"), "SendMessage", raw, answer))
	})
	refused(t, answer.GetStatus(), tidegate.CodeForbidden, "consumer is not permitted to send to any topic")
	assert.That(t, n <= 8<<20, "it cost %d bytes", n)
}

// A wireCodec sends bytes as they are, in place of a message.
type wireCodec struct{ encoding.CodecV2 }

func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// invokeRaw makes an RPC whose request is raw.
func (e *env) invokeRaw(ctx context.Context, op string, raw []byte, answer proto.Message) error {
	return e.conn.Invoke(ctx, "/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/"+op, raw, answer, grpc.ForceCodecV2(wireCodec{encoding.GetCodecV2("proto")}))
}

// Half a million empty messages have a megabyte on the wire, and fifty when decoded. A client
// without credentials is rejected before they are read or decoded.
func TestManyEmptyMessagesAreNotDecoded(t *testing.T) {
	e := start(t, server.Options{Access: someAccess(), MaxReceiveSize: 1 << 20})
	raw := bytes.Repeat([]byte{0x0a, 0x00}, 500_000)
	for _, c := range []struct {
		who   string
		ctx   context.Context
		code  tidegate.Code
		words []string
	}{
		{"nobody", e.ctx(), tidegate.CodeUnauthorized, []string{"no credentials"}},
		{"a key", signed(t.Context(), "producer"), tidegate.CodeBadRequest, []string{"1000", "messages"}},
	} {
		var answer rmqpb.SendMessageResponse
		n := assert.AllocatedBytes(func() {
			assert.Must(t, e.invokeRaw(c.ctx, "SendMessage", raw, &answer))
		})
		if refused(named{t, c.who}, answer.GetStatus(), c.code, c.words...); n > 8<<20 {
			t.Errorf("the request of %s cost %d bytes", c.who, n)
		}
	}
}

// Requests with invalid headers are rejected before their body arrives.
func TestCredentialsAreCheckedBeforeTheRequest(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	for _, d := range append(rmqpb.MessagingService_ServiceDesc.Streams, grpc.StreamDesc{StreamName: "SendMessage"}) {
		desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true} // so that the client may wait
		s, err := e.conn.NewStream(e.ctx(), desc, "/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/"+d.StreamName)
		assert.Must(t, err)
		answer := &rmqpb.SendMessageResponse{} // the status is the first field of most answers
		assert.Must(t, s.RecvMsg(answer), "%s", d.StreamName)
		refused(named{t, d.StreamName}, answer.GetStatus(), tidegate.CodeUnauthorized)
		for err == nil {
			err = s.RecvMsg(answer)
		}
		if want := map[string]codes.Code{"Telemetry": codes.Unauthenticated}[d.StreamName]; status.Code(err) != want && (want != codes.OK || !errors.Is(err, io.EOF)) {
			t.Errorf("%s ends with %v", d.StreamName, err)
		}
	}
}

// Counts and sizes that no client needs are rejected, with the limit.
func TestRequestsAreBounded(t *testing.T) {
	e := start(t, server.Options{})
	many := func(n int) *rmqpb.SendMessageRequest {
		q := &rmqpb.SendMessageRequest{}
		for i := range n {
			q.Messages = append(q.Messages, msg("normal", fmt.Sprint(i)))
		}
		return q
	}
	acks := func(n int) *rmqpb.AckMessageRequest {
		q := &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal")}
		for range n {
			q.Entries = append(q.Entries, &rmqpb.AckMessageEntry{MessageId: "m", ReceiptHandle: "h"})
		}
		return q
	}
	label := func(name string) testing.TB { return named{t, name} }
	topic := func(n int) *rmqpb.Resource {
		return &rmqpb.Resource{Name: "normal", ResourceNamespace: strings.Repeat("n", n)}
	}
	route := func(namespace, addresses, host int) *rmqpb.QueryRouteRequest {
		q := &rmqpb.QueryRouteRequest{Topic: topic(namespace), Endpoints: &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_DOMAIN_NAME}}
		for range addresses {
			q.Endpoints.Addresses = append(q.Endpoints.Addresses, &rmqpb.Address{Host: strings.Repeat("h", host), Port: 1})
		}
		return q
	}
	receive := func(namespace, attempt int) *rmqpb.ReceiveMessageRequest {
		return receiveRequest("normal", polling(0), func(q *rmqpb.ReceiveMessageRequest) {
			q.MessageQueue.Topic, q.AttemptId = topic(namespace), new(strings.Repeat("a", attempt))
		})
	}
	with := func(f func(*rmqpb.Message)) *rmqpb.SendMessageRequest {
		q := many(2)
		f(q.Messages[1])
		return q
	}
	for _, c := range []struct {
		name  string
		in    proto.Message
		code  tidegate.Code
		words []string
	}{
		{"1000 messages", many(1000), protocol.CodeOK, nil},
		{"1001 messages", many(1001), tidegate.CodeBadRequest, []string{"1000 messages"}},
		{"much beside a body", with(func(m *rmqpb.Message) { m.UserProperties = map[string]string{"k": strings.Repeat("v", 70<<10)} }), protocol.CodeMessagePropertiesTooLarge, []string{"message 2", "65536"}},
		{"a long namespace to send to", with(func(m *rmqpb.Message) { m.Topic = topic(256) }), tidegate.CodeBadRequest, []string{"resource_namespace", "255"}},
		{"1000 entries", acks(1000), tidegate.CodeInvalidReceiptHandle, nil},
		{"1001 entries", acks(1001), tidegate.CodeBadRequest, []string{"1000 entries"}},
		{"an entry of 1 MiB", &rmqpb.AckMessageRequest{Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: strings.Repeat("h", 1<<20)}}}, protocol.CodePayloadTooLarge, []string{"1024000"}},
		{"a route", route(255, 64, 255), protocol.CodeOK, nil},
		{"a route with a long namespace", route(256, 1, 1), tidegate.CodeBadRequest, []string{"resource_namespace", "256", "255"}},
		{"a route with a namespace of 1 MiB", route(1<<20, 1, 1), protocol.CodePayloadTooLarge, []string{"65536"}},
		{"a route with many addresses", route(0, 65, 1), tidegate.CodeIllegalAccessPoint, []string{"64"}},
		{"a route with a long host", route(0, 2, 256), tidegate.CodeIllegalAccessPoint, []string{"255"}},
		{"an assignment with a long namespace", &rmqpb.QueryAssignmentRequest{Topic: topic(256), Group: res("g")}, tidegate.CodeBadRequest, []string{"255"}},
		{"a receive", receive(255, 255), protocol.CodeMessageNotFound, nil},
		{"a receive with a long namespace", receive(256, 0), tidegate.CodeBadRequest, []string{"255"}},
		{"a receive with a long attempt ID", receive(0, 256), tidegate.CodeBadRequest, []string{"attempt ID", "255"}},
		{"a large receive", receive(0, 70<<10), protocol.CodePayloadTooLarge, []string{"65536"}},
		{"a large body", with(func(m *rmqpb.Message) { m.Body = make([]byte, 4<<20) }), protocol.CodeOK, nil}, // the last one: the client of the test takes no delivery of that size
	} {
		st, err := func() (*rmqpb.Status, error) {
			switch q := c.in.(type) {
			case *rmqpb.SendMessageRequest:
				r, err := e.SendMessage(e.ctx(), q)
				return r.GetStatus(), err
			case *rmqpb.AckMessageRequest:
				r, err := e.AckMessage(e.ctx(), q)
				return r.GetStatus(), err
			case *rmqpb.QueryRouteRequest:
				r, err := e.QueryRoute(e.ctx(), q)
				return r.GetStatus(), err
			case *rmqpb.QueryAssignmentRequest:
				r, err := e.QueryAssignment(e.ctx(), q)
				return r.GetStatus(), err
			case *rmqpb.ReceiveMessageRequest:
				fs, err := frames(e.ReceiveMessage(e.ctx(), q))
				if err != nil {
					return nil, err
				}
				if len(fs) > 2 { // the bytes that were sent before
					return &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND}, nil
				}
				return fs[0].GetStatus(), nil
			}
			return nil, fmt.Errorf("no such request: %T", c.in)
		}()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		refused(label(c.name), st, c.code, c.words...)
	}
}

// Without a setting, a request has room for the largest body.
func TestDefaultMaxReceiveSize(t *testing.T) {
	for body, want := range map[int]int{0: 32 << 20, 64 << 20: 65 << 20} {
		b := assert.Value(broker.Open(broker.Options{MaxBodySize: body}))(t)
		s := assert.Value(server.New(b, server.Options{}))(t)
		if s.Parts().Options.MaxReceiveSize != want {
			t.Errorf("with bodies of %d bytes it is %d; want %d", body, s.Parts().Options.MaxReceiveSize, want)
		}
		s.Close()
		b.Close()
	}
}

// Rules that change while a request is on its way hold for it.
func TestRulesThatChangeWhileARequestIsRead(t *testing.T) {
	s := start(t, server.Options{Access: someAccess()}).s
	out, _ := metadata.FromOutgoingContext(signed(t.Context(), "consumer"))
	ctx := metadata.NewIncomingContext(t.Context(), out)
	for _, c := range []struct {
		rules server.AccessConfig
		want  tidegate.Code
	}{
		{someAccess(), 0},
		{server.AccessConfig{Keys: someAccess().Keys[:1]}, tidegate.CodeUnauthorized}, // of the producer alone
		{server.AccessConfig{}, 0},
	} {
		assert.Must(t, s.SetAccess(someAccess()))
		from := assert.Value(s.Parts().Gate.Authenticate(ctx, time.Now(), requests.RPCReceive))(t)
		assert.Must(t, s.SetAccess(c.rules))
		if _, err := s.Parts().Gate.Admit(ctx, requests.RPCReceive, from, receiveRequest("normal")); (err != nil) != (c.want != 0) || err != nil && refusal.CodeOf(err) != c.want {
			t.Errorf("by the rules of %d keys: %v; want code %d", len(c.rules.Keys), err, c.want)
		}
	}
}
