package requests

import (
	"fmt"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// The end of a stream has the gRPC code of its reason, and never ResourceExhausted, to which
// clients respond with waiting.
func TestEndOf(t *testing.T) {
	want := map[rmqpb.Code]codes.Code{
		rmqpb.Code_UNAUTHORIZED: codes.Unauthenticated, rmqpb.Code_FORBIDDEN: codes.PermissionDenied, rmqpb.Code_NOT_FOUND: codes.NotFound,
		rmqpb.Code_TOPIC_NOT_FOUND: codes.NotFound, rmqpb.Code_CONSUMER_GROUP_NOT_FOUND: codes.NotFound,
		rmqpb.Code_BAD_REQUEST: codes.InvalidArgument, rmqpb.Code_ILLEGAL_TOPIC: codes.InvalidArgument, rmqpb.Code_CLIENT_ID_REQUIRED: codes.InvalidArgument,
		rmqpb.Code_PAYLOAD_TOO_LARGE: codes.InvalidArgument, rmqpb.Code_PRECONDITION_FAILED: codes.FailedPrecondition,
		rmqpb.Code_TOO_MANY_REQUESTS: codes.Unavailable, rmqpb.Code_NOT_IMPLEMENTED: codes.Unimplemented, rmqpb.Code_UNSUPPORTED: codes.Unimplemented,
		rmqpb.Code_INTERNAL_SERVER_ERROR: codes.Internal,
	}
	for code := range rmqpb.Code_name {
		st := &rmqpb.Status{Code: rmqpb.Code(code), Message: "the reason"}
		got := status.Convert(EndOf(st))
		if c, ok := want[st.GetCode()]; ok && got.Code() != c || got.Code() == codes.ResourceExhausted || got.Code() == codes.OK || got.Message() != "the reason" {
			t.Errorf("%v becomes %v, want %v", st.GetCode(), got, want[st.GetCode()])
		}
	}
}

// A response is encoded completely before its memory is used again, and a new one has nothing of
// it.
func TestSendResponsesUseMemoryAgain(t *testing.T) {
	sizes := []int{16, 1, 16 + 9, 0, 16, 16 - 1, 1024, 1024 + 1, 16}
	for round, n := range sizes {
		r, want := wire.NewSendResponse(n), &rmqpb.SendMessageResponse{Status: MultipleResults}
		if r.Status != nil || len(r.Entries) != n || proto.Size(r) != 2*n { // 2 is the size of an empty entry
			t.Fatalf("a new response with %d entries is %v", n, r)
		}
		r.Status = MultipleResults
		for i, e := range r.Entries {
			e.Status, e.MessageId, e.TransactionId, e.Offset, e.RecallHandle = wire.OK, fmt.Sprint(round, i), "t", int64(i), "r"
			want.Entries = append(want.Entries, proto.CloneOf(e))
		}
		place := assert.Value(admission.NewBudget("places", 1<<20, 0).Take(nil, 1))(t)
		placed := &Placed{Message: r, Place: place, Last: true}
		data := assert.Value(Codec{}.Marshal(placed))(t)
		assert.That(t, placed.Message == nil, "%d entries: the encoded response is still %v", n, placed.Message)
		got := &rmqpb.SendMessageResponse{}
		if err := proto.Unmarshal(data.Materialize(), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%d entries: encoded %v, %v; want %v", n, got, err, want)
		}
	}
}
