package server

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// Metadata that tidegate's broker and its SDK agree on.
const (
	headerFeatures  = "x-tidegate-features"
	headerReason    = "x-tidegate-reason"
	trailerPushBack = "grpc-retry-pushback-ms"
)

var features = metadata.Pairs(headerFeatures, "batch, pushback, suspend, deadletter")

// answer turns a request's failure into what the client gets: a status inside
// the answer or, where there can be no answer, a gRPC status.
func (s *Server) answer(ctx context.Context, op string, err error) (*rmqpb.Status, error) {
	e, known := errors.AsType[*tidegate.Error](err)
	switch {
	case known && e.Code != 0:
		if e.Code == tidegate.CodeInternalServerError && e.Err != nil && !errors.Is(err, tidegate.ErrClosed) {
			s.log.ErrorContext(ctx, "request failed", "op", op, "error", err) // the disk, most likely
		}
		return wire.StatusOf(e), nil
	case ctx.Err() != nil:
		// The client gave up, or its time is over: it reads no answer.
		return nil, status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, tidegate.ErrClosed):
		return nil, status.Error(codes.Unavailable, "the broker is closed")
	}
	s.log.ErrorContext(ctx, "request failed", "op", op, "error", err)
	return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: op + ": " + err.Error()}, nil
}

// pushBack returns the trailer that tells d, rounded up to a millisecond.
func pushBack(d time.Duration) metadata.MD {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return metadata.Pairs(trailerPushBack, strconv.FormatInt(int64(ms), 10))
}

func setPushBack(ctx context.Context, d time.Duration) {
	if d > 0 {
		// It fails only if the answer is on its way, which is after this.
		_ = grpc.SetTrailer(ctx, pushBack(d))
	}
}
