package wire

import (
	"bytes"
	stdgzip "compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// orders returns n bytes of JSON.
func orders(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, `{"order":%d,"customer":"c-%d","amount":%d.%02d,"currency":"EUR","note":"%x"},`,
			r.IntN(1e9), r.IntN(1e5), r.IntN(1e4), r.IntN(100), r.Uint32())
	}
	return b.Bytes()[:n]
}

func random(n int) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// The standard library reads the output of Gzip, and Gunzip reads the output of the standard
// library.
func TestStandardLibraryAgrees(t *testing.T) {
	for _, n := range []int{0, 1, 100, 1 << 10, 70_000, 1 << 20} {
		for name, body := range map[string][]byte{"orders": orders(n), "random": random(n)} {
			r, err := stdgzip.NewReader(bytes.NewReader(Gzip(body)))
			if err != nil {
				t.Fatalf("%d bytes of %s: %v", n, name, err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes of %s: the standard library reads %d bytes: %v", n, name, len(got), err)
			}
			var b bytes.Buffer
			w := stdgzip.NewWriter(&b)
			if _, err := w.Write(body); err != nil || w.Close() != nil {
				t.Fatal(err)
			}
			if got, err := Gunzip(b.Bytes(), n); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes of %s: Gunzip reads %d bytes of the standard library's: %v", n, name, len(got), err)
			}
		}
	}
}

func TestGzipShrinksText(t *testing.T) {
	if body := orders(1 << 10); len(Gzip(body)) > len(body)*2/5 {
		t.Errorf("1 KiB of orders has %d bytes", len(Gzip(body)))
	}
}

func TestGunzipRejects(t *testing.T) {
	packed := Gzip(orders(10_000))
	bomb := Gzip(make([]byte, 64<<20))
	broken := bytes.Clone(packed)
	broken[len(broken)-6] ^= 1 // in the checksum
	for _, c := range []struct {
		name   string
		packed []byte
		limit  int
		want   error // nil for any
	}{
		{"a byte above the limit", packed, 9_999, ErrTooLong},
		{"a bomb", bomb, 1 << 20, ErrTooLong},
		{"a truncated body", packed[:len(packed)/2], 1 << 20, io.ErrUnexpectedEOF},
		{"a truncated trailer", packed[:len(packed)-1], 1 << 20, io.ErrUnexpectedEOF},
		{"a wrong checksum", broken, 1 << 20, nil},
		{"no gzip", []byte("plain text"), 1 << 20, nil},
		{"nothing", nil, 1 << 20, nil},
	} {
		body, err := Gunzip(c.packed, c.limit)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || body != nil {
			t.Errorf("%s: %d bytes, %v; want no bytes and the error %v", c.name, len(body), err, c.want)
		}
	}
	// A reader that failed reads the next body.
	if body, err := Gunzip(packed, math.MaxInt); err != nil || !bytes.Equal(body, orders(10_000)) {
		t.Errorf("after the refusals: %d bytes, %v", len(body), err)
	}
}

func FuzzGunzip(f *testing.F) {
	f.Add(Gzip([]byte("a body")), 100)
	f.Add(Gzip(nil), 0)
	f.Fuzz(func(t *testing.T, packed []byte, limit int) {
		limit &= 1<<16 - 1
		got, err := Gunzip(packed, limit)
		if len(got) > limit {
			t.Fatalf("%d bytes with the limit %d", len(got), limit)
		}
		r, stdErr := stdgzip.NewReader(bytes.NewReader(packed))
		var want []byte
		if stdErr == nil {
			want, stdErr = io.ReadAll(io.LimitReader(r, int64(limit)+1))
		}
		if len(want) > limit {
			stdErr = ErrTooLong
		}
		if (err == nil) != (stdErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v; the standard library: %d bytes, %v", len(got), err, len(want), stdErr)
		}
	})
}

// BenchmarkGzip compares Gzip with the standard library's default.
func BenchmarkGzip(b *testing.B) {
	for name, body := range map[string][]byte{"orders": orders(1 << 10), "random": random(1 << 10)} {
		b.Run(name+"/ours", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				Gzip(body)
			}
		})
		b.Run(name+"/standard", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			var out bytes.Buffer
			w := stdgzip.NewWriter(nil)
			for b.Loop() {
				out.Reset()
				w.Reset(&out)
				_, _ = w.Write(body)
				_ = w.Close()
			}
		})
	}
}

// A body whose CRC32 begins with zeros.
const (
	zeroCRC    = "tide 302"
	zeroCRCSum = "002F6FC0"
)

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
		err := checkDigest([]byte(tt.body), &rmqpb.Digest{Type: tt.kind, Checksum: tt.checksum})
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
		"gzip":      {Gzip(plain), 4000, true},
		"zlib":      {z.Bytes(), 4000, true},
		"bomb":      {Gzip(make([]byte, 4<<20)), 4000, false},
		"too large": {Gzip(plain), 3999, false},
		"truncated": {Gzip(plain)[:20], 4000, false},
		"garbage":   {[]byte("hello"), 4000, false},
		"empty":     {nil, 4000, false},

		"gzip without a limit":      {Gzip(plain), math.MaxInt, true},
		"zlib without a limit":      {z.Bytes(), math.MaxInt, true},
		"truncated without a limit": {Gzip(plain)[:20], math.MaxInt, false},
	} {
		got, err := decompress(tt.body, tt.limit)
		if (err == nil) != tt.want || tt.want && !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func TestPoolSizes(t *testing.T) {
	for n, capacity := range map[int]int{
		0: 256, 1: 256, 256: 256, 257: 512, 1024: 1024, 1025: 2048, 33 << 10: 64 << 10,
		2<<20 - 1: 2 << 20, 2 << 20: 2 << 20, 2<<20 + 1: 2<<20 + 1,
	} {
		b := Pool.Get(n)
		if len(*b) != n || cap(*b) != capacity {
			t.Errorf("Get(%d) has length %d and capacity %d, want capacity %d", n, len(*b), cap(*b), capacity)
		}
		Pool.Put(b)
	}
}

// A buffer that is not of the pool can be returned to it, and is never given out for more than it
// holds.
func TestPoolTakesForeignBuffers(t *testing.T) {
	for _, n := range []int{0, 100, 300, 511, 3 << 10, 3 << 20, 4 << 20} {
		b := make([]byte, n)
		Pool.Put(&b)
		if got := Pool.Get(n); len(*got) != n {
			t.Errorf("Get(%d) has length %d", n, len(*got))
		}
	}
}

func TestCodec(t *testing.T) {
	for _, n := range []int{0, 10, shared, 40 << 10, 3 << 20} {
		want := bytes.Repeat([]byte{'x'}, n)
		data, err := Codec{}.Marshal(wrapperspb.Bytes(want))
		if err != nil {
			t.Fatal(err)
		}
		got := &wrapperspb.BytesValue{}
		err = Codec{}.Unmarshal(data, got)
		data.Free()
		other := Pool.Get(n + 8)
		clear(*other) // the decoded message shares no memory with the pool
		Pool.Put(other)
		if err != nil || !bytes.Equal(got.GetValue(), want) {
			t.Errorf("%d bytes came back as %d, %v", n, len(got.GetValue()), err)
		}
	}
}

func TestCodecRejectsOtherTypes(t *testing.T) {
	if _, err := (Codec{}).Marshal("text"); err == nil || !strings.Contains(err.Error(), "string") {
		t.Errorf("Marshal of a string: %v", err)
	}
	if err := (Codec{}).Unmarshal(mem.BufferSlice{}, new(int)); err == nil || !strings.Contains(err.Error(), "*int") {
		t.Errorf("Unmarshal to an int: %v", err)
	}
	if _, err := (Codec{}).Marshal(wrapperspb.String("\xff")); err == nil {
		t.Error("Marshal took a text that is not UTF-8")
	}
	if _, err := (Codec{}).Marshal(wrapperspb.String("\xff" + strings.Repeat("x", shared))); err == nil {
		t.Error("Marshal took a long text that is not UTF-8")
	}
}

// A client reads the queues that the broker reports. A client of RocketMQ reads a command without a
// content.
func TestReadyQueues(t *testing.T) {
	for _, queues := range [][]Queue{
		nil,
		{{Topic: "orders", Queue: 0}},
		{{Topic: "orders", Queue: -1}, {Topic: "payments", Queue: 7}, {Topic: "", Queue: 3}},
	} {
		read := &rmqpb.TelemetryCommand{}
		if err := proto.Unmarshal(encode(t, ReadyCommand(queues)), read); err != nil {
			t.Fatal(err)
		}
		if got := ReadyQueues(read); !slices.Equal(got, queues) {
			t.Errorf("%v were read as %v", queues, got)
		}
		if read.Ready = nil; read.GetCommand() != nil || !proto.Equal(read, &rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_OK}}) {
			t.Errorf("RocketMQ's clients read %v, want the status OK alone", read)
		}
	}
}

// The names are those that released clients and brokers use.
func TestNamesOfHeaders(t *testing.T) {
	got := []string{
		HeaderAuthorization, HeaderDateTime, HeaderClientID, HeaderLanguage, HeaderClientVersion, HeaderFeatures, HeaderReason, HeaderRepeat,
		HeaderLadder, HeaderSnooze, HeaderMaxBytes, HeaderReconsume, TrailerPushBack, TrailerPushBacks, TrailerRetry, TrailerWatched,
		FeatureBatch, FeaturePushBack, FeatureSuspend, FeatureDeadLetter, FeatureRetry, FeatureRepeat, FeatureSnooze, FeatureReconsume,
		FeatureQueues, FeaturePacked, FeatureTopics, FeatureWatch, FeatureBrief, FeatureHeartbeats,
	}
	want := strings.Fields("authorization x-mq-date-time x-mq-client-id x-mq-language x-mq-client-version x-tidegate-features " +
		"x-tidegate-reason x-tidegate-repeat x-tidegate-ladder x-tidegate-snooze x-tidegate-max-bytes x-tidegate-reconsume " +
		"grpc-retry-pushback-ms x-tidegate-pushback-topics x-tidegate-retry x-tidegate-watched batch pushback suspend deadletter " +
		"retry repeat snooze reconsume queues packed topics watch brief heartbeats")
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
