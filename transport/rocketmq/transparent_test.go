package rocketmq

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// gRPC repeats once a half message that certainly reached no server. Neither gRPC nor the client
// repeats one that may have reached it.
//
// RocketMQ: sending retry and throttling: "For transaction messages, only [transparent
// retries](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#transparent-retries)
// are performed."
func TestHalfMessagesAreRetriedTransparentlyOnly(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(net.Conn) // of the first connection, at its first request
		sent int            // half messages that the server gets
	}{
		"not processed": {goAway, 1},
		"fate unknown":  {func(c net.Conn) { c.Close() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				a, b := newServer(t, n, testAddr), newServer(t, n, otherAddr)
				a.route = func() *rmqpb.QueryRouteResponse {
					return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(otherAddr, "b", 1)}
				}
				var dials atomic.Int32
				c := newClient(t, n, func(o *Options) {
					o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
						if addr != otherAddr || dials.Add(1) > 1 {
							return n.dial(ctx, addr)
						}
						ours, theirs := net.Pipe()
						go untilRequest(ours, tt.end)
						return theirs, nil
					}
				})
				r := c.SendHalf(t.Context(), message("1"))
				if (r.Err == nil) != (tt.sent == 1) {
					t.Errorf("error %v", r.Err)
				}
				if e, _ := errors.AsType[*tidegate.Error](r.Err); tt.sent == 0 && (e == nil || !e.MaybeStored) {
					t.Errorf("error %v, want one with MaybeStored", r.Err)
				}
				time.Sleep(time.Minute)
				if calls := b.of("SendMessage"); len(calls) != tt.sent {
					t.Errorf("the server got %d half messages, want %d", len(calls), tt.sent)
				}
			})
		})
	}
}

// untilRequest serves an HTTP/2 client until its first request, and then calls end.
func untilRequest(c net.Conn, end func(net.Conn)) {
	defer c.Close()
	const preface, frameSettings, frameHeaders = 24, 4, 1
	settings := []byte{0, 0, 0, frameSettings, 0, 0, 0, 0, 0}
	go c.Write(settings) // a pipe has no buffer, and the client writes first
	if _, err := io.CopyN(io.Discard, c, preface); err != nil {
		return
	}
	var head [9]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		length := int64(binary.BigEndian.Uint32(head[:4]) >> 8)
		if _, err := io.CopyN(io.Discard, c, length); err != nil {
			return
		}
		if head[3] == frameHeaders {
			end(c)
			_, _ = io.Copy(io.Discard, c)
			return
		}
	}
}

// goAway reports to the client that no stream was processed.
func goAway(c net.Conn) {
	_, _ = c.Write([]byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
}
