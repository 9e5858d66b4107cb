package rocketmq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// SendHalf sends a half message once, with any result, as a message of type TRANSACTION.
func TestSendHalf(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			out := sentAll(r)
			out.Entries[0].TransactionId = "tx"
			return out, nil
		}
		r := c.SendHalf(t.Context(), message("1"))
		want := (tidegate.Receipt{MessageID: "1", Topic: "t", Queue: -1, Offset: -1, Endpoint: testAddr, TransactionID: "tx"})
		assert.That(t, r.Err == nil && r.Receipt == want, "%+v, want %+v", r, want)
		sent := s.of("SendMessage")[0].req.(*rmqpb.SendMessageRequest).GetMessages()[0]
		assert.That(t, sent.GetSystemProperties().GetMessageType() == rmqpb.MessageType_TRANSACTION, "sent %v", sent)
		late := message("2")
		late.DeliverAt = time.Now()
		for _, m := range []*tidegate.Message{inGroup("2", "g"), late} {
			r := c.SendHalf(t.Context(), m)
			assert.That(t, errors.Is(r.Err, tidegate.ErrInvalid), "%+v: %v, want a refusal", m, r.Err)
		}
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			go s.stop()
			return silent(ctx, r)
		}
		r = c.SendHalf(t.Context(), message("3"))
		if e, _ := errors.AsType[*tidegate.Error](r.Err); e == nil || !e.MaybeStored || len(s.of("SendMessage")) != 2 {
			t.Errorf("%v after %d requests, want a failure after two", r.Err, len(s.of("SendMessage")))
		}
	})
}

// ServeChecks handles checks across lost sessions and restarts of servers, also if nothing else
// uses the client.
func TestServeChecksKeepsTheSession(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		ask := make(chan string)
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			go func() {
				for {
					select {
					case id := <-ask:
						m := delivered(nil)
						m.SystemProperties.ReceiptHandle = nil
						m.Topic = &rmqpb.Resource{Name: "t"}
						st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{
							RecoverOrphanedTransactionCommand: &rmqpb.RecoverOrphanedTransactionCommand{TransactionId: id, Message: m}}})
					case <-st.Context().Done():
						return
					}
				}
			}()
			return s.answerSettings(st)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		served := make(chan error, 1)
		var asked atomic.Int64
		go func() {
			served <- c.ServeChecks(ctx, []string{"t"}, func(ctx context.Context, q transport.TransactionCheck) transport.Resolution {
				asked.Add(1)
				switch q.Transaction.ID {
				case "late":
					<-ctx.Done()
					return transport.Rollback
				case "panics":
					panic("check")
				case "unknown":
					return transport.ResolutionUnknown
				}
				return transport.Commit
			})
		}()
		ends := func() int { return len(s.of("EndTransaction")) }
		time.Sleep(time.Second)
		for _, id := range []string{"panics", "unknown", "1"} {
			ask <- id
			synctest.Wait()
		}
		assert.That(t, asked.Load() == 3 && ends() == 1, "%d questions and %d ends, want 3 and 1", asked.Load(), ends())
		end := s.of("EndTransaction")[0].req.(*rmqpb.EndTransactionRequest)
		if end.GetTransactionId() != "1" || end.GetResolution() != rmqpb.TransactionResolution_COMMIT ||
			end.GetSource() != rmqpb.TransactionSource_SOURCE_SERVER_CHECK || end.GetTopic().GetName() != "t" {
			t.Errorf("%v", end)
		}
		time.Sleep(time.Hour) // much longer than an unused session stays
		ask <- "2"
		synctest.Wait()
		s.stop()
		time.Sleep(time.Minute)
		s.start()
		time.Sleep(time.Minute)
		ask <- "3"
		synctest.Wait()
		assert.Equal(t, "ends", ends(), 3)
		ask <- "late"
		synctest.Wait()
		cancel()
		err := <-served
		assert.That(t, err == nil, "%v, want nil after the end of ctx", err)
		assert.MustEqual(t, "ends with that of a check that has decided at the end of ctx", ends(), 4)
		end = s.of("EndTransaction")[3].req.(*rmqpb.EndTransactionRequest)
		assert.Equal(t, "its resolution", end.GetResolution(), rmqpb.TransactionResolution_ROLLBACK)
		time.Sleep(time.Hour)
		assert.Equal(t, "sessions are left", s.openSessions(), 0)
		assert.Is(t, "without topics", c.ServeChecks(t.Context(), nil, nil), tidegate.ErrInvalid)
	})
}

func TestPing(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		var code atomic.Int32
		route := s.route
		s.route = func() *rmqpb.QueryRouteResponse {
			if n := code.Load(); n != 0 {
				return &rmqpb.QueryRouteResponse{Status: &rmqpb.Status{Code: rmqpb.Code(n)}}
			}
			return route()
		}
		for _, tt := range []struct {
			code         rmqpb.Code
			plain, topic error
		}{
			{0, nil, nil},
			{rmqpb.Code_TOPIC_NOT_FOUND, nil, tidegate.ErrTopicNotFound},
			{rmqpb.Code_FORBIDDEN, nil, tidegate.ErrForbidden},
			{rmqpb.Code_UNAUTHORIZED, tidegate.ErrUnauthorized, tidegate.ErrUnauthorized},
			{rmqpb.Code_INTERNAL_SERVER_ERROR, tidegate.ErrUnavailable, tidegate.ErrUnavailable},
		} {
			code.Store(int32(tt.code))
			err := c.Ping(t.Context())
			assert.That(t, errors.Is(err, tt.plain), "%s: %v, want %v", tt.code, err, tt.plain)
			err = c.Ping(t.Context(), "t")
			assert.That(t, errors.Is(err, tt.topic), "%s: the topic: %v, want %v", tt.code, err, tt.topic)
		}
		code.Store(0)
		s.stop()
		synctest.Wait()
		time.AfterFunc(10*time.Second, s.start)
		assert.NoError(t, c.Ping(t.Context()), "it does not wait for the server")
		s.stop()
		synctest.Wait() // or the request fails on the connection that ends
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		if err := c.Ping(ctx); err == nil || time.Since(begin) != 30*time.Second {
			t.Errorf("Ping without a server: %v after %v, want an error at the end of its ctx", err, time.Since(begin))
		}
		assert.Is(t, "of an illegal topic", c.Ping(t.Context(), "no topic"), tidegate.ErrInvalid)
	})
}

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
		assert.Bubble(t, name, func(t *testing.T) {
			n := newNetwork()
			a, b := newServer(t, n, testAddr), newServer(t, n, otherAddr)
			a.route = routed(queues(otherAddr, "b", 1))
			var dials atomic.Int32
			c := newClient(t, n, func(o *rocketmq.Options) {
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
			assert.That(t, (r.Err == nil) == (tt.sent == 1), "error %v", r.Err)
			e, _ := errors.AsType[*tidegate.Error](r.Err)
			assert.That(t, tt.sent != 0 || e != nil && e.MaybeStored, "error %v, want one with MaybeStored", r.Err)
			time.Sleep(time.Minute)
			assert.Equal(t, "the server got half messages", len(b.of("SendMessage")), tt.sent)
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
func goAway(c net.Conn) { _, _ = c.Write([]byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) }

// RocketMQ reports a transaction that it does not have as an internal error with a text. The error
// matches ErrNotFound then, and the request has certainly changed nothing. Other internal errors do
// not change.
func TestResolutionOfAMissingTransaction(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		missing    bool
	}{
		{"the proxy", "CODE: 1 DESC: TRANSACTION_DATA_NOT_FOUND", true},
		{"another version of the proxy", "cannot found transaction data", true},
		{"another failure", "the disk is full", false},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			s.end = func() *rmqpb.Status {
				return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: tt.text}
			}
			err := newClient(t, s.net, nil).EndTransaction(t.Context(), transport.Transaction{ID: "tx", MessageID: "1", Topic: "t", Endpoint: testAddr}, transport.Commit)
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && errors.Is(err, tidegate.ErrNotFound) == tt.missing && e.MaybeStored != tt.missing,
				"%#v, want ErrNotFound: %t, MaybeStored: %t", err, tt.missing, !tt.missing)
		})
	}
}

// ServeChecks ends with an error that matches ErrClosed when the client is closed.
func TestServeChecksOfAClosedClient(t *testing.T) {
	served(t, func(t *testing.T, _ *fakeServer, c *rocketmq.Client) {
		served := make(chan error, 1)
		go func() {
			served <- c.ServeChecks(t.Context(), []string{"t"}, func(context.Context, transport.TransactionCheck) transport.Resolution {
				return transport.ResolutionUnknown
			})
		}()
		time.Sleep(time.Second)
		assert.NoError(t, c.Close())
		assert.Is(t, "ServeChecks", <-served, tidegate.ErrClosed)
	})
}

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
		assert.Bubble(t, tt.name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			s.recall = tt.recall
			id, err := newClient(t, s.net, nil).Recall(t.Context(), "t", "handle")
			if tt.want == nil {
				assert.That(t, err == nil && id == "m", "message %q, %v", id, err)
				return
			}
			e, ok := errors.AsType[*tidegate.Error](err)
			code, coded := errors.AsType[*tidegate.Error](tt.want)
			if !ok || e.MaybeStored != tt.maybe || coded && e.Code != code.Code || !coded && !errors.Is(err, tt.want) || id != "" {
				t.Errorf("%#v, want %v with MaybeStored %t", err, tt.want, tt.maybe)
			}
			assert.Equal(t, "requests", len(s.of("RecallMessage")), 1)
		})
	}
}

// RequestTimeout bounds a request other than a send also if the caller's deadline is later.
func TestRequestTimeoutHoldsBesideADeadline(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.RequestTimeout = 4 * time.Second })
		sent(t, c, message("0"))
		release := make(chan struct{})
		defer close(release)
		s.assign = func() *rmqpb.QueryAssignmentResponse {
			<-release
			return &rmqpb.QueryAssignmentResponse{Status: ok}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		if _, err := c.Queues(ctx, "g", "t"); !errors.Is(err, tidegate.ErrUnavailable) || time.Since(begin) != 4*time.Second {
			t.Errorf("Queues: %v after %v, want unavailable after 4s", err, time.Since(begin))
		}
	})
}

// After a lost response the first message of a group may be stored. The later ones were not sent.
func TestMessagesThatWereNotSentAreNotStored(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return nil, status.Error(codes.Internal, "lost")
		}
		msgs := several(2)
		for _, m := range msgs {
			m.MessageGroup = "g"
		}
		results := c.Send(t.Context(), msgs)
		first, _ := errors.AsType[*tidegate.Error](results[0].Err)
		second, _ := errors.AsType[*tidegate.Error](results[1].Err)
		if first == nil || !first.MaybeStored {
			t.Errorf("the first message: %+v, want it perhaps stored", results[0].Err)
		}
		if second == nil || second.MaybeStored || !strings.Contains(second.Message, "not sent") || tidegate.Classify(second) != tidegate.ClassTransient {
			t.Errorf("the second message: %+v, want a transient error of a message that was not sent", results[1].Err)
		}
		assert.Equal(t, "requests", len(s.of("SendMessage")), 1)
	})
}

// Only a request that changes something can have taken effect although it failed.
func TestFailedReadsStoreNothing(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		sent(t, c, message("0"))
		failed := &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR}
		s.assign = func() *rmqpb.QueryAssignmentResponse { return &rmqpb.QueryAssignmentResponse{Status: failed} }
		s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: failed}, nil
		}
		_, err := c.Queues(t.Context(), "g", "t")
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeInternalServerError || e.MaybeStored {
			t.Errorf("Queues: %#v, want 50001 without MaybeStored", err)
		}
		if _, err := sendOne(t.Context(), c, message("1")); err == nil || !err.MaybeStored {
			t.Errorf("Send: %#v, want 50001 with MaybeStored", err)
		}
	})
}

// The routes of all topics in use are refreshed, also of more topics than are queried at a time.
func TestAllRoutesAreRefreshed(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.RouteRefresh = time.Minute })
		const topics, rounds = 24, 4 // 8 are queried at a time
		for range rounds {
			for i := range topics {
				m := message("m")
				m.Topic = "topic-" + string(rune('a'+i))
				sent(t, c, m)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		// The first send of a topic queries its route, and so does each refresh.
		if got, want := len(s.of("QueryRoute")), topics*(1+rounds); got != want {
			t.Errorf("%d route queries, want %d", got, want)
		}
	})
}
