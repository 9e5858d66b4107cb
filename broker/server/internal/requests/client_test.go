package requests

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

func TestBefore503(t *testing.T) {
	for version, want := range map[string]bool{
		"5.0.0": true, "5.0.2": true, "5.0.0-SNAPSHOT": true, "5.0.2.1": true,
		"5.0.3": false, "5.0.10": false, "5.0.20": false, "5.1.0": false, "5.1.4": false, "": false, "5.0.": false, "5": false, "x": false, "15.0.0": false,
	} {
		if got := Before503(version); got != want {
			t.Errorf("Before503(%q) = %v", version, got)
		}
	}
}

func TestEndpointsFor(t *testing.T) {
	pb := func(hosts ...string) *rmqpb.Endpoints {
		e := &rmqpb.Endpoints{}
		for _, h := range hosts {
			e.Addresses = append(e.Addresses, &rmqpb.Address{Host: h, Port: 8081})
		}
		return e
	}
	local := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 8081}
	for _, c := range []struct {
		name  string
		asked *rmqpb.Endpoints
		local net.Addr
		want  string
	}{
		{"the client's", pb("10.0.0.1"), local, "IPv4 10.0.0.1:8081"},
		{"a name", pb("broker.example"), local, "DOMAIN_NAME broker.example:8081"},
		{"IPv6", pb("::1"), local, "IPv6 ::1:8081"},
		{"one of many is here", pb("10.0.0.1", "10.0.0.2"), local, "IPv4 10.0.0.2:8081"},
		{"none of many is here", pb("10.0.0.1", "10.0.0.3"), local, "IPv4 10.0.0.1:8081 10.0.0.3:8081"},
		{"many names", pb("a.example", "b.example"), local, "DOMAIN_NAME a.example:8081"},
		{"names and numbers", pb("10.0.0.1", "b.example"), local, "DOMAIN_NAME 10.0.0.1:8081"},
		{"none", nil, local, "IPv4 10.0.0.2:8081"},
		{"unusable", &rmqpb.Endpoints{Addresses: []*rmqpb.Address{{Host: "x"}, {Port: 3}}}, local, "IPv4 10.0.0.2:8081"},
		{"none, in memory", nil, nil, "DOMAIN_NAME localhost:8081"},
	} {
		e := EndpointsFor(c.asked, c.local)
		got := e.GetScheme().String()
		for _, a := range e.GetAddresses() {
			got += fmt.Sprintf(" %s:%d", a.GetHost(), a.GetPort())
		}
		assert.That(t, got == c.want, "%s: %s; want %s", c.name, got, c.want)
	}
}

// A request of exactly its limit is read, and one byte more is not.
func TestLargestRequests(t *testing.T) {
	in := &Intake{MaxSend: 5 << 20}
	for _, c := range []struct {
		request proto.Message
		limit   int64
	}{
		{&rmqpb.SendMessageRequest{}, 5 << 20},
		{&rmqpb.AckMessageRequest{}, 1000 << 10},
		{&rmqpb.QueryRouteRequest{}, 64 << 10},
	} {
		for _, more := range []int64{0, 1} {
			refused, err := in.checkLength(c.request, c.limit+more)
			if got := refused != nil || err != nil; got != (more > 0) {
				t.Errorf("%T of %d bytes: %v, %v", c.request, c.limit+more, refused, err)
			}
		}
	}
}

// The messages and bodies of a request stay as they are until it is freed, while other requests
// are decoded.
func TestRequestsKeepTheirMemoryUntilFreed(t *testing.T) {
	read := func(c byte) (*Intake, *rmqpb.SendMessageRequest) {
		bodies := slices.Repeat([]string{string(bytes.Repeat([]byte{c}, 4<<10)), string(bytes.Repeat([]byte{c}, 100))}, 16)
		in, r := &Intake{}, &rmqpb.SendMessageRequest{}
		for i, b := range bodies {
			r.Messages = append(r.Messages, &rmqpb.Message{SystemProperties: &rmqpb.SystemProperties{MessageId: fmt.Sprint(i)}, Body: []byte(b)})
		}
		raw := assert.Value(proto.Marshal(r))(t)
		half := mem.BufferSlice{mem.Copy(raw[:len(raw)/2], wire.Pool), mem.Copy(raw[len(raw)/2:], wire.Pool)}
		if refused, err := in.decode(half, r); refused != nil || err != nil {
			t.Fatal(refused, err)
		}
		return in, r
	}
	first, a := read('a')
	want := proto.CloneOf(a)
	for range 4 {
		second, b := read('b')
		assert.MustThat(t, proto.Equal(a, want), "the first request changed before it was freed")
		assert.MustEqual(t, "the second request has the body of the first one", b.GetMessages()[0].GetBody()[0], 'b')
		second.Free()
	}
	first.Free()
	first.Free() // does no harm
	assert.That(t, len(a.GetMessages()) == 0, "the first request still has messages after it was freed")
}

// Every request that is decoded stays within the limits.
func FuzzCheckSize(f *testing.F) {
	good := assert.Value(proto.Marshal(&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{Topic: &rmqpb.Resource{Name: "normal"}, Body: []byte("hello"), SystemProperties: &rmqpb.SystemProperties{MessageId: "id"}}}}))(f)
	f.Add(good, uint16(1))
	f.Add([]byte{0x0a, 0}, uint16(refusal.MaxMany+1))
	f.Add([]byte{0x0a, 0, 0x0b}, uint16(refusal.MaxMany))
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), make([]byte, maxBesideBody+1)), uint16(1))
	f.Fuzz(func(t *testing.T, part []byte, times uint16) {
		raw := bytes.Repeat(part, min(int(times), 1<<20/(len(part)+1)))
		var q rmqpb.SendMessageRequest
		fault, err := checkSize(&q, raw), proto.Unmarshal(raw, &q)
		if err != nil {
			return
		}
		over := len(q.GetMessages()) > refusal.MaxMany
		for _, m := range q.GetMessages() {
			over = over || proto.Size(m)-len(m.GetBody()) > 2*maxBesideBody
		}
		if over && fault == nil {
			t.Errorf("%d messages pass", len(q.GetMessages()))
		}
		if e, ok := errors.AsType[*tidegate.Error](fault); fault != nil && (!ok || e.Code == 0) {
			t.Errorf("refused without a code: %v", fault)
		}
	})
}

// The end of a stream has the gRPC code of its reason, and never ResourceExhausted, to which
// clients respond with waiting.
func TestEndOf(t *testing.T) {
	want := map[rmqpb.Code]codes.Code{
		rmqpb.Code_UNAUTHORIZED: codes.Unauthenticated, rmqpb.Code_FORBIDDEN: codes.PermissionDenied, rmqpb.Code_NOT_FOUND: codes.NotFound,
		rmqpb.Code_TOPIC_NOT_FOUND: codes.NotFound, rmqpb.Code_CONSUMER_GROUP_NOT_FOUND: codes.NotFound,
		rmqpb.Code_BAD_REQUEST: codes.InvalidArgument, rmqpb.Code_ILLEGAL_TOPIC: codes.InvalidArgument, rmqpb.Code_CLIENT_ID_REQUIRED: codes.InvalidArgument,
		rmqpb.Code_PAYLOAD_TOO_LARGE: codes.InvalidArgument, rmqpb.Code_PRECONDITION_FAILED: codes.FailedPrecondition,
		rmqpb.Code_TOO_MANY_REQUESTS: codes.Unavailable, rmqpb.Code_NOT_IMPLEMENTED: codes.Unimplemented, rmqpb.Code_UNSUPPORTED: codes.Unimplemented,
		rmqpb.Code_INTERNAL_SERVER_ERROR: codes.Internal,
	}
	for code := range rmqpb.Code_name {
		st := &rmqpb.Status{Code: rmqpb.Code(code), Message: "the reason"}
		got := status.Convert(EndOf(st))
		if c, ok := want[st.GetCode()]; ok && got.Code() != c || got.Code() == codes.ResourceExhausted || got.Code() == codes.OK || got.Message() != "the reason" {
			t.Errorf("%v becomes %v, want %v", st.GetCode(), got, want[st.GetCode()])
		}
	}
}

// A response is encoded completely before its memory is used again, and a new one has nothing of
// it.
func TestSendResponsesUseMemoryAgain(t *testing.T) {
	sizes := []int{16, 1, 16 + 9, 0, 16, 16 - 1, 1024, 1024 + 1, 16}
	for round, n := range sizes {
		r, want := wire.NewSendResponse(n), &rmqpb.SendMessageResponse{Status: MultipleResults}
		if r.Status != nil || len(r.Entries) != n || proto.Size(r) != 2*n { // 2 is the size of an empty entry
			t.Fatalf("a new response with %d entries is %v", n, r)
		}
		r.Status = MultipleResults
		for i, e := range r.Entries {
			e.Status, e.MessageId, e.TransactionId, e.Offset, e.RecallHandle = wire.OK, fmt.Sprint(round, i), "t", int64(i), "r"
			want.Entries = append(want.Entries, proto.CloneOf(e))
		}
		place := assert.Value(admission.NewBudget("places", 1<<20, 0).Take(nil, 1))(t)
		placed := &Placed{Message: r, Place: place, Last: true}
		data := assert.Value(Codec{}.Marshal(placed))(t)
		assert.That(t, placed.Message == nil, "%d entries: the encoded response is still %v", n, placed.Message)
		got := &rmqpb.SendMessageResponse{}
		if err := proto.Unmarshal(data.Materialize(), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%d entries: encoded %v, %v; want %v", n, got, err, want)
		}
	}
}
