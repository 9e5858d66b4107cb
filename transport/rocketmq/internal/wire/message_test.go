package wire

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/gzipped"
	"github.com/tidegate/tidegate/internal/rmqpb"
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
			DeliveryAttempt: new(int32(5)), MessageGroup: new("g"), TraceContext: new("tc"),
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
		d.Properties["p"] != "v" || d.TraceContext != "tc" || string(d.Body) != "hello" || d.Attempt != 5 || d.Handle != "h" ||
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

// A body whose CRC32 begins with zeros.
const (
	zeroCRC    = "tide 302"
	zeroCRCSum = "002F6FC0"
)

func TestSizeBound(t *testing.T) {
	e := &Encoder{Host: "host", Namespace: "space"}
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string { return strings.Repeat("x", rnd.IntN(most+1)) }
	for range 300 {
		most := []int{0, 10, 130, 20000}[rnd.IntN(4)]
		m := &tidegate.Message{ID: text(most), Topic: text(most), Tag: text(most), MessageGroup: text(most), TraceContext: text(most),
			Body: []byte(text(10 * most)), Properties: map[string]string{}, DeliverAt: time.Unix(-1<<33, 999999999)}
		for range rnd.IntN(50) {
			m.Keys = append(m.Keys, text(most))
			m.Properties[fmt.Sprint(rnd.Uint64())+text(most/100)] = text(most)
		}
		born := timestamppb.New(time.Unix(-1<<33, 999999999))
		pb := e.message(new(rmqpb.Message), new(rmqpb.SystemProperties), m, math.MaxInt32, &rmqpb.Resource{ResourceNamespace: "space", Name: m.Topic}, born)
		n := proto.Size(&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{pb}})
		if bound := e.SizeBound(m); bound < n || bound > n+256+8*len(m.Keys)+21*len(m.Properties) {
			t.Fatalf("%d bytes, bound %d, of %d keys and %d properties", n, bound, len(m.Keys), len(m.Properties))
		}
	}
}

func TestDigest(t *testing.T) {
	for _, tt := range []struct {
		body     string
		kind     rmqpb.DigestType
		checksum string
		want     bool
	}{
		{"hello", rmqpb.DigestType_MD5, "5d41402abc4b2a76b9719d911017c592", true},
		{"hello", rmqpb.DigestType_MD5, "5D41402ABC4B2A76B9719D911017C592", true},
		{"hello", rmqpb.DigestType_MD5, "5D41402ABC4B2A76B9719D911017C593", false},
		{"hello", rmqpb.DigestType_SHA1, "AAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D", true},
		{"hello", rmqpb.DigestType_SHA1, "BAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D", false},
		{"hello", rmqpb.DigestType_CRC32, "3610A686", true},
		{"hello", rmqpb.DigestType_CRC32, "3610a686", true},
		{"hello", rmqpb.DigestType_CRC32, "907060870", false}, // decimal
		{zeroCRC, rmqpb.DigestType_CRC32, zeroCRCSum, true},
		{zeroCRC, rmqpb.DigestType_CRC32, strings.TrimLeft(zeroCRCSum, "0"), true},
		{"hello", rmqpb.DigestType_CRC32, "", true},
		{"hello", rmqpb.DigestType_DIGEST_TYPE_UNSPECIFIED, "xyz", true},
		{"hello", 77, "xyz", true},
		{"hello", rmqpb.DigestType_CRC32, "03610A686", true},
		{"hello", rmqpb.DigestType_CRC32, "13610A686", false},
		{"hello", rmqpb.DigestType_CRC32, "610A686", false},
		{"hello", rmqpb.DigestType_CRC32, "0", false},
		{"hello", rmqpb.DigestType_CRC32, "3610A68\xa6", false},
		{"hello", rmqpb.DigestType_CRC32, "361\x10A686", false},
	} {
		err := checkDigest([]byte(tt.body), tt.kind, []byte(tt.checksum))
		if (err == nil) != tt.want {
			t.Errorf("%s %q of %q: %v", tt.kind, tt.checksum, tt.body, err)
		}
	}
}

func TestDecompress(t *testing.T) {
	plain := bytes.Repeat([]byte("tide"), 1000)
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write(plain)
	w.Close()
	for name, tt := range map[string]struct {
		body  []byte
		limit int
		want  bool
	}{
		"gzip":      {gzipped.Pack(plain), 4000, true},
		"zlib":      {z.Bytes(), 4000, true},
		"bomb":      {gzipped.Pack(make([]byte, 4<<20)), 4000, false},
		"too large": {gzipped.Pack(plain), 3999, false},
		"truncated": {gzipped.Pack(plain)[:20], 4000, false},
		"garbage":   {[]byte("hello"), 4000, false},
		"empty":     {nil, 4000, false},

		"gzip without a limit":      {gzipped.Pack(plain), math.MaxInt, true},
		"zlib without a limit":      {z.Bytes(), math.MaxInt, true},
		"truncated without a limit": {gzipped.Pack(plain)[:20], math.MaxInt, false},
	} {
		got, err := decompress(tt.body, tt.limit)
		if (err == nil) != tt.want || tt.want && !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
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
