package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/internal/gzipped"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Invariant: for any bytes, the result or the error is the same as with protobuf and the generated
// structs.
func FuzzDecode(f *testing.F) {
	for _, m := range []*rmqpb.Message{
		sample(nil), {},
		sample(func(m *rmqpb.Message) {
			m.Body = gzipped.Pack(m.Body)
			m.SystemProperties.BodyEncoding = rmqpb.Encoding_GZIP
			m.SystemProperties.BodyDigest = nil
		}),
		sample(func(m *rmqpb.Message) {
			m.SystemProperties.BornTimestamp = &timestamppb.Timestamp{Seconds: 1 << 60, Nanos: -1}
			m.SystemProperties.StoreTimestamp = &timestamppb.Timestamp{Seconds: lastSecond, Nanos: 999_999_999}
			m.SystemProperties.DeliveryTimestamp = &timestamppb.Timestamp{Seconds: firstSecond - 1}
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

// Texts are UTF-8, or the message is rejected: the user's program may rely on it.
func TestDecodeRejectsOtherTexts(t *testing.T) {
	raw := bytes.Replace(encode(t, sample(nil)), []byte("born"), []byte("bo\xffn"), 1)
	if d, err := decode(raw, 100); !errors.Is(err, errNotUTF8) {
		t.Errorf("%+v, %v", d, err)
	}
}

// BenchmarkDecode decodes a message of 1 KiB.
func BenchmarkDecode(b *testing.B) {
	raw := encode(b, sample(func(m *rmqpb.Message) {
		m.Body, m.SystemProperties.BodyDigest, m.UserProperties = make([]byte, 1024), nil, nil
	}))
	b.ReportAllocs()
	var d Decoder
	for b.Loop() {
		p, err := d.Parse(raw)
		if err == nil {
			err = p.Unpack(4096)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
