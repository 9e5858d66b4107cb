package wire

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// generated converts a delivery to the generated type, with which the hand-written encoding must
// agree.
func generated(namespace string, d *tidegate.Delivery, at time.Time) *rmqpb.Message {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	user, dead := deadLetterQueue(d.Properties)
	p := &rmqpb.SystemProperties{
		Tag: text(d.Tag), Keys: d.Keys, MessageId: d.ID, MessageGroup: text(d.MessageGroup), TraceContext: text(d.TraceContext),
		BodyDigest:   &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum(d.Body))},
		BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: typeOf(&d.Message), BornTimestamp: timestamppb.New(time.Unix(0, 0)),
		BornHost: d.BornHost, StoreHost: d.StoreHost, ReceiptHandle: &d.Handle, QueueId: int32(d.Queue), QueueOffset: &d.Offset,
		DeliveryAttempt: new(int32(d.Attempt)), DeadLetterQueue: dead,
	}
	if !d.BornAt.IsZero() {
		p.BornTimestamp = timestamppb.New(d.BornAt)
	}
	if !d.StoredAt.IsZero() {
		p.StoreTimestamp = timestamppb.New(d.StoredAt)
	}
	if !d.DeliverAt.IsZero() {
		p.DeliveryTimestamp = timestamppb.New(d.DeliverAt)
	}
	if !d.InvisibleUntil.IsZero() {
		p.InvisibleDuration = durationpb.New(max(d.InvisibleUntil.Sub(at), 1))
	}
	user = maps.Clone(user)
	if user == nil {
		user = map[string]string{}
	}
	if d.MessageGroup != "" {
		user["__SHARDINGKEY"] = d.MessageGroup
	}
	if d.TransactionID != "" {
		user["__transactionId__"] = d.TransactionID
	}
	return &rmqpb.Message{
		Topic: &rmqpb.Resource{ResourceNamespace: namespace, Name: d.Topic}, UserProperties: user, SystemProperties: p, Body: d.Body,
	}
}

// check encodes ds and compares every frame with that of protobuf.
func (f *Deliveries) check(t *testing.T, ds []*tidegate.Delivery) {
	t.Helper()
	if err := f.encode(ds); err != nil {
		t.Fatal(err)
	}
	if len(f.list) != len(ds) {
		t.Fatalf("%d frames of %d deliveries", len(f.list), len(ds))
	}
	for i, d := range ds {
		data, err := Codec{}.Marshal(&f.list[i])
		if err != nil {
			t.Fatal(err)
		}
		b := data.Materialize()
		got := &rmqpb.ReceiveMessageResponse{}
		if err := proto.Unmarshal(b, got); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		want := &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: generated(f.Namespace, d, f.at)}}
		if len(d.Body) == 0 {
			got.GetMessage().Body, want.GetMessage().Body = nil, nil
		}
		if !proto.Equal(got, want) {
			t.Errorf("frame %d\ngot  %v\nwant %v", i, got, want)
		}
		if len(got.ProtoReflect().GetUnknown()) > 0 || len(got.GetMessage().GetSystemProperties().ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("frame %d has fields that the protocol does not have", i)
		}
	}
}

// checkPacked encodes ds into frames of many messages, and compares these with those of protobuf.
func (f *Deliveries) checkPacked(t *testing.T, ds []*tidegate.Delivery) {
	t.Helper()
	f.CRC = true
	if err := f.encode(ds); err != nil {
		t.Fatal(err)
	}
	var got []*rmqpb.Message
	for i := range f.list {
		data, err := Codec{}.Marshal(&f.list[i])
		if err != nil {
			t.Fatal(err)
		}
		r := &rmqpb.ReceiveMessageResponse{}
		if err := proto.Unmarshal(data.Materialize(), r); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if last := i == len(f.list)-1; last != (r.GetStatus().GetCode() == rmqpb.Code_OK) || r.GetMessage() != nil || len(r.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("frame %d of %d has the status %v, the message %v", i, len(f.list), r.GetStatus(), r.GetMessage())
		}
		if n := len(r.GetPacked()); n > 1 && proto.Size(r)-proto.Size(r.GetPacked()[n-1]) > maxPacked+64 {
			t.Errorf("frame %d has %d messages in %d bytes", i, n, proto.Size(r))
		}
		if i == len(f.list)-1 {
			if at := responseTimeOf(t, data.Materialize()); !at.Equal(f.at) {
				t.Errorf("the last frame has the time %v, want %v", at, f.at)
			}
		}
		got = append(got, r.GetPacked()...)
	}
	if len(got) != len(ds) {
		t.Fatalf("%d messages in the frames, want %d", len(got), len(ds))
	}
	for i, d := range ds {
		want := generated(f.Namespace, d, f.at)
		want.SystemProperties.BodyDigest = &rmqpb.Digest{Type: rmqpb.DigestType_CRC32, Checksum: fmt.Sprintf("%X", crc32.ChecksumIEEE(d.Body))}
		if len(d.Body) == 0 {
			got[i].Body, want.Body = nil, nil
		}
		if !proto.Equal(got[i], want) {
			t.Errorf("message %d\ngot  %v\nwant %v", i, got[i], want)
		}
	}
}

// responseTimeOf returns the time of a frame that also has a status, which the generated type does
// not represent: the two are alternatives of a oneof.
func responseTimeOf(t *testing.T, frame []byte) time.Time {
	t.Helper()
	for len(frame) > 0 {
		number, kind, n := protowire.ConsumeTag(frame)
		size := protowire.ConsumeFieldValue(number, kind, frame[max(n, 0):])
		if n < 0 || size < 0 {
			t.Fatalf("the frame is not protobuf: %x", frame)
		}
		if number == 3 { // delivery_timestamp of ReceiveMessageResponse
			value, _ := protowire.ConsumeBytes(frame[n:])
			var at timestamppb.Timestamp
			if err := proto.Unmarshal(value, &at); err != nil {
				t.Fatal(err)
			}
			return at.AsTime()
		}
		frame = frame[n+size:]
	}
	t.Fatal("the frame has no time")
	return time.Time{}
}

func TestOutgoing(t *testing.T) {
	now := time.Now()
	full := &tidegate.Delivery{
		TransactionID: "transaction",
		Message: tidegate.Message{
			ID: "id", Topic: "orders", Tag: "t", Keys: []string{"a", "", "c"}, MessageGroup: "g", TraceContext: "trace",
			Properties: map[string]string{"k": "v", "": "x", "y": "", "long": string(make([]byte, 300))}, Body: make([]byte, 70_000),
		},
		Attempt: 7, Handle: "handle", Queue: 3, Offset: 1 << 40, BornAt: now.Add(-time.Hour), BornHost: "born",
		StoredAt: now, StoreHost: "store", InvisibleUntil: now.Add(time.Minute + 5),
	}
	delayed := *full
	delayed.MessageGroup, delayed.DeliverAt, delayed.BornAt = "", time.Unix(-5, 3), time.Time{}
	dead := *full
	dead.Properties = map[string]string{protocol.PropertyDeadLetterTopic: "from", protocol.PropertyDeadLetterMessageID: "old", "z": "1"}
	dead.InvisibleUntil = now.Add(-time.Hour)
	empty := &tidegate.Delivery{}                                                    // its CRC32 is 0
	zeros := &tidegate.Delivery{Message: tidegate.Message{Body: []byte("tide 302")}} // its CRC32 begins with zeros
	f := &Deliveries{Namespace: "ns"}
	// The same room serves again: nothing of an earlier message or batch may stay.
	f.check(t, []*tidegate.Delivery{full, empty, &delayed, &dead, empty, full})
	f.check(t, []*tidegate.Delivery{empty, &dead})
	f.check(t, nil)
	(&Deliveries{}).check(t, []*tidegate.Delivery{full})

	p := &Deliveries{Namespace: "ns", Packed: true}
	p.checkPacked(t, []*tidegate.Delivery{full, empty, &delayed, &dead, empty, full})
	p.checkPacked(t, []*tidegate.Delivery{empty, &dead, zeros})
	large := *full
	large.Body = make([]byte, maxPacked/2+1)
	p.checkPacked(t, []*tidegate.Delivery{&large, &large, &large, empty, &large, full})
	if len(p.list) != 3 {
		t.Errorf("4 messages of half a frame each, and 2 small ones, are in %d frames, want 3", len(p.list))
	}
	large.Body = make([]byte, 4<<20)
	p.checkPacked(t, []*tidegate.Delivery{&large, full})
	p.checkPacked(t, nil)
}

// Invariant: the frame of every delivery reads as that of protobuf, or both reject the delivery.
func FuzzOutgoing(f *testing.F) {
	f.Add("ns", "topic", "tag", "key", "v", []byte("body"), int64(1), int64(1_700_000_000_123), 1, 2)
	f.Add("", "", "", "", "", []byte(nil), int64(-1), int64(-1), 0, -1)
	f.Add("", "\xff", "", "", "", []byte{0}, int64(0), int64(0), 1<<31-1, 1)
	f.Fuzz(func(t *testing.T, namespace, topic, tag, k, v string, body []byte, offset, at int64, attempt, queue int) {
		d := &tidegate.Delivery{
			Message: tidegate.Message{ID: k + v, Topic: topic, Tag: tag, Keys: []string{k, v}, Properties: map[string]string{k: v}, Body: body},
			Offset:  offset, Attempt: attempt, Queue: queue, Handle: k, BornAt: time.Unix(at%(1<<36), at&0xffff), StoredAt: time.Unix(0, at),
		}
		o := &Deliveries{Namespace: namespace}
		if err := o.encode([]*tidegate.Delivery{d}); err != nil {
			if _, perr := proto.Marshal(generated(namespace, d, o.at)); perr == nil || !errors.Is(err, errNotUTF8) {
				t.Fatalf("rejected with %v; the error of protobuf is %v", err, perr)
			}
			return
		}
		o.check(t, []*tidegate.Delivery{d})
		(&Deliveries{Namespace: namespace, Packed: true}).checkPacked(t, []*tidegate.Delivery{d, d})
	})
}

// The result of Prepare is sent only if it belongs to these deliveries and is fresh.
func TestOutgoingIsMadeAgain(t *testing.T) {
	ds := []*tidegate.Delivery{{Message: tidegate.Message{ID: "1"}}, {Message: tidegate.Message{ID: "2"}}}
	for name, c := range map[string]struct {
		before func(f *Deliveries)
		fresh  bool
	}{
		"prepared":     {func(f *Deliveries) { f.Prepare(ds) }, true},
		"not prepared": {func(*Deliveries) {}, false},
		"of fewer":     {func(f *Deliveries) { f.Prepare(ds[:1]) }, false},
		"too old":      {func(f *Deliveries) { f.Prepare(ds); f.at = f.at.Add(-2 * maxFrameAge) }, false},
	} {
		f := &Deliveries{}
		c.before(f)
		before := f.at
		if frames, err := f.Frames(ds); err != nil || len(frames) != len(ds) {
			t.Errorf("%s: %d frames, %v", name, len(frames), err)
		}
		if c.fresh != f.at.Equal(before) {
			t.Errorf("%s: encoded again: %v", name, !f.at.Equal(before))
		}
	}
}

// BenchmarkOutgoing encodes a full receive of 1 KiB messages.
func BenchmarkOutgoing(b *testing.B) {
	for _, packed := range []bool{false, true} {
		b.Run(fmt.Sprintf("packed=%t", packed), func(b *testing.B) { benchmarkOutgoing(b, packed) })
	}
}

func benchmarkOutgoing(b *testing.B, packed bool) {
	d := &tidegate.Delivery{
		Message: tidegate.Message{ID: "01aaaaaaaaaaaaaaaa0000000000000001", Topic: "topic", Body: make([]byte, 1024)},
		Attempt: 1, Handle: "AQAAAAIAAAABAAAAAAAAAAAAAAAAAAAA", BornAt: time.Now(), StoredAt: time.Now(), InvisibleUntil: time.Now().Add(time.Minute),
		BornHost: "born", StoreHost: "store",
	}
	ds := slices.Repeat([]*tidegate.Delivery{d}, 32)
	b.ReportAllocs()
	for b.Loop() {
		f := &Deliveries{Packed: packed, CRC: packed}
		if err := f.encode(ds); err != nil {
			b.Fatal(err)
		}
	}
}

// gRPC frees the frames one after the other while others wait. Their memory may be used again when
// all of them are free, and not before.
func TestFramesShareMemoryUntilAllAreFree(t *testing.T) {
	large := bytes.Repeat([]byte{'l'}, maxCopied+1)
	deliveries := func(c byte) []*tidegate.Delivery {
		var ds []*tidegate.Delivery
		for i, body := range [][]byte{{c}, bytes.Repeat([]byte{c}, 1<<10), large, bytes.Repeat([]byte{c}, 2<<10)} {
			ds = append(ds, &tidegate.Delivery{Message: tidegate.Message{ID: string(c), Topic: "t", Body: body}, Handle: "h", Offset: int64(i)})
		}
		return ds
	}
	for _, packed := range []bool{false, true} {
		first := &Deliveries{Packed: packed}
		frames, err := first.Frames(deliveries('a'))
		if err != nil {
			t.Fatal(err)
		}
		var sent []mem.BufferSlice
		var want [][]byte
		for i := range frames {
			data, err := Codec{}.Marshal(&frames[i])
			if err != nil {
				t.Fatal(err)
			}
			sent, want = append(sent, data), append(want, data.Materialize())
		}
		for i, data := range sent {
			second := &Deliveries{Packed: packed}
			if _, err := second.Frames(deliveries('b')); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(data.Materialize(), want[i]) {
				t.Errorf("packed=%v: frame %d changed before gRPC freed it", packed, i)
			}
			data.Free()
		}
	}
}
