package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/allocated"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
		n := allocated.Bytes(func() {
			if err := e.invokeRaw(c.ctx, "SendMessage", raw, &answer); err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
		answer := &rmqpb.SendMessageResponse{} // the status is the first field of most answers
		if err := s.RecvMsg(answer); err != nil {
			t.Fatalf("%s: %v", d.StreamName, err)
		}
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
		{"much beside a body", with(func(m *rmqpb.Message) { m.UserProperties = map[string]string{"k": strings.Repeat("v", 70<<10)} }), tidegate.CodeMessagePropertiesTooLarge, []string{"message 2", "65536"}},
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
		b, err := broker.Open(broker.Options{MaxBodySize: body})
		if err != nil {
			t.Fatal(err)
		}
		s, err := server.New(b, server.Options{})
		if err != nil {
			t.Fatal(err)
		}
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
		if err := s.SetAccess(someAccess()); err != nil {
			t.Fatal(err)
		}
		from, err := s.Parts().Gate.Authenticate(ctx, time.Now(), requests.RPCReceive)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetAccess(c.rules); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Parts().Gate.Admit(ctx, requests.RPCReceive, from, receiveRequest("normal")); (err != nil) != (c.want != 0) || err != nil && refusal.CodeOf(err) != c.want {
			t.Errorf("by the rules of %d keys: %v; want code %d", len(c.rules.Keys), err, c.want)
		}
	}
}
