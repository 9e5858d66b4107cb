package rocketmq_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
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
				list, err := newClient(t, n, nil).Receive(t.Context(), request1)
				if err != nil || len(list) != request1.Max || len(list[15].Body) != 1<<20 {
					t.Errorf("%d messages, %v; want %d", len(list), err, request1.Max)
				}
				synctest.Wait()
				if !ended {
					t.Error("the stream was read on")
				}
			})
		})
	}
}

// The unpacked bodies of a receive have MaxBytes together, by default 128 MiB. The client releases
// the messages beyond MaxBytes, so they are not lost.
func TestReceiveEndsAtItsBytes(t *testing.T) {
	for _, tt := range []struct{ maxBytes, size, sent, want int }{
		{2500 << 10, 1 << 20, 6, 2},
		{2 << 20, 1 << 20, 6, 2},
		{100, 1 << 20, 3, 1}, // the first may be larger
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
					for i := range tt.sent {
						sendMessage(st, zipped(tt.size, fmt.Sprint(i)))
					}
					sendStatus(st, rmqpb.Code_OK)
					return nil
				}
				s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
					return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
				}
				r := request1
				r.Max, r.MaxBytes = 64, tt.maxBytes
				list, err := newClient(t, n, nil).Receive(t.Context(), r)
				if err != nil || len(list) != tt.want {
					t.Fatalf("%d messages, %v; want %d", len(list), err, tt.want)
				}
				released := map[string]bool{}
				for _, c := range s.of("ChangeInvisibleDuration") {
					r := c.req.(*rmqpb.ChangeInvisibleDurationRequest)
					released[r.GetReceiptHandle()] = r.GetInvisibleDuration().AsDuration() == 0 && r.GetSuspend() && r.GetGroup().GetName() == "g"
				}
				for i := range tt.sent {
					if returned := i < tt.want; returned && list[i].Handle != fmt.Sprint(i) || released[fmt.Sprint(i)] == returned {
						t.Errorf("message %d is kept: %t; released: %v", i, returned, released)
					}
				}
				sent := s.of("ReceiveMessage")[0].md
				if got := sent.Get(wire.HeaderMaxBytes); len(got) != 1 || got[0] != fmt.Sprint(tt.maxBytes) {
					t.Errorf("%s: %q", wire.HeaderMaxBytes, got)
				}
				if got := sent.Get(wire.HeaderFeatures); len(got) != 1 || got[0] != "packed" {
					t.Errorf("%s: %q", wire.HeaderFeatures, got)
				}
			})
		})
	}
}

// A receive whose ctx ends has released the messages that came when it returns, unless the
// server does not respond.
func TestCancelledReceiveWaitsForItsReleases(t *testing.T) {
	const parallel = 8 // releases
	for _, tt := range []struct{ takes, want time.Duration }{{0, 0}, {2 * time.Second, 2 * time.Second}, {time.Hour, 3 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
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
			c := newClient(t, n, nil)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGone)
			defer cancel()
			list, err := c.Receive(ctx, request1)
			if len(list) > 0 || !errors.Is(err, errGone) || time.Since(s.began) != time.Second+tt.want {
				t.Errorf("%d messages, %v after %v; want %v", len(list), err, time.Since(s.began), time.Second+tt.want)
			}
			if got := len(s.of("ChangeInvisibleDuration")); got != parallel {
				t.Errorf("%d messages released, want %d", got, parallel)
			}
			c.Close()
			time.Sleep(2 * time.Hour) // the server's handlers end
		})
	}
}

// Many messages in one frame are as many as in frames of their own.
func TestReceivePacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			st.Send(&rmqpb.ReceiveMessageResponse{Packed: []*rmqpb.Message{delivered(nil), delivered(nil)}})
			return st.Send(&rmqpb.ReceiveMessageResponse{
				Content: &rmqpb.ReceiveMessageResponse_Status{Status: ok}, Packed: []*rmqpb.Message{delivered(nil)},
			})
		}
		list, err := newClient(t, n, nil).Receive(t.Context(), request1)
		if err != nil || len(list) != 3 {
			t.Fatalf("%d messages, %v", len(list), err)
		}
		for _, d := range list {
			if d.ID != "id" || string(d.Body) != "hello" || d.Endpoint != testAddr || d.ConsumerGroup != "g" {
				t.Errorf("%+v", d)
			}
		}
	})
}

// Bytes that are no protobuf end the receive with an error that may be retried.
func TestReceiveGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			m := &rmqpb.ReceiveMessageResponse{}
			m.ProtoReflect().SetUnknown([]byte{0x0a, 0x01, 0xff}) // a status that is none
			return st.Send(m)
		}
		_, err := newClient(t, n, nil).Receive(t.Context(), request1)
		if _, isErr := errors.AsType[*tidegate.Error](err); !isErr || tidegate.Classify(err) != tidegate.ClassTransient {
			t.Errorf("%v is %v", err, tidegate.Classify(err))
		}
	})
}

// After the first message beyond MaxBytes all messages are released, also those that would fit:
// otherwise a message could overtake an earlier one of its message group.
func TestReceiveBeyondItsBytesKeepsTheOrder(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sizes []int // of the bodies, in the order of the response
		want  int   // messages that Receive returns
	}{
		{"a small one behind a large one", []int{1000, 2000, 10}, 1},
		{"a small one before a large one", []int{1000, 10, 2000}, 2},
		{"small ones behind a large one", []int{2000, 2000, 10, 10}, 1},
		{"all fit", []int{1000, 1000, 400}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
					for i, size := range tt.sizes {
						sendMessage(st, zipped(size, fmt.Sprint(i)))
					}
					sendStatus(st, rmqpb.Code_OK)
					return nil
				}
				s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
					return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
				}
				r := request1
				r.MaxBytes = 2500
				list, err := newClient(t, n, nil).Receive(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				var got, released, want, rest []string
				for _, d := range list {
					got = append(got, d.Handle)
				}
				for _, c := range s.of("ChangeInvisibleDuration") {
					released = append(released, c.req.(*rmqpb.ChangeInvisibleDurationRequest).GetReceiptHandle())
				}
				slices.Sort(released) // the releases are concurrent
				for i := range tt.sizes {
					if i < tt.want {
						want = append(want, fmt.Sprint(i))
					} else {
						rest = append(rest, fmt.Sprint(i))
					}
				}
				if !slices.Equal(got, want) || !slices.Equal(released, rest) {
					t.Errorf("received %q and released %q, want %q and %q", got, released, want, rest)
				}
			})
		})
	}
}

// RocketMQ lets a receive wait for at least 5 s, also if the request has a shorter wait, and uses
// the deadline of the request as its maximum. The request therefore has RequestTimeout in addition
// to these 5 s.
func TestShortReceiveOutlastsTheServersMinimum(t *testing.T) {
	for _, tt := range []struct{ wait, deadline time.Duration }{
		{0, 8 * time.Second}, {time.Second, 8 * time.Second}, {20 * time.Second, 23 * time.Second},
	} {
		t.Run(tt.wait.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
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
				if list, err := newClient(t, n, nil).Receive(t.Context(), r); err != nil || len(list) != 0 {
					t.Errorf("%d messages, %v; want none", len(list), err)
				}
				if d := time.Duration(left.Load()).Round(10 * time.Millisecond); d != tt.deadline {
					t.Errorf("the request ends after %v, want %v", d, tt.deadline)
				}
			})
		})
	}
}

// The remaining time that a message reports counts from its arrival, however far the server's clock
// is behind: a clock 3 s behind would end a lease of 2 s immediately.
func TestReportedInvisibleTimeNeedsNoClock(t *testing.T) {
	for behind, reported := range map[time.Duration]bool{0: true, time.Second: false, 3 * time.Second: true, 4 * time.Second: true, time.Hour: true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				sendStatus(st, rmqpb.Code_OK)
				sendMessage(st, func(m *rmqpb.Message) {
					if reported {
						m.SystemProperties.InvisibleDuration = durationpb.New(2 * time.Second)
					}
				})
				sendTime(st, time.Now().Add(-behind))
				return nil
			}
			want := 2 * time.Second
			if !reported {
				want -= behind
			}
			r := request1
			r.InvisibleDuration = 2 * time.Second
			ds, err := newClient(t, n, nil).Receive(t.Context(), r)
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			if left := time.Until(ds[0].InvisibleUntil); left != want {
				t.Errorf("clock %v behind, reported %v: %v are left, want %v", behind, reported, left, want)
			}
		})
	}
}
