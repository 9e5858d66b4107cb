package wire

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/rmqpb/newer"
)

// sample returns a message as a server delivers it, changed by change if that is not nil.
func sample(change func(*rmqpb.Message)) *rmqpb.Message {
	m := &rmqpb.Message{
		Topic: &rmqpb.Resource{Name: "t"}, Body: []byte("hello"), UserProperties: map[string]string{"p": "v"},
		SystemProperties: &rmqpb.SystemProperties{
			Tag: new("a"), Keys: []string{"k"}, MessageId: "id", BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_FIFO,
			BodyDigest:    &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: "5D41402ABC4B2A76B9719D911017C592"},
			BornTimestamp: timestamppb.New(time.Unix(10, 0)), BornHost: "born", StoreTimestamp: timestamppb.New(time.Unix(11, 0)), StoreHost: "store",
			DeliveryTimestamp: timestamppb.New(time.Unix(12, 0)), ReceiptHandle: new("h"), QueueId: 3, QueueOffset: new(int64(4)),
			DeliveryAttempt: new(int32(5)), MessageGroup: new("g"), TraceContext: new("tc"), Priority: new(int32(6)), LiteTopic: new("l"),
		},
	}
	if change != nil {
		change(m)
	}
	return m
}

// decode decodes as a receive does.
func decode(raw []byte, maxBody int) (*tidegate.Delivery, error) {
	var d Decoder
	p, err := d.Parse(raw)
	if err == nil {
		err = p.Unpack(maxBody)
	}
	if err != nil {
		return nil, err
	}
	return p.Delivery, nil
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecode(t *testing.T) {
	d, err := decode(encode(t, sample(nil)), 100)
	if err != nil {
		t.Fatal(err)
	}
	if d.ID != "id" || d.Topic != "t" || d.Tag != "a" || d.Keys[0] != "k" || d.MessageGroup != "g" || d.DeliverAt.Unix() != 12 ||
		d.Properties["p"] != "v" || d.TraceContext != "tc" || d.Priority != 6 || d.LiteTopic != "l" || string(d.Body) != "hello" || d.Attempt != 5 || d.Handle != "h" ||
		d.Queue != 3 || d.Offset != 4 || d.BornAt.Unix() != 10 || d.BornHost != "born" || d.StoredAt.Unix() != 11 || d.StoreHost != "store" {
		t.Errorf("%+v", d)
	}
	d, err = decode(encode(t, sample(func(m *rmqpb.Message) {
		m.UserProperties = nil
		m.SystemProperties.DeliveryAttempt = nil
		m.SystemProperties.DeadLetterQueue = &rmqpb.DeadLetterQueue{Topic: "orders", MessageId: "1"}
	})), 100)
	if err != nil || d.Attempt != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if l, isDead := d.DeadLetter(); !isDead || l.Topic != "orders" || l.MessageID != "1" {
		t.Errorf("dead letter %+v", l)
	}
}

// The server's properties of a delivery are not shown as the user's.
func TestDecodeDropsTheServersProperties(t *testing.T) {
	for name, tt := range map[string]struct {
		properties, want map[string]string
	}{
		"the server's": {map[string]string{
			"k": "v", "__SHARDINGKEY": "mg", "__transactionId__": "tx", "TRACE_CONTEXT": "trace",
			"TRANSACTION_CHECK_TIMES": "2", "CHECK_IMMUNITY_TIME_IN_SECONDS": "6",
		}, map[string]string{"k": "v"}},
		"a user's trace context": {map[string]string{"TRACE_CONTEXT": "own", "__transactionId__": "tx"}, map[string]string{"TRACE_CONTEXT": "own"}},
	} {
		d, err := decode(encode(t, sample(func(m *rmqpb.Message) {
			m.UserProperties, m.SystemProperties.TraceContext = tt.properties, new("trace")
		})), 100)
		if err != nil || !maps.Equal(d.Properties, tt.want) || d.TransactionID != "tx" {
			t.Errorf("%s: properties %v, transaction %q, %v; want %v and tx", name, d.Properties, d.TransactionID, err, tt.want)
		}
		if err := (&tidegate.Message{ID: "1", Topic: "t", Body: []byte("x"), Properties: d.Properties}).Validate(100); err != nil {
			t.Errorf("%s: sending it on: %v", name, err)
		}
	}
}

// Invariant: for any bytes, the result or the error is the same as with protobuf and the generated
// structs.
func FuzzDecode(f *testing.F) {
	for _, m := range []*rmqpb.Message{
		sample(nil), {},
		sample(func(m *rmqpb.Message) {
			m.Body = Gzip(m.Body)
			m.SystemProperties.BodyEncoding = rmqpb.Encoding_GZIP
			m.SystemProperties.BodyDigest = nil
		}),
		sample(func(m *rmqpb.Message) {
			m.SystemProperties.BornTimestamp = &timestamppb.Timestamp{Seconds: 1 << 60, Nanos: -1}
			m.SystemProperties.StoreTimestamp = &timestamppb.Timestamp{Seconds: 253_402_300_799, Nanos: 999_999_999}
			m.SystemProperties.DeliveryTimestamp = &timestamppb.Timestamp{Seconds: -62_135_596_801}
			m.SystemProperties.DeliveryAttempt = new(int32(-1))
			m.SystemProperties.QueueId = -7
			m.SystemProperties.InvisibleDuration = durationpb.New(math.MaxInt64)
			m.SystemProperties.DeadLetterQueue = &rmqpb.DeadLetterQueue{Topic: "from", MessageId: "1"}
			m.UserProperties = map[string]string{"__SHARDINGKEY": "g", "__transactionId__": "tx", "TRACE_CONTEXT": "tc"}
		}),
	} {
		f.Add(encode(f, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1000
		d, err := decode(b, limit)
		if (d == nil) == (err == nil) {
			t.Fatal("neither or both")
		}
		m := new(rmqpb.Message)
		if proto.Unmarshal(b, m) != nil {
			return // unknown fields and bodies of known ones may be read more leniently
		}
		want, wantErr := DecodeMessage(m, limit)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%v, want %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if left, err := invisibleOf(b); err != nil || left != legal(m.GetSystemProperties().GetInvisibleDuration()) {
			t.Errorf("invisible for %v, %v, want %v", left, err, m.GetSystemProperties().GetInvisibleDuration())
		}
		if len(d.Body) == 0 && len(want.Body) == 0 {
			d.Body, want.Body = nil, nil
		}
		if !reflect.DeepEqual(d, want) {
			t.Fatalf("\n%+v, want\n%+v", d, want)
		}
		// A body within a limit is also within a larger one.
		if more, err := decode(b, math.MaxInt); err != nil || !bytes.Equal(more.Body, d.Body) {
			t.Errorf("without a limit: %+v, %v", more, err)
		}
		clear(b)
		if !reflect.DeepEqual(d.Message, want.Message) {
			t.Error("the delivery shares memory with the frame, which is used again")
		}
	})
}

// legal returns 0 for a duration that is missing, illegal or negative.
func legal(d *durationpb.Duration) time.Duration {
	if d.CheckValid() != nil {
		return 0
	}
	return max(d.AsDuration(), 0)
}

func invisibleOf(b []byte) (time.Duration, error) {
	var d Decoder
	p, err := d.Parse(b)
	return p.Invisible, err
}

// Texts are UTF-8, or the message is rejected: the program may rely on it.
func TestDecodeRejectsOtherTexts(t *testing.T) {
	raw := bytes.Replace(encode(t, sample(nil)), []byte("born"), []byte("bo\xffn"), 1)
	if d, err := decode(raw, 100); err == nil {
		t.Errorf("%+v, %v", d, err)
	}
}

// generated converts a delivery to the generated type, with which the hand-written encoding must
// agree.
func generated(namespace string, d *tidegate.Delivery, at time.Time) *rmqpb.Message {
	pb := messageOf(&d.Message)
	pb.Topic = &rmqpb.Resource{ResourceNamespace: namespace, Name: d.Topic}
	p := pb.SystemProperties
	p.BodyDigest = &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum(d.Body))}
	p.BornTimestamp, p.BornHost, p.StoreHost = timestamppb.New(time.Unix(0, 0)), d.BornHost, d.StoreHost
	p.ReceiptHandle, p.QueueId, p.QueueOffset, p.DeliveryAttempt = &d.Handle, int32(d.Queue), &d.Offset, new(int32(d.Attempt))
	if !d.BornAt.IsZero() {
		p.BornTimestamp = timestamppb.New(d.BornAt)
	}
	if !d.StoredAt.IsZero() {
		p.StoreTimestamp = timestamppb.New(d.StoredAt)
	}
	if !d.InvisibleUntil.IsZero() {
		p.InvisibleDuration = durationpb.New(max(d.InvisibleUntil.Sub(at), 1))
	}
	user, dead := deadLetterQueue(d.Properties)
	p.DeadLetterQueue = dead
	if pb.UserProperties = maps.Clone(user); user == nil {
		pb.UserProperties = map[string]string{}
	}
	if d.MessageGroup != "" {
		pb.UserProperties["__SHARDINGKEY"] = d.MessageGroup
	}
	if d.TransactionID != "" {
		pb.UserProperties["__transactionId__"] = d.TransactionID
	}
	return pb
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
	ranked := *full
	ranked.MessageGroup, ranked.Priority = "", math.MaxInt32
	lite := *full
	lite.MessageGroup, lite.LiteTopic = "", strings.Repeat("l", 64)
	empty := &tidegate.Delivery{}                                                    // its CRC32 is 0
	zeros := &tidegate.Delivery{Message: tidegate.Message{Body: []byte("tide 302")}} // its CRC32 begins with zeros
	f := &Deliveries{Namespace: "ns"}
	// The same room serves again: nothing of an earlier message or batch may stay.
	f.check(t, []*tidegate.Delivery{full, empty, &delayed, &ranked, &lite, &dead, empty, full})
	f.check(t, []*tidegate.Delivery{empty, &dead})
	f.check(t, nil)
	(&Deliveries{}).check(t, []*tidegate.Delivery{full})

	p := &Deliveries{Namespace: "ns", Packed: true}
	p.checkPacked(t, []*tidegate.Delivery{full, empty, &delayed, &ranked, &lite, &dead, empty, full})
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
		"prepared":     {func(f *Deliveries) { f.Prepare(ds, false) }, true},
		"not prepared": {func(*Deliveries) {}, false},
		"of fewer":     {func(f *Deliveries) { f.Prepare(ds[:1], false) }, false},
		"too old":      {func(f *Deliveries) { f.Prepare(ds, false); f.at = f.at.Add(-2 * maxFrameAge) }, false},
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

func ackRequest(entries int) *rmqpb.AckMessageRequest {
	r := &rmqpb.AckMessageRequest{Group: &rmqpb.Resource{Name: "g"}, Topic: &rmqpb.Resource{Name: "t"}}
	for i := range entries {
		r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{
			MessageId: "01A" + string(rune('a'+i%26)), ReceiptHandle: "AQAAAAIAAAADAAQAAAAAAAAABQAAAA" + string(rune('a'+i%26)),
		})
	}
	return r
}

func entry(fields ...[]byte) []byte { return bytesField(3, string(slices.Concat(fields...))) }

func TestDecodeAck(t *testing.T) {
	group := bytesField(1, string(bytesField(2, "g")))
	id, handle := bytesField(1, "id"), bytesField(2, "handle")
	number := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7)
	for name, c := range map[string]struct {
		raw  []byte
		take bool
	}{
		"empty":                  {nil, true},
		"no entry":               {encode(t, ackRequest(0)), true},
		"one entry":              {encode(t, ackRequest(1)), true},
		"many entries":           {encode(t, ackRequest(100)), true},
		"entries alone":          {slices.Concat(entry(id, handle), entry(handle, id)), true},
		"empty entry":            {entry(), true},
		"empty texts":            {entry(bytesField(1, ""), bytesField(2, "")), true},
		"two handles":            {entry(handle, id, bytesField(2, "other")), true},
		"unknown field":          {slices.Concat(group, bytesField(500, "?"), entry(id, handle)), true},
		"group after entries":    {slices.Concat(entry(id, handle), group), false},
		"lite topic":             {entry(id, bytesField(3, "lite"), handle), false},
		"ID is a number":         {entry(number, handle), false},
		"number before entries":  {slices.Concat(number, entry(id, handle)), false},
		"an ID is not UTF-8":     {entry(bytesField(1, "\xff")), false},
		"group is not UTF-8":     {slices.Concat(bytesField(1, string(bytesField(2, "\xff"))), entry(id)), false},
		"cut off":                {encode(t, ackRequest(2))[:20], false},
		"cut off within entries": {entry(id[:3]), false},
	} {
		t.Run(name, func(t *testing.T) {
			if took := checkDecodeAck(t, c.raw); took != c.take {
				t.Errorf("DecodeAck returned %v, want %v", took, c.take)
			}
		})
	}
}

// Invariant: DecodeAck returns false, or the same as protobuf's decoder.
func FuzzDecodeAck(f *testing.F) {
	f.Add(encode(f, ackRequest(2)))
	f.Add(entry(bytesField(2, "h")))
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecodeAck(t, raw) })
}

// checkDecodeAck compares DecodeAck with protobuf's decoder, and returns whether it took raw.
func checkDecodeAck(t *testing.T, raw []byte) bool {
	t.Helper()
	want, got := &rmqpb.AckMessageRequest{}, &rmqpb.AckMessageRequest{}
	err, took := proto.Unmarshal(raw, want), DecodeAck(raw, got)
	if took && (err != nil || !proto.Equal(want, got)) {
		t.Errorf("decoded as %v, want %v, %v", got, want, err)
	}
	return took
}

// A request shares no memory with the buffer that it was read into.
func TestAcknowledgementKeepsNothing(t *testing.T) {
	want, got := ackRequest(3), &rmqpb.AckMessageRequest{}
	raw := encode(t, want)
	if !DecodeAck(raw, got) {
		t.Fatal("DecodeAck returned false")
	}
	clear(raw)
	if !proto.Equal(want, got) {
		t.Errorf("decoded as %v, want %v", got, want)
	}
}

// A newer server can send fields that this version does not know, at any place: they change no
// decoded message. The decoders by hand leave such bytes to protobuf's.
func TestUnknownFieldsChangeNothing(t *testing.T) {
	full := sample(func(m *rmqpb.Message) {
		p := m.SystemProperties
		p.InvisibleDuration, p.DeadLetterQueue = durationpb.New(time.Second), &rmqpb.DeadLetterQueue{Topic: "from", MessageId: "1"}
	})
	newer.Complete(full)
	want, err := decode(encode(t, full), 100)
	assert.Must(t, err)
	for _, c := range newer.Changes(full) {
		if c.Enum != "" {
			continue
		}
		m := proto.CloneOf(full)
		assert.MustThat(t, c.Apply(m, 0), "no place %s in %v", c.Place, m)
		got, err := decode(encode(t, m), 100)
		assert.That(t, err == nil && reflect.DeepEqual(got, want), "%s: %+v, %v, want %+v", c.Place, got, err, want)
	}
	ok := &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}
	for _, request := range []struct {
		whole proto.Message
		check func(raw []byte)
	}{
		{&rmqpb.SendMessageResponse{Status: ok, Entries: []*rmqpb.SendResultEntry{{Status: ok, MessageId: "1"}, {Status: ok, MessageId: "2"}}},
			func(raw []byte) { checkDecodeSent(t, raw) }},
		{&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{full, sample(nil)}}, func(raw []byte) { checkDecodeSend(t, raw) }},
		{&rmqpb.AckMessageRequest{Group: &rmqpb.Resource{Name: "g"}, Topic: &rmqpb.Resource{Name: "t"}, Entries: []*rmqpb.AckMessageEntry{
			{MessageId: "1", ReceiptHandle: "h"}, {MessageId: "2", ReceiptHandle: "i"},
		}}, func(raw []byte) { checkDecodeAck(t, raw) }},
	} {
		for _, c := range newer.Changes(request.whole) {
			m := proto.Clone(request.whole)
			assert.MustThat(t, c.Apply(m, 77), "no place %s in %v", c.Place, m)
			request.check(encode(t, m))
		}
	}
}

// A handler would read a body in an unknown encoding as the sender's.
func TestUnknownEncodingIsNotDelivered(t *testing.T) {
	_, err := decode(encode(t, sample(func(m *rmqpb.Message) { m.SystemProperties.BodyEncoding = 77 })), 100)
	assert.MustThat(t, err != nil, "delivered")
	assert.Contains(t, "the error", err.Error(), "77", "IDENTITY", "GZIP", "update")
}
