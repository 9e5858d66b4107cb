package wire

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate/internal/rmqpb"
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
