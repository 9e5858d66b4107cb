package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// runThrough starts a push consumer whose client is a rogue's, until stop is called.
func runThrough(t *testing.T, b *brokertest.Broker, r *rogue, h consumer.Handler, o consumer.PushOptions) (stop func()) {
	t.Helper()
	return runPush(t, r.client(t, b), h, o)
}

// A server sends frames that are no protobuf, ends streams too early, with an error or as if they
// were complete, delivers a message twice, or responds to acknowledgements with different results.
// Every message is handled and none becomes a dead letter. Without double deliveries no message
// uses the retry schedule.
func TestServerThatMisbehaves(t *testing.T) {
	const messages = 300
	for name, misbehave := range map[string]func(*testing.T, *rogue, func(percent int) bool){
		"garbage frames": func(_ *testing.T, r *rogue, chance func(int) bool) {
			r.response = func(method string, frame []byte) ([][]byte, error) {
				if strings.HasSuffix(method, "Telemetry") || !chance(20) {
					return [][]byte{frame}, nil
				}
				return [][]byte{[]byte("\xff\xff\xffno protobuf")}, nil
			}
		},
		"streams that break": func(_ *testing.T, r *rogue, chance func(int) bool) {
			r.response = func(method string, frame []byte) ([][]byte, error) {
				switch {
				case !chance(20):
					return [][]byte{frame}, nil
				case chance(50):
					return [][]byte{frame}, errBroken
				}
				return nil, errBroken
			}
		},
		"streams that end half-way": func(_ *testing.T, r *rogue, chance func(int) bool) {
			r.plain = true // a frame for each message
			r.response = func(method string, frame []byte) ([][]byte, error) {
				if strings.HasSuffix(method, "ReceiveMessage") && chance(10) {
					return [][]byte{frame}, errEndOK
				}
				return [][]byte{frame}, nil
			}
		},
		"messages given twice": func(_ *testing.T, r *rogue, chance func(int) bool) {
			r.plain = true
			r.response = func(method string, frame []byte) ([][]byte, error) {
				if strings.HasSuffix(method, "ReceiveMessage") && chance(30) {
					return [][]byte{frame, frame}, nil
				}
				return [][]byte{frame}, nil
			}
		},
		"different results": func(t *testing.T, r *rogue, chance func(int) bool) {
			r.response = func(method string, frame []byte) ([][]byte, error) {
				if !strings.HasSuffix(method, "AckMessage") {
					return [][]byte{frame}, nil
				}
				return [][]byte{edit(t, frame, &rmqpb.AckMessageResponse{}, func(m *rmqpb.AckMessageResponse) {
					for _, e := range m.Entries { // the broker sends them to plain clients only
						if chance(30) {
							m.Status = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS}
							e.Status = &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: "by the test"}
						}
					}
				})}, nil
			}
			r.plain = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				var mu sync.Mutex
				misdeeds := 0
				chance := func(percent int) bool {
					mu.Lock()
					defer mu.Unlock()
					now := rnd.IntN(100) < percent
					if now {
						misdeeds++
					}
					return now
				}
				r := &rogue{}
				misbehave(t, r, chance)
				b.CreateTopic("orders", settings.Topic{})
				b.CreateGroup("billing", settings.Group{MaxAttempts: -1})
				var sent []*tidegate.Message
				for n := range messages {
					sent = append(sent, Order(n))
				}
				b.Send(sent...)
				l := newLedger()
				stop := runThrough(t, b, r, func(_ context.Context, d *tidegate.Delivery) error {
					done := l.Begin(d.Body)
					<-time.After(10 * time.Millisecond)
					done()
					return nil
				}, consumer.PushOptions{OnDelivery: func(o consumer.Outcome) {
					if o.Disposition == consumer.Retried || o.Disposition == consumer.DeadLettered {
						t.Errorf("no handler failed, but %+v", o)
					}
				}})
				b.WaitIdle("billing", "orders")
				stop()
				if n, _ := l.Counts(); n != messages || misdeeds == 0 {
					t.Errorf("%d of %d messages were handled, the server misbehaved %d times", n, messages, misdeeds)
				}
				if s := b.Stats("billing", "orders"); s.DeadLetters != 0 {
					t.Errorf("%d dead letters", s.DeadLetters)
				}
			})
		})
	}
}

// A server that forgets its clients ends their sessions, and rejects their requests until they send
// their settings again. The consumer still handles all messages, and Run continues.
func TestServerThatForgetsItsClients(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		var mu sync.Mutex
		known, forgot := true, 0
		r := &rogue{}
		refusal := &rmqpb.Status{Code: rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, Message: "cannot find the channel of this client"}
		r.request = func(method string, req []byte) (changed, answer []byte) {
			mu.Lock()
			defer mu.Unlock()
			var res proto.Message
			switch _, op, _ := strings.Cut(method[1:], "/"); op {
			case "Telemetry":
				known = true
				return req, nil
			case "Heartbeat":
				res = &rmqpb.HeartbeatResponse{Status: refusal}
			case "ReceiveMessage":
				res = &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: refusal}}
			case "AckMessage":
				res = &rmqpb.AckMessageResponse{Status: refusal}
			case "ChangeInvisibleDuration":
				res = &rmqpb.ChangeInvisibleDurationResponse{Status: refusal}
			}
			if known || res == nil {
				return req, nil
			}
			forgot++
			answer, err := proto.Marshal(res)
			if err != nil {
				t.Error(err)
			}
			return nil, answer
		}
		l := newLedger()
		stop := runThrough(t, b, r, func(_ context.Context, d *tidegate.Delivery) error {
			defer l.Begin(d.Body)()
			<-time.After(time.Minute)
			return nil
		}, consumer.PushOptions{OnDelivery: func(o consumer.Outcome) {
			if o.Disposition != consumer.Acked {
				t.Errorf("%+v", o)
			}
		}})
		for n := range 20 {
			b.Send(Order(n))
			<-time.After(time.Duration(rand.Int64N(int64(time.Minute))))
			mu.Lock()
			known = false
			mu.Unlock()
		}
		b.WaitIdle("billing", "orders")
		stop()
		if n, extra := l.Counts(); n != 20 || extra != 0 || forgot == 0 {
			t.Errorf("%d of 20 messages were handled, %d of them again; %d requests were refused", n, extra, forgot)
		}
	})
}

// The clock of a server may differ by minutes. Retries come exactly when they are due, long
// handlers keep their messages, and no message is handled by two handlers at the same time.
func TestClocksThatDiffer(t *testing.T) {
	for _, off := range []time.Duration{-10 * time.Minute, -3 * time.Second, 3 * time.Second, 10 * time.Minute} {
		for _, told := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, invisible time announced: %v", off, told), func(t *testing.T) {
				brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
					b.CreateTopic("orders", settings.Topic{})
					shift := func(at *timestamppb.Timestamp) *timestamppb.Timestamp {
						if at == nil {
							return nil
						}
						return timestamppb.New(at.AsTime().Add(off))
					}
					r := &rogue{response: func(method string, frame []byte) ([][]byte, error) {
						if !strings.HasSuffix(method, "ReceiveMessage") {
							return [][]byte{frame}, nil
						}
						return [][]byte{edit(t, frame, &rmqpb.ReceiveMessageResponse{}, func(m *rmqpb.ReceiveMessageResponse) {
							if c, ok := m.Content.(*rmqpb.ReceiveMessageResponse_DeliveryTimestamp); ok {
								c.DeliveryTimestamp = shift(c.DeliveryTimestamp)
							}
							for _, m := range messagesOf(m) {
								sys := m.SystemProperties
								sys.BornTimestamp, sys.StoreTimestamp = shift(sys.BornTimestamp), shift(sys.StoreTimestamp)
								if !told {
									sys.InvisibleDuration = nil
								}
							}
						})}, nil
					}}
					l := newLedger()
					var mu sync.Mutex
					var at []time.Duration
					begin := time.Now()
					stop := runThrough(t, b, r, func(ctx context.Context, d *tidegate.Delivery) error {
						defer l.Begin(d.Body)()
						if string(d.Body) == "0" {
							mu.Lock()
							defer mu.Unlock()
							if at = append(at, time.Since(begin)); len(at) < 4 {
								return errors.New("failed")
							}
							return nil
						}
						<-time.After(5 * time.Minute)
						return context.Cause(ctx)
					}, consumer.PushOptions{})
					b.Send(Order(0), Order(1), Order(2))
					b.WaitIdle("billing", "orders")
					stop()
					// RocketMQ: the retry schedule of unordered messages.
					want := []time.Duration{0, 10 * time.Second, 40 * time.Second, 100 * time.Second}
					for i := range at {
						if len(at) != len(want) || at[i] < want[i] || at[i] > want[i]+time.Second {
							t.Fatalf("delivered at %v, want %v", at, want)
						}
					}
					if n, extra := l.Counts(); n != 3 || extra != 3 || l.Overlap() != 0 {
						t.Errorf("%d messages were handled, %d times more; %d handlers overlapped", n, extra, l.Overlap())
					}
				})
			})
		}
	}
}

// Some handlers panic, block, ignore their contexts or return after the lease. The messages of the
// other handlers are handled once and at once; those of the bad handlers are retried.
func TestHandlersThatMisbehave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		var mu sync.Mutex
		var seen []consumer.Outcome
		l := newLedger()
		stop := runThrough(t, b, &rogue{}, func(ctx context.Context, d *tidegate.Delivery) error {
			defer l.Begin(d.Body)()
			if d.Attempt > 1 || len(d.Body) > 1 {
				return nil
			}
			switch string(d.Body) {
			case "0":
				panic("by the test")
			case "1": // blocks until its lease is lost
				<-ctx.Done()
				return context.Cause(ctx)
			case "2": // ignores its ctx and returns after the lease
				<-time.After(10 * time.Minute)
				return nil
			case "3": // works on within its lease
				<-time.After(50 * time.Second)
			}
			return nil
		}, consumer.PushOptions{
			Concurrency: 8, MaxExtension: 40 * time.Second, InvisibleDuration: 30 * time.Second,
			OnDelivery: func(o consumer.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, o)
			},
		})
		for n := range 100 {
			b.Send(Order(n))
		}
		<-time.After(time.Second)
		if n, _ := l.Counts(); n != 97 {
			t.Errorf("%d messages were handled in the first second, want 97: all but those whose handlers block", n)
		}
		b.WaitIdle("billing", "orders")
		<-time.After(10 * time.Minute)
		stop()
		got := map[consumer.Disposition]int{}
		for _, o := range seen {
			got[o.Disposition]++
		}
		if got[consumer.Acked] != 100 || got[consumer.Retried] != 1 || got[consumer.LeaseLost] != 2 || len(got) != 3 {
			t.Errorf("outcomes %v, want 100 acknowledged, 1 retried and 2 lost", got)
		}
		if s := b.Stats("billing", "orders"); s.DeadLetters != 0 {
			t.Errorf("%d dead letters", s.DeadLetters)
		}
	})
}
