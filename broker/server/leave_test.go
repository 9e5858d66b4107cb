package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

func attempt(id string) ask { return func(r *rmqpb.ReceiveMessageRequest) { r.AttemptId = &id } }

// repeating marks the receive as a repetition.
func repeating(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, wire.HeaderRepeat, "true")
}

// A client cancels its receive at a random instant around the delivery, repeats
// it with the same attempt ID, and releases the messages that the repetition brings. No message is
// lost in between: at once afterwards another client receives each as attempt 1.
func TestCancelledReceiveSwallowsNothing(t *testing.T) {
	for topic, fifo := range map[string]bool{"normal": false, "fifo": true} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, server.Options{})
			if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{FIFO: fifo}); err != nil {
				t.Fatal(err)
			}
			e.telemetry(as(t.Context(), "leaver"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
			unread, repeated := 0, 0
			for i := range model.Rounds(400) {
				id := fmt.Sprintf("%s-%d", topic, i)
				attemptID := attempt(strconv.Itoa(i))
				ctx, cancel := context.WithCancel(as(t.Context(), "leaver"))
				ended := make(chan []*rmqpb.ReceiveMessageResponse)
				go func() {
					fs, _ := frames(e.ReceiveMessage(ctx, receiveRequest(topic, attemptID)))
					ended <- fs
				}()
				synctest.Wait()
				go func() {
					for range rand.IntN(100) {
						runtime.Gosched()
					}
					cancel()
				}()
				e.send(msg(topic, id, func(m *rmqpb.Message) {
					if fifo {
						m.SystemProperties.MessageGroup = new("mg")
					}
				}))
				if fs := <-ended; len(fs) < 3 {
					unread++
				}
				began := time.Now()
				_, ms := e.receive(repeating(as(t.Context(), "leaver")), receiveRequest(topic, attemptID))
				if took := time.Since(began); took != 0 {
					t.Fatalf("%s: the repetition took %v", id, took)
				}
				repeated += len(ms)
				for _, m := range ms {
					r, err := e.ChangeInvisibleDuration(as(t.Context(), "leaver"), &rmqpb.ChangeInvisibleDurationRequest{
						Group: res("g"), Topic: res(topic), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
						MessageId: m.GetSystemProperties().GetMessageId(), InvisibleDuration: durationpb.New(0), Suspend: new(true),
					})
					if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
						t.Fatalf("%s: released: %v, %v", id, r, err)
					}
				}
				st, next := e.receive(as(t.Context(), "other"), receiveRequest(topic))
				if len(next) != 1 || next[0].GetSystemProperties().GetMessageId() != id || next[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
					t.Fatalf("%s: the next client receives %v, %v; want the message as attempt 1", id, st, next)
				}
				e.ack(next[0])
			}
			t.Logf("%s: %d receives ended without their message, %d messages came with a repetition", topic, unread, repeated)
		})
	}
}

// The server takes back the deliveries of a receive whose connection ends while the
// messages are being handed out: the next client receives them as attempt 1 at once.
func TestLostConnectionSwallowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		e := start(t, server.Options{}, f)
		leaver := e.dial()
		f.after = func(ds []*tidegate.Delivery) {
			if len(ds) > 0 {
				f.after = nil
				leaver.Close()
				time.Sleep(time.Second) // the server sees it
			}
		}
		e.send(msg("normal", "1"))
		if _, err := frames(rmqpb.NewMessagingServiceClient(leaver).ReceiveMessage(as(t.Context(), "leaver"), receiveRequest("normal"))); err == nil {
			t.Fatal("the receive over a closed connection succeeded")
		}
		synctest.Wait()
		if m := e.one(e.ctx(), receiveRequest("normal")); m.GetSystemProperties().GetDeliveryAttempt() != 1 {
			t.Errorf("attempt %d; want 1", m.GetSystemProperties().GetDeliveryAttempt())
		}
	})
}

func TestRepetitionNamesItsReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		st, _ := e.receive(repeating(e.ctx()), receiveRequest("normal"))
		refused(t, st, tidegate.CodeBadRequest, "attempt ID")
		e.send(msg("normal", "1"))
		if st, ms := e.receive(repeating(e.ctx()), receiveRequest("normal", attempt("never used"))); len(ms) != 0 || st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			t.Errorf("the repetition of nothing brings %v, %d messages; want 40401", st, len(ms))
		}
	})
}
