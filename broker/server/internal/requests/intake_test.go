package requests

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

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
