package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A request of exactly its limit is read, and one byte more is not.
func TestLargestRequests(t *testing.T) {
	in := &Intake{MaxSend: 5 << 20}
	for _, c := range []struct {
		request proto.Message
		limit   int64
	}{
		{&rmqpb.SendMessageRequest{}, 5 << 20},
		{&rmqpb.AckMessageRequest{}, 1000 << 10},
		{&rmqpb.QueryRouteRequest{}, 64 << 10},
	} {
		for _, more := range []int64{0, 1} {
			refused, err := in.checkLength(c.request, c.limit+more)
			if got := refused != nil || err != nil; got != (more > 0) {
				t.Errorf("%T of %d bytes: %v, %v", c.request, c.limit+more, refused, err)
			}
		}
	}
}
