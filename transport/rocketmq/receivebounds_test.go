package rocketmq_test

import (
	"bytes"
	"compress/gzip"

	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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
