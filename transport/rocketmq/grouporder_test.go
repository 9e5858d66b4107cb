package rocketmq

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// A message group stays in its queue after any failure that another attempt may cure, although
// other messages avoid the server: a message in another queue could overtake its predecessors.
//
// A message group waits for the server of its queue.
func TestGroupKeepsItsQueueAfterAFailure(t *testing.T) {
	type sending = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error)
	refuse := func(code rmqpb.Code) sending {
		return func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: code}}, nil
		}
	}
	broken := func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		return nil, status.Error(codes.Unavailable, "broken")
	}
	silent := func(ctx context.Context, _ *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, failing := range map[string]sending{
		"50001": refuse(rmqpb.Code_INTERNAL_SERVER_ERROR), "50400": refuse(rmqpb.Code_PROXY_TIMEOUT),
		"42900": refuse(rmqpb.Code_TOO_MANY_REQUESTS), "40402": refuse(rmqpb.Code_TOPIC_NOT_FOUND),
		"connection lost": broken, "no response": silent,
	} {
		for _, byLane := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", by lane: ", byLane), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork()
					a, b := newServer(t, n, testAddr), newServer(t, n, otherAddr)
					a.route = func() *rmqpb.QueryRouteResponse {
						return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: append(queues(testAddr, "a", 4), queues(otherAddr, "b", 4)...)}
					}
					c := newClient(t, n, nil)
					send := func(group string, avoid []string) (endpoint string, err error) {
						m := inGroup(tidegate.NewMessageID(), group)
						if !byLane {
							r := c.Send(t.Context(), []*tidegate.Message{m})[0]
							return r.Receipt.Endpoint, r.Err
						}
						lane, err := c.Lane(t.Context(), transport.LaneRequest{Topic: m.Topic, MessageGroup: group, Avoid: avoid})
						if err != nil {
							return "", err
						}
						return lane.Endpoint, c.SendLane(t.Context(), lane, []*tidegate.Message{m})[0].Err
					}
					for g := range 8 {
						group := fmt.Sprint("group", g)
						home, err := send(group, nil)
						if err != nil {
							t.Fatal(err)
						}
						s := map[string]*server{testAddr: a, otherAddr: b}[home]
						synctest.Wait() // the handlers of earlier requests have ended
						good := s.send
						s.send = failing
						for range 3 {
							if _, err := send(group, []string{home}); err == nil {
								t.Fatal("the send did not fail")
							}
						}
						synctest.Wait()
						s.send = good
						if at, err := send(group, []string{home}); err != nil || at != home {
							t.Errorf("%s: sent to %s, %v; want %s as before", group, at, err, home)
						}
						used := map[string]bool{}
						for _, s := range []*server{a, b} {
							for _, call := range s.of("SendMessage") {
								x := call.req.(*rmqpb.SendMessageRequest).GetMessages()[0].GetSystemProperties()
								if x.GetMessageGroup() == group {
									used[fmt.Sprint(s.addr, "/", x.GetQueueId())] = true
								}
							}
						}
						if len(used) != 1 {
							t.Errorf("%s: sent to the queues %v, want one", group, used)
						}
						time.Sleep(time.Minute) // the route is queried again, and the server serves others again
					}
				})
			})
		}
	}
}
