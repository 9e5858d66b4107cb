package wire

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Every request that is decoded stays within the limits.
func FuzzCheckSize(f *testing.F) {
	good, err := proto.Marshal(&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{Topic: &rmqpb.Resource{Name: "normal"}, Body: []byte("hello"), SystemProperties: &rmqpb.SystemProperties{MessageId: "id"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, uint16(1))
	f.Add([]byte{0x0a, 0}, uint16(refusal.MaxMany+1))
	f.Add([]byte{0x0a, 0, 0x0b}, uint16(refusal.MaxMany))
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, sendMessages, protowire.BytesType), make([]byte, maxBesideBody+1)), uint16(1))
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
