package rocketmq

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A recall is one attempt, and stores nothing: MaybeStored is false also if its response is lost.
// RocketMQ 5.2 does not support recalls; later versions reject them by default.
func TestRecall(t *testing.T) {
	status := func(c rmqpb.Code) func(context.Context) (*rmqpb.RecallMessageResponse, error) {
		return func(context.Context) (*rmqpb.RecallMessageResponse, error) {
			return &rmqpb.RecallMessageResponse{Status: &rmqpb.Status{Code: c}, MessageId: "m"}, nil
		}
	}
	for _, tt := range []struct {
		name   string
		recall func(context.Context) (*rmqpb.RecallMessageResponse, error)
		want   error // nil for a success
		maybe  bool
	}{
		{"recalled", status(rmqpb.Code_OK), nil, false},
		{"delivered before", status(rmqpb.Code_NOT_FOUND), tidegate.ErrNotFound, false},
		{"an internal error", status(rmqpb.Code_INTERNAL_SERVER_ERROR), tidegate.ErrUnavailable, false},
		{"a lost response", func(ctx context.Context) (*rmqpb.RecallMessageResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, tidegate.ErrUnavailable, false},
		{"switched off, as by default in RocketMQ 5.3 to 5.5", func(context.Context) (*rmqpb.RecallMessageResponse, error) {
			return &rmqpb.RecallMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: "recall failed, operation is forbidden"}}, nil
		}, tidegate.ErrForbidden, false},
		{"a server without recalls", nil, &tidegate.Error{Code: tidegate.CodeNotImplemented}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.recall = tt.recall
				id, err := newClient(t, n, nil).Recall(t.Context(), "t", "handle")
				if tt.want == nil {
					if err != nil || id != "m" {
						t.Errorf("message %q, %v", id, err)
					}
					return
				}
				e, ok := errors.AsType[*tidegate.Error](err)
				code, coded := errors.AsType[*tidegate.Error](tt.want)
				if !ok || e.MaybeStored != tt.maybe || coded && e.Code != code.Code || !coded && !errors.Is(err, tt.want) || id != "" {
					t.Errorf("%#v, want %v with MaybeStored %t", err, tt.want, tt.maybe)
				}
				if calls := len(s.of("RecallMessage")); calls != 1 {
					t.Errorf("%d requests, want 1", calls)
				}
			})
		})
	}
}
