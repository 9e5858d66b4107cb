package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// topicsOf returns the topics of a request, each once, in order.
func topicsOf(r *rmqpb.SendMessageRequest) (list []string) {
	for _, m := range r.GetMessages() {
		list = append(list, m.GetTopic().GetName())
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// sendToEach sends a message to each topic at the same time, from a client that knows the server,
// and returns the errors.
func sendToEach(t *testing.T, c *rocketmq.Client, topics ...string) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lanes := make([]transport.Lane, len(topics))
	for i, topic := range topics {
		var err error
		if lanes[i], err = c.Lane(ctx, transport.LaneRequest{Topic: topic}); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, len(topics))
	var sending sync.WaitGroup
	for i, topic := range topics {
		sending.Go(func() {
			m := &tidegate.Message{ID: "id-" + topic, Topic: topic, Body: []byte("x")}
			r := c.SendLane(ctx, lanes[i], []*tidegate.Message{m})[0]
			if errs[i] = r.Err; r.Err == nil && (r.Receipt.MessageID != m.ID || r.Receipt.Topic != topic) {
				t.Errorf("%s has the receipt %+v", topic, r.Receipt)
			}
		})
	}
	sending.Wait()
	return errs
}

func topicNames(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("t", i))
	}
	return list
}

// Sends of many topics share requests if the server announces that. A RocketMQ never gets such a
// request.
func TestTopicsShareRequests(t *testing.T) {
	for features, requests := range map[string]int{"batch, topics": 3, "batch": 20, "": 20} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.features = features
			s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				time.Sleep(10 * time.Millisecond)
				return sentAll(r), nil
			}
			for _, err := range sendToEach(t, newClient(t, n, nil), topicNames(20)...) {
				if err != nil {
					t.Error(err)
				}
			}
			calls := s.of("SendMessage")
			if len(calls) != requests {
				t.Errorf("features %q: %d requests; want %d", features, len(calls), requests)
			}
			for _, c := range calls {
				several := len(topicsOf(c.req.(*rmqpb.SendMessageRequest))) > 1
				if announced := slices.Contains(c.md.Get(wire.HeaderFeatures), wire.FeatureTopics); several && !announced {
					t.Errorf("a request of several topics has the features %q", c.md.Get(wire.HeaderFeatures))
				}
			}
		})
	}
}

// A topic that is throttled in a shared request has its own time to wait.
func TestSharedPushBacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = "batch, topics"
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			time.Sleep(10 * time.Millisecond)
			res := sentAll(r)
			waits := ""
			for i, m := range r.GetMessages() {
				wait := "0"
				if name := m.GetTopic().GetName(); name == "t5" || name == "t6" {
					res.Status = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS}
					res.Entries[i].Status = &rmqpb.Status{Code: rmqpb.Code_TOO_MANY_REQUESTS}
					wait = map[string]string{"t5": "500", "t6": "700"}[name]
				}
				waits += map[bool]string{true: "", false: ","}[i == 0] + wait
			}
			// A message that finds no request under way is sent alone.
			key := "grpc-retry-pushback-ms"
			if len(r.GetMessages()) > 1 {
				key = "x-tidegate-pushback-topics"
			}
			grpc.SetTrailer(ctx, metadata.Pairs(key, waits))
			return res, nil
		}
		for i, err := range sendToEach(t, newClient(t, n, nil), topicNames(10)...) {
			want := map[int]time.Duration{5: 500 * time.Millisecond, 6: 700 * time.Millisecond}[i]
			if got := tidegate.RetryAfter(err); got != want || (err != nil) != (want > 0) {
				t.Errorf("t%d: %v, wait %v; want %v", i, err, got, want)
			}
		}
	})
}

// A topic without permission, which fails a whole request, does not fail the others.
func TestOneTopicFailsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = "batch, topics"
		s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			time.Sleep(10 * time.Millisecond)
			if slices.Contains(topicsOf(r), "secret") {
				return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_FORBIDDEN}}, nil
			}
			return sentAll(r), nil
		}
		topics := append(topicNames(10), "secret")
		for i, err := range sendToEach(t, newClient(t, n, nil), topics...) {
			e, _ := errors.AsType[*tidegate.Error](err)
			switch secret := topics[i] == "secret"; {
			case secret && (e == nil || e.Code != tidegate.CodeForbidden || e.Subject != "secret"):
				t.Errorf("secret: %v", err)
			case !secret && err != nil:
				t.Errorf("%s: %v", topics[i], err)
			}
		}
	})
}

// A response that is lost may have stored the messages of all topics. Each call ends with its ctx.
func TestLostSharedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = "batch, topics"
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			time.Sleep(10 * time.Millisecond)
			if len(topicsOf(r)) > 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return sentAll(r), nil
		}
		c := newClient(t, n, nil)
		start := time.Now()
		lost := 0
		for _, err := range sendToEach(t, c, topicNames(10)...) {
			if err == nil {
				continue
			}
			lost++
			e, _ := errors.AsType[*tidegate.Error](err)
			if e == nil || !e.MaybeStored || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, MaybeStored %v; want the end of the ctx and MaybeStored", err, e != nil && e.MaybeStored)
			}
		}
		if lost != 8 || time.Since(start) != 10*time.Second {
			t.Errorf("%d sends had no response, after %v; want 8 after 10 s", lost, time.Since(start))
		}
	})
}
