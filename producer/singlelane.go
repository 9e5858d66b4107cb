package producer

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A single makes a LaneSender of a Sender: it has one lane, with one message in a request.
type single struct{ transport.Sender }

func (single) Lane(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
	return transport.Lane{MaxMessages: 1}, nil
}

func (s single) SendLane(ctx context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return s.Send(ctx, msgs)
}
