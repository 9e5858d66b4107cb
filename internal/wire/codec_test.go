package wire

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
