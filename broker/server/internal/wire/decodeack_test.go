package wire

import (
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func ackRequest(entries int) *rmqpb.AckMessageRequest {
	r := &rmqpb.AckMessageRequest{Group: &rmqpb.Resource{Name: "g"}, Topic: &rmqpb.Resource{Name: "t"}}
	for i := range entries {
		r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{
			MessageId: "01A" + string(rune('a'+i%26)), ReceiptHandle: "AQAAAAIAAAADAAQAAAAAAAAABQAAAA" + string(rune('a'+i%26)),
		})
	}
	return r
}

func encodedAck(t testing.TB, r *rmqpb.AckMessageRequest) []byte {
	t.Helper()
	raw, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func entry(fields ...[]byte) []byte { return bytesField(ackEntries, string(slices.Concat(fields...))) }

func TestDecodeAck(t *testing.T) {
	group := bytesField(1, string(bytesField(2, "g")))
	id, handle := bytesField(entryID, "id"), bytesField(entryHandle, "handle")
	number := protowire.AppendVarint(protowire.AppendTag(nil, entryID, protowire.VarintType), 7)
	for name, c := range map[string]struct {
		raw  []byte
		take bool
	}{
		"empty":                  {nil, true},
		"no entry":               {encodedAck(t, ackRequest(0)), true},
		"one entry":              {encodedAck(t, ackRequest(1)), true},
		"many entries":           {encodedAck(t, ackRequest(100)), true},
		"entries alone":          {slices.Concat(entry(id, handle), entry(handle, id)), true},
		"empty entry":            {entry(), true},
		"empty texts":            {entry(bytesField(entryID, ""), bytesField(entryHandle, "")), true},
		"two handles":            {entry(handle, id, bytesField(entryHandle, "other")), true},
		"unknown field":          {slices.Concat(group, bytesField(500, "?"), entry(id, handle)), true},
		"group after entries":    {slices.Concat(entry(id, handle), group), false},
		"lite topic":             {entry(id, bytesField(3, "lite"), handle), false},
		"ID is a number":         {entry(number, handle), false},
		"number before entries":  {slices.Concat(number, entry(id, handle)), false},
		"an ID is not UTF-8":     {entry(bytesField(entryID, "\xff")), false},
		"group is not UTF-8":     {slices.Concat(bytesField(1, string(bytesField(2, "\xff"))), entry(id)), false},
		"cut off":                {encodedAck(t, ackRequest(2))[:20], false},
		"cut off within entries": {entry(id[:3]), false},
	} {
		t.Run(name, func(t *testing.T) {
			if took := checkDecodeAck(t, c.raw); took != c.take {
				t.Errorf("decodeAck returned %v, want %v", took, c.take)
			}
		})
	}
}

// Invariant: decodeAck returns false, or the same as protobuf's decoder.
func FuzzDecodeAck(f *testing.F) {
	f.Add(encodedAck(f, ackRequest(2)))
	f.Add(entry(bytesField(entryHandle, "h")))
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecodeAck(t, raw) })
}

// checkDecodeAck compares decodeAck with protobuf's decoder, and returns whether it took raw.
func checkDecodeAck(t *testing.T, raw []byte) bool {
	t.Helper()
	want, got := &rmqpb.AckMessageRequest{}, &rmqpb.AckMessageRequest{}
	err, took := proto.Unmarshal(raw, want), decodeAck(raw, got)
	if took && (err != nil || !proto.Equal(want, got)) {
		t.Errorf("decoded as %v, want %v, %v", got, want, err)
	}
	return took
}

// A request shares no memory with the buffer that it was read into.
func TestAcknowledgementKeepsNothing(t *testing.T) {
	want, got := ackRequest(3), &rmqpb.AckMessageRequest{}
	raw := encodedAck(t, want)
	if refused, err := (&Intake{}).decode(mem.BufferSlice{mem.SliceBuffer(raw)}, got); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	clear(raw)
	if !proto.Equal(want, got) {
		t.Errorf("decoded as %v, want %v", got, want)
	}
}

// BenchmarkDecodeAck decodes an acknowledgement of 128 deliveries.
func BenchmarkDecodeAck(b *testing.B) {
	raw := encodedAck(b, ackRequest(128))
	b.ReportAllocs()
	for b.Loop() {
		in := &Intake{}
		if refused, err := in.decode(mem.BufferSlice{mem.Copy(raw, protomem.Pool)}, &rmqpb.AckMessageRequest{}); refused != nil || err != nil {
			b.Fatal(refused, err)
		}
	}
}
