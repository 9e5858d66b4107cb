package rocketmq_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

type receiveStream = rmqpb.MessagingService_ReceiveMessageServer

func sendStatus(st receiveStream, c rmqpb.Code) {
	st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: &rmqpb.Status{Code: c, Message: "text"}}})
}

func sendMessage(st receiveStream, change func(*rmqpb.Message)) {
	st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: delivered(change)}})
}

func sendTime(st receiveStream, at time.Time) {
	st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.New(at)}})
}

func empty(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
	sendStatus(st, rmqpb.Code_MESSAGE_NOT_FOUND)
	sendTime(st, time.Now())
	return nil
}

var request1 = transport.ReceiveRequest{
	Group: "g", Topic: "t", Queue: transport.AnyQueue, Push: true, Filter: tidegate.Filter{Expression: "a||b"}, Max: 16,
	InvisibleDuration: 30 * time.Second, Wait: 20 * time.Second, AttemptID: "att",
}

func TestReceive(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		var left time.Duration
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			at, _ := st.Context().Deadline()
			left = time.Until(at)
			sendTime(st, time.Now().Add(-time.Second)) // any order will do
			sendMessage(st, nil)
			sendStatus(st, rmqpb.Code_OK)
			sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.ReceiptHandle = new("h2") })
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // the server does not learn it
		defer cancel()
		list, err := c.Receive(ctx, request1)
		assert.MustThat(t, err == nil && len(list) == 2, "%v, %v", list, err)
		d := list[0]
		if d.ConsumerGroup != "g" || d.Endpoint != testAddr || d.Handle != "h" || list[1].Handle != "h2" ||
			!d.InvisibleUntil.Equal(time.Now().Add(29*time.Second)) {
			t.Errorf("%+v", d)
		}
		assert.Equal(t, "the server has", left, 23*time.Second)
		r := s.of("receive")[0].req.(*rmqpb.ReceiveMessageRequest)
		if r.GetGroup().GetName() != "g" || r.GetMessageQueue().GetId() != -1 || r.GetMessageQueue().GetBroker().GetName() != "broker-a" ||
			r.GetFilterExpression().GetExpression() != "a||b" || r.GetFilterExpression().GetType() != rmqpb.FilterType_TAG ||
			r.GetBatchSize() != 16 || r.GetInvisibleDuration().AsDuration() != 30*time.Second ||
			r.GetLongPollingTimeout().AsDuration() != 20*time.Second || r.GetAttemptId() != "att" || r.GetAutoRenew() {
			t.Errorf("request %v", r)
		}
		set := s.of("settings")
		e := set[0].req.(*rmqpb.TelemetryCommand).GetSettings().GetSubscription().GetSubscriptions()[0].GetExpression()
		assert.That(t, len(set) == 1 && e.GetExpression() == "a||b", "settings %v", set)
	})
}

func TestReceiveOutcomes(t *testing.T) {
	for name, tt := range map[string]struct {
		serve func(receiveStream) error
		n     int
		code  tidegate.Code
		is    error
		after time.Duration
		retry time.Duration
		back  int // released messages
	}{
		"empty": {serve: func(st receiveStream) error { return empty(nil, st) }},
		"throttled": {serve: func(st receiveStream) error {
			st.SetTrailer(metadata.Pairs(wire.TrailerPushBack, "700"))
			sendStatus(st, rmqpb.Code_TOO_MANY_REQUESTS)
			return nil
		}, code: 42900, is: tidegate.ErrThrottled, retry: 700 * time.Millisecond},
		"no frame":         {serve: func(receiveStream) error { return nil }, code: 50001, is: tidegate.ErrUnavailable},
		"empty frame":      {serve: func(st receiveStream) error { return st.Send(&rmqpb.ReceiveMessageResponse{}) }, code: 50001},
		"messages, silent": {serve: func(st receiveStream) error { sendMessage(st, nil); return nil }, n: 1},
		"packed": {serve: func(st receiveStream) error {
			st.Send(&rmqpb.ReceiveMessageResponse{Packed: []*rmqpb.Message{delivered(nil), delivered(nil)}})
			return st.Send(&rmqpb.ReceiveMessageResponse{
				Content: &rmqpb.ReceiveMessageResponse_Status{Status: ok}, Packed: []*rmqpb.Message{delivered(nil)},
			})
		}, n: 3},
		"broken before": {serve: func(receiveStream) error { return status.Error(codes.Unavailable, "x") }, is: tidegate.ErrUnavailable},
		"broken after": {serve: func(st receiveStream) error {
			sendMessage(st, nil)
			return status.Error(codes.Unavailable, "x")
		}, is: tidegate.ErrUnavailable, back: 1},
		"refused after": {serve: func(st receiveStream) error {
			sendMessage(st, nil)
			sendMessage(st, nil)
			sendStatus(st, rmqpb.Code_INTERNAL_SERVER_ERROR)
			return nil
		}, code: 50001, back: 2},
		"never ends": {serve: func(st receiveStream) error {
			<-st.Context().Done()
			return status.FromContextError(st.Context().Err()).Err()
		}, is: tidegate.ErrUnavailable, after: 23 * time.Second},
		"corrupted": {serve: func(st receiveStream) error {
			sendStatus(st, rmqpb.Code_OK)
			sendMessage(st, func(m *rmqpb.Message) { m.Body = []byte("hallo") })
			sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.ReceiptHandle = nil })
			sendMessage(st, nil)
			return nil
		}, n: 1},
		"no topic": {serve: func(st receiveStream) error {
			sendStatus(st, rmqpb.Code_OK)
			sendMessage(st, func(m *rmqpb.Message) { m.Topic = nil })
			return nil
		}, n: 1},
		"too large": {serve: func(st receiveStream) error {
			sendMessage(st, func(m *rmqpb.Message) { m.Body = make([]byte, 1<<20) })
			sendMessage(st, nil)
			return nil
		}, n: 1},
		"nothing but too large": {serve: func(st receiveStream) error {
			sendMessage(st, func(m *rmqpb.Message) { m.Body = make([]byte, 1<<20) })
			return nil
		}},
		// This message cannot even be skipped. It neither ends the consumer nor makes the server
		// count as broken.
		"far too large": {serve: func(st receiveStream) error {
			sendMessage(st, nil)
			sendMessage(st, func(m *rmqpb.Message) { m.Body = make([]byte, 64<<20+64<<10) })
			return nil
		}, is: transport.ErrUnreadable, back: 1},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error { return tt.serve(st) }
			c := newClient(t, s.net, func(o *rocketmq.Options) { o.MaxReceiveSize = 100 << 10 })
			begin := time.Now()
			once := request1
			once.AttemptID = "" // it will not be repeated
			list, err := c.Receive(t.Context(), once)
			for _, d := range list {
				assert.Equal(t, "topic: it could not be settled", d.Topic, request1.Topic)
				assert.That(t, d.ID == "id" && string(d.Body) == "hello" && d.Endpoint == testAddr && d.ConsumerGroup == "g", "%+v", d)
			}
			assert.MustThat(t, len(list) == tt.n && (err != nil) == (tt.code != 0 || tt.is != nil) && time.Since(begin) == tt.after,
				"%d messages, %v, after %v", len(list), err, time.Since(begin))
			if e, isErr := errors.AsType[*tidegate.Error](err); isErr && (e.Code != tt.code || e.RetryAfter != tt.retry || tt.is != nil && !errors.Is(e, tt.is)) {
				t.Errorf("%+v", e)
			}
			class := tidegate.Classify(err)
			assert.That(t, class != tidegate.ClassPermanent, "%v is %v: it would end a push consumer", err, class)
			synctest.Wait()
			back := s.of("ChangeInvisibleDuration")
			assert.Equal(t, "messages released", len(back), tt.back)
			for _, b := range back {
				if r := b.req.(*rmqpb.ChangeInvisibleDurationRequest); r.GetInvisibleDuration().AsDuration() != 0 || !r.GetSuspend() || r.GetReceiptHandle() != "h" {
					t.Errorf("release: %v", r)
				}
			}
		})
	}
}

// A receive that is repeated with its attempt ID returns the same messages, with some servers with
// the same handles. A release of the messages after the first receive broke off would take them
// from the handlers that have them by then.
func TestRepeatedReceiveReleasesNothing(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		receives, given := 0, map[string]time.Duration{}
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			receives++
			for _, h := range []string{"h1", "h2"} {
				sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.ReceiptHandle = &h })
			}
			if receives == 1 {
				return status.Error(codes.Unavailable, "connection reset")
			}
			sendStatus(st, rmqpb.Code_OK)
			return nil
		}
		s.change = func(r *rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
			time.Sleep(3 * time.Second)
			given[r.GetReceiptHandle()] = time.Since(s.began)
			return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
		}
		if list, err := c.Receive(t.Context(), request1); err == nil {
			t.Fatalf("%d messages of a stream that broke off", len(list))
		}
		list, err := c.Receive(t.Context(), request1)
		assert.MustThat(t, err == nil && len(list) == 2 && list[0].Handle == "h1" && list[1].Handle == "h2",
			"%d messages, %v", len(list), err)
		time.Sleep(time.Minute)
		assert.That(t, len(given) == 0, "released while they are handled: %v", given)
	})
}

// A body of exactly the maximum size is received, with any other fields in its frame.
func TestReceiveTheLargestBody(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		const passable = 64 << 20
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendMessage(st, func(m *rmqpb.Message) { m.Body, m.SystemProperties.BodyDigest = make([]byte, passable), nil })
			return nil
		}
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.MaxReceiveSize = passable })
		list, err := c.Receive(t.Context(), request1)
		assert.That(t, err == nil && len(list) == 1 && len(list[0].Body) == passable, "%d messages, %v", len(list), err)
	})
}

// A waiting receive returns at the end of its ctx and after Close.
func TestReceiveEnds(t *testing.T) {
	park := func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
		<-st.Context().Done()
		return nil
	}
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = park
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGone)
		defer cancel()
		_, err := c.Receive(ctx, request1)
		assert.That(t, errors.Is(err, errGone) && time.Since(s.began) == time.Second, "%v after %v", err, time.Since(s.began))
		time.AfterFunc(time.Second, func() { c.Close() })
		if _, err := c.Receive(t.Context(), request1); !errors.Is(err, tidegate.ErrClosed) || time.Since(s.began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(s.began))
		}
		synctest.Wait()
		bye := s.of("NotifyClientTermination")
		if len(bye) != 1 || bye[0].req.(*rmqpb.NotifyClientTerminationRequest).GetGroup().GetName() != "g" ||
			!strings.HasSuffix(bye[0].md.Get("x-mq-client-id")[0], "@g") {
			t.Errorf("good-byes %v", bye)
		}
		assert.NoError(t, c.Close())
		for op, err := range map[string]error{
			"Send":                    c.Send(t.Context(), []*tidegate.Message{message("x")})[0].Err,
			"Receive":                 second(c.Receive(t.Context(), request1)),
			"Ack":                     c.Ack(t.Context(), []*tidegate.Delivery{{Endpoint: testAddr}})[0],
			"Retry":                   second(c.Settle(t.Context(), &tidegate.Delivery{Endpoint: testAddr}, transport.Verdict{Kind: transport.Retry})),
			"ChangeInvisibleDuration": second(c.Extend(t.Context(), &tidegate.Delivery{Endpoint: testAddr}, 0, false)),
			"DeadLetter":              second(c.Settle(t.Context(), &tidegate.Delivery{Endpoint: testAddr}, transport.Verdict{Kind: transport.DeadLetter})),
			"ProducerSettings":        second(c.ProducerSettings(t.Context(), "t")),
			"ConsumerSettings":        second(c.ConsumerSettings(t.Context(), "g", "t")),
			"Queues":                  second(c.Queues(t.Context(), "g", "t")),
		} {
			assert.That(t, errors.Is(err, tidegate.ErrClosed), "%s after Close: %v", op, err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// Close takes a second at most when the server is silent.
func TestCloseBounded(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		release := make(chan struct{})
		defer close(release)
		s.goodbye = func() { <-release }
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		begin := time.Now()
		c.Close()
		assert.Equal(t, "Close took", time.Since(begin), time.Second)
	})
}

// A handler may call methods of the values that it gets, so no record has a nil error.
func TestLogsHaveNoNilErrors(t *testing.T) {
	for name, code := range map[string]rmqpb.Code{"released": rmqpb.Code_OK, "refused": rmqpb.Code_INVALID_RECEIPT_HANDLE} {
		serving(t, func(t *testing.T, s *fakeServer) {
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				sendMessage(st, nil)
				<-st.Context().Done()
				return nil
			}
			s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
				return &rmqpb.ChangeInvisibleDurationResponse{Status: &rmqpb.Status{Code: code}}
			}
			h := &strictHandler{t: t}
			c := newClient(t, s.net, func(o *rocketmq.Options) { o.Logger = slog.New(h) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Receive(ctx, request1)
			assert.That(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
			synctest.Wait()
			assert.That(t, h.records.Load() == 1, "%s: %d records, want one of the message", name, h.records.Load())
		})
	}
}

// A strictHandler fails the test for a record with a nil pointer.
type strictHandler struct {
	t       *testing.T
	records atomic.Int64
}

func (h *strictHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *strictHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *strictHandler) WithGroup(string) slog.Handler            { return h }

func (h *strictHandler) Handle(_ context.Context, r slog.Record) error {
	h.records.Add(1)
	r.Attrs(func(a slog.Attr) bool {
		v := reflect.ValueOf(a.Value.Any())
		assert.That(h.t, v.Kind() != reflect.Pointer || !v.IsNil(), "%q has a nil %s as %q", r.Message, v.Type(), a.Key)
		return true
	})
	return nil
}

// A receive whose ctx has ended sends no request: the response would be lost.
func TestReceiveWithDeadContextIsNotSent(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = empty
		assert.Must(t, assert.Err(c.Receive(t.Context(), request1)))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errGone)
		for range 200 {
			_, err := c.Receive(ctx, request1)
			assert.MustThat(t, errors.Is(err, errGone), "%v", err)
		}
		synctest.Wait()
		assert.Equal(t, "receives reached the server", len(s.of("ReceiveMessage")), 1)
	})
}

// Only a server that announces it repeats a receive without taking new messages.
func TestRepeatNeedsTheServer(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = empty
		again := request1
		again.Repeat = true
		_, err := c.Receive(t.Context(), again)
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeNotImplemented || len(s.of("receive")) != 0 {
			t.Errorf("%v after %d requests; want 50100 and none", err, len(s.of("receive")))
		}
	})
}

// zipped returns a change of a message: a body of that many bytes, which is small on the wire.
func zipped(size int, handle string) func(*rmqpb.Message) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(make([]byte, size))
	_ = w.Close()
	body := packed.Bytes()
	return func(m *rmqpb.Message) {
		m.Body, m.SystemProperties.BodyEncoding, m.SystemProperties.BodyDigest = body, rmqpb.Encoding_GZIP, nil
		m.SystemProperties.ReceiptHandle = &handle
	}
}

// A server that sends more messages than the receive asked for, for example a malicious one, does
// not fill the memory: the receive ends with the requested number.
func TestReceiveEndsAtItsNumber(t *testing.T) {
	for name, send := range map[string]func(receiveStream, func(*rmqpb.Message)) error{
		"a message a frame": func(st receiveStream, change func(*rmqpb.Message)) error {
			return st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: delivered(change)}})
		},
		"packed": func(st receiveStream, change func(*rmqpb.Message)) error {
			m := delivered(change)
			return st.Send(&rmqpb.ReceiveMessageResponse{Packed: []*rmqpb.Message{m, m, m, m, m}})
		},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			ended := false
			change := zipped(1<<20, "h")
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				sendStatus(st, rmqpb.Code_OK)
				for range 5000 {
					if err := send(st, change); err != nil {
						ended = true
						return err
					}
				}
				return nil
			}
			list, err := newClient(t, s.net, nil).Receive(t.Context(), request1)
			assert.That(t, err == nil && len(list) == request1.Max && len(list[15].Body) == 1<<20,
				"%d messages, %v; want %d", len(list), err, request1.Max)
			synctest.Wait()
			assert.That(t, ended, "the stream was read on")
		})
	}
}

// The unpacked bodies of a receive have MaxBytes together, by default 128 MiB. The client releases
// the messages from the first one beyond MaxBytes on, so they are not lost. It releases also those
// that would fit: otherwise a message could overtake an earlier one of its message group.
func TestReceiveEndsAtItsBytes(t *testing.T) {
	for _, tt := range []struct {
		name     string
		maxBytes int
		sizes    []int // of the bodies, in the order of the response
		want     int   // messages that Receive returns
	}{
		{"not the third", 2500 << 10, slices.Repeat([]int{1 << 20}, 6), 2},
		{"exactly two", 2 << 20, slices.Repeat([]int{1 << 20}, 6), 2},
		{"the first may be larger", 100, slices.Repeat([]int{1 << 20}, 3), 1},
		{"a small one behind a large one", 2500, []int{1000, 2000, 10}, 1},
		{"a small one before a large one", 2500, []int{1000, 10, 2000}, 2},
		{"small ones behind a large one", 2500, []int{2000, 2000, 10, 10}, 1},
		{"all fit", 2500, []int{1000, 1000, 400}, 3},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				for i, size := range tt.sizes {
					sendMessage(st, zipped(size, fmt.Sprint(i)))
				}
				sendStatus(st, rmqpb.Code_OK)
				return nil
			}
			r := request1
			r.Max, r.MaxBytes = 64, tt.maxBytes
			list, err := newClient(t, s.net, nil).Receive(t.Context(), r)
			assert.MustThat(t, err == nil && len(list) == tt.want, "%d messages, %v; want %d", len(list), err, tt.want)
			released := map[string]bool{}
			for _, c := range s.of("ChangeInvisibleDuration") {
				r := c.req.(*rmqpb.ChangeInvisibleDurationRequest)
				released[r.GetReceiptHandle()] = r.GetInvisibleDuration().AsDuration() == 0 && r.GetSuspend() && r.GetGroup().GetName() == "g"
			}
			for i := range tt.sizes {
				if returned := i < tt.want; returned && list[i].Handle != fmt.Sprint(i) || released[fmt.Sprint(i)] == returned {
					t.Errorf("message %d is kept: %t; released: %v", i, returned, released)
				}
			}
			sent := s.of("ReceiveMessage")[0].md
			got := sent.Get(wire.HeaderMaxBytes)
			assert.That(t, len(got) == 1 && got[0] == fmt.Sprint(tt.maxBytes), "%s: %q", wire.HeaderMaxBytes, got)
			got = sent.Get(wire.HeaderFeatures)
			assert.That(t, len(got) == 1 && got[0] == "packed", "%s: %q", wire.HeaderFeatures, got)
		})
	}
}

// A receive whose ctx ends has released the messages that came when it returns, unless the
// server does not respond.
func TestCancelledReceiveWaitsForItsReleases(t *testing.T) {
	const parallel = 8 // releases
	for _, tt := range []struct{ takes, want time.Duration }{{0, 0}, {2 * time.Second, 2 * time.Second}, {time.Hour, 3 * time.Second}} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				for range parallel {
					sendMessage(st, nil)
				}
				<-st.Context().Done()
				return nil
			}
			s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
				time.Sleep(tt.takes)
				return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGone)
			defer cancel()
			list, err := c.Receive(ctx, request1)
			assert.That(t, len(list) == 0 && errors.Is(err, errGone) && time.Since(s.began) == time.Second+tt.want,
				"%d messages, %v after %v; want %v", len(list), err, time.Since(s.began), time.Second+tt.want)
			assert.Equal(t, "messages released", len(s.of("ChangeInvisibleDuration")), parallel)
			c.Close()
			time.Sleep(2 * time.Hour) // the server's handlers end
		})
	}
}

// Bytes that are no protobuf end the receive with an error that may be retried.
func TestReceiveGarbage(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			m := &rmqpb.ReceiveMessageResponse{}
			m.ProtoReflect().SetUnknown([]byte{0x0a, 0x01, 0xff}) // a status that is none
			return st.Send(m)
		}
		_, err := newClient(t, s.net, nil).Receive(t.Context(), request1)
		_, isErr := errors.AsType[*tidegate.Error](err)
		assert.That(t, isErr && tidegate.Classify(err) == tidegate.ClassTransient, "%v is %v", err, tidegate.Classify(err))
	})
}

// RocketMQ lets a receive wait for at least 5 s, also if the request has a shorter wait, and uses
// the deadline of the request as its maximum. The request therefore has RequestTimeout in addition
// to these 5 s.
func TestShortReceiveOutlastsTheServersMinimum(t *testing.T) {
	for _, tt := range []struct{ wait, deadline time.Duration }{
		{0, 8 * time.Second}, {time.Second, 8 * time.Second}, {20 * time.Second, 23 * time.Second},
	} {
		assert.Bubble(t, tt.wait.String(), func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			var left atomic.Int64
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				if at, ok := st.Context().Deadline(); ok {
					left.Store(int64(time.Until(at)))
				}
				time.Sleep(max(tt.wait, 5*time.Second))
				sendStatus(st, rmqpb.Code_MESSAGE_NOT_FOUND)
				return nil
			}
			r := request1
			r.Wait = tt.wait
			list, err := newClient(t, s.net, nil).Receive(t.Context(), r)
			assert.That(t, err == nil && len(list) == 0, "%d messages, %v; want none", len(list), err)
			assert.Equal(t, "the request ends after", time.Duration(left.Load()).Round(10*time.Millisecond), tt.deadline)
		})
	}
}

// The invisible time starts with the server's time if the clocks agree or the response was slow.
// The remaining time that a message reports counts from its arrival, however far the server's clock
// is behind.
func TestInvisibleUntil(t *testing.T) {
	const minute = time.Minute
	for _, tt := range []struct {
		name     string
		took     time.Duration // from the request to the response
		server   time.Duration // the server's time, after the arrival
		reported time.Duration // remaining time; zero if the server does not report it
		want     time.Duration // after the arrival; the requested duration is a minute
	}{
		{"immediate response", 0, 0, 0, minute},
		{"clock 5 s behind", 0, -5 * time.Second, 0, 55 * time.Second},
		{"clock 6 s behind", 0, -6 * time.Second, 0, minute},
		{"clock ahead", 0, time.Second, 0, minute},
		{"clock ahead, slow response", 20 * time.Second, time.Second, 0, minute},
		{"slow response", 20 * time.Second, -15 * time.Second, 0, 45 * time.Second},
		{"slow response to an immediate delivery", 20 * time.Second, -20 * time.Second, 0, 40 * time.Second},
		{"clock behind by more than the call", 20 * time.Second, -21 * time.Second, 0, minute},
		{"three quarters are over", 50 * time.Second, -45 * time.Second, 0, 15 * time.Second},
		{"more than three quarters are over, or the clock is behind", 50 * time.Second, -46 * time.Second, 0, minute},

		{"immediate response, reported", 0, 0, 8 * time.Second, 8 * time.Second},
		{"clock 3 s behind, reported", 0, -3 * time.Second, 8 * time.Second, 8 * time.Second},
		{"clock an hour behind, reported", 0, -time.Hour, 2 * time.Second, 2 * time.Second},
		{"clock ahead, reported", 20 * time.Second, time.Second, 8 * time.Second, 8 * time.Second},
		{"slow response, reported", 20 * time.Second, -6 * time.Second, 8 * time.Second, 2 * time.Second},
		{"the reported time is almost over, or the clock behind", 20 * time.Second, -7 * time.Second, 8 * time.Second, 8 * time.Second},
	} {
		servedAs(t, tt.name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				time.Sleep(tt.took)
				sendStatus(st, rmqpb.Code_OK)
				sendMessage(st, func(m *rmqpb.Message) {
					if tt.reported > 0 {
						m.SystemProperties.InvisibleDuration = durationpb.New(tt.reported)
					}
				})
				sendTime(st, time.Now().Add(tt.server))
				return nil
			}
			r := request1
			r.InvisibleDuration, r.Wait = minute, minute
			ds := assert.Value(c.Receive(t.Context(), r))(t)
			assert.MustThat(t, len(ds) == 1, "%d messages", len(ds))
			assert.Equal(t, "the time that is left", time.Until(ds[0].InvisibleUntil), tt.want)
		})
	}
}
