package wire

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A response is encoded completely before its memory is used again, and a new one has nothing of
// it.
func TestSendResponsesUseMemoryAgain(t *testing.T) {
	sizes := []int{minReused, 1, minReused + 9, 0, minReused, minReused - 1, maxReused, maxReused + 1, minReused}
	for round, n := range sizes {
		r, want := NewSendResponse(n), &rmqpb.SendMessageResponse{Status: MultipleResults}
		if r.Status != nil || len(r.Entries) != n || proto.Size(r) != 2*n { // 2 is the size of an empty entry
			t.Fatalf("a new response with %d entries is %v", n, r)
		}
		r.Status = MultipleResults
		for i, e := range r.Entries {
			e.Status, e.MessageId, e.TransactionId, e.Offset, e.RecallHandle = OK, fmt.Sprint(round, i), "t", int64(i), "r"
			want.Entries = append(want.Entries, proto.CloneOf(e))
		}
		place, err := transit.New("places", 1<<20, 0).Take(nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		placed := &Placed{Message: r, Place: place, Last: true}
		data, err := Codec{}.Marshal(placed)
		if err != nil {
			t.Fatal(err)
		}
		if placed.Message != nil {
			t.Errorf("%d entries: the encoded response is still %v", n, placed.Message)
		}
		got := &rmqpb.SendMessageResponse{}
		if err := proto.Unmarshal(data.Materialize(), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%d entries: encoded %v, %v; want %v", n, got, err, want)
		}
	}
}
