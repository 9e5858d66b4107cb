package server_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// withTransactions makes an env with a topic "tx" of type TRANSACTION.
func withTransactions(t *testing.T, o server.Options) *env {
	t.Helper()
	o.MinLongPolling = 1
	e := start(t, o)
	if _, err := e.b.PutTopic(t.Context(), "tx", settings.Topic{Type: settings.TopicTransaction, Queues: 2}); err != nil {
		t.Fatal(err)
	}
	return e
}

// half sends a half message and returns its transaction ID.
func (e *env) half(id string, edit ...edit) string {
	e.t.Helper()
	edit = append(edit, sys(func(p *rmqpb.SystemProperties) { p.MessageType = rmqpb.MessageType_TRANSACTION }))
	r := e.send(msg("tx", id, edit...)).GetEntries()[0]
	if r.GetMessageId() != id || r.GetTransactionId() == "" {
		e.t.Fatalf("the response to a half message is %v", r)
	}
	return r.GetTransactionId()
}

func (e *env) endTransaction(ctx context.Context, messageID, transactionID string, how rmqpb.TransactionResolution) *rmqpb.Status {
	e.t.Helper()
	r, err := e.EndTransaction(ctx, &rmqpb.EndTransactionRequest{
		Topic: res("tx"), MessageId: messageID, TransactionId: transactionID, Resolution: how, Source: rmqpb.TransactionSource_SOURCE_CLIENT,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return r.GetStatus()
}

const (
	commit   = rmqpb.TransactionResolution_COMMIT
	rollback = rmqpb.TransactionResolution_ROLLBACK
)

// The broker delivers only the committed messages of a producer's transactions. The codes are those
// of a real server: 40008 without an ID, 50001 for a transaction that no longer exists.
func TestEndTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := withTransactions(t, server.Options{})
		ok := func(st *rmqpb.Status) {
			t.Helper()
			refused(t, st, protocol.CodeOK)
		}
		committed, gone := e.half("kept"), e.half("gone")
		if st, ms := e.receive(e.ctx(), receiveRequest("tx")); len(ms) != 0 || st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			t.Errorf("before the end: %v, %v", st, ms)
		}
		ok(e.endTransaction(e.ctx(), "kept", committed, 0))
		ok(e.endTransaction(e.ctx(), "gone", gone, rollback))
		ok(e.endTransaction(e.ctx(), "kept", committed, commit))
		for id, transaction := range map[string]string{"kept": committed, "gone": gone} {
			refused(t, e.endTransaction(e.ctx(), id, transaction, commit), tidegate.CodeInternalServerError, "transaction", `"tx"`, "ended")
		}
		refused(t, e.endTransaction(e.ctx(), "x", "x", commit), tidegate.CodeInternalServerError, "transaction")
		refused(t, e.endTransaction(e.ctx(), "x", "", commit), protocol.CodeInvalidTransactionID, "transaction ID", "empty")
		refused(t, e.endTransaction(e.ctx(), "kept", committed, 7), tidegate.CodeBadRequest, "resolution", "7")
		m := e.one(e.ctx(), receiveRequest("tx"))
		if p := m.GetSystemProperties(); p.GetMessageId() != "kept" || p.GetDeliveryAttempt() != 1 {
			t.Errorf("delivered %v", m)
		}
		e.ack(m)
		r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("tx", "plain")}})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), tidegate.CodeMessagePropertyConflict, "TRANSACTION", "NORMAL")
	})
}

// next reads a command that has to be a check.
func (e *env) check(st stream) *rmqpb.RecoverOrphanedTransactionCommand {
	e.t.Helper()
	cmd, err := st.Recv()
	if err != nil {
		e.t.Fatal(err)
	}
	if cmd.GetRecoverOrphanedTransactionCommand() == nil || cmd.GetStatus().GetCode() != rmqpb.Code_OK {
		e.t.Fatalf("command %v; want a check", cmd)
	}
	return cmd.GetRecoverOrphanedTransactionCommand()
}

// The broker checks an unresolved transaction on the Telemetry stream of a producer of the topic,
// with the complete message. The first check comes after the time that the message sets or 6 s,
// later ones every 30 s. The response ends the transaction.
func TestOrphanedTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := withTransactions(t, server.Options{})
		e.telemetry(as(t.Context(), "consumer"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.telemetry(as(t.Context(), "stranger"), producer("normal"))
		began := time.Now()
		id := e.half("m", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"k": "v"} }, sys(func(p *rmqpb.SystemProperties) {
			p.Tag = new("T")
			p.Keys, p.TraceContext, p.BornHost = []string{"a", "b"}, new("trace"), "host"
			p.OrphanedTransactionRecoveryDuration = durationpb.New(2 * time.Second)
		}))
		time.Sleep(3 * time.Second) // no producer can be asked at 2 s
		settings := producer("tx")
		settings.GetPublishing().Topics[0].ResourceNamespace = "ns"
		st, _ := e.telemetry(as(t.Context(), "producer"), settings)
		for i, after := range []time.Duration{32 * time.Second, 62 * time.Second} {
			c := e.check(st)
			if got := time.Since(began); got != after {
				t.Errorf("it was asked after %v, want %v", got, after)
			}
			m, p := c.GetMessage(), c.GetMessage().GetSystemProperties()
			digest := strings.ToUpper(fmt.Sprintf("%x", md5.Sum([]byte("hello"))))
			if c.GetTransactionId() != id || m.GetTopic().GetName() != "tx" || m.GetTopic().GetResourceNamespace() != "ns" || string(m.GetBody()) != "hello" ||
				p.GetMessageId() != "m" || p.GetTag() != "T" || len(p.GetKeys()) != 2 || p.GetTraceContext() != "trace" || p.GetBornHost() != "host" ||
				p.GetBodyEncoding() != rmqpb.Encoding_IDENTITY || p.GetBodyDigest().GetChecksum() != digest || p.GetMessageType() != rmqpb.MessageType_TRANSACTION ||
				!p.GetStoreTimestamp().AsTime().Equal(began) || !p.GetBornTimestamp().AsTime().Equal(began) ||
				m.GetUserProperties()["k"] != "v" || m.GetUserProperties()["TRANSACTION_CHECK_TIMES"] != fmt.Sprint(i+2) || m.GetUserProperties()["__transactionId__"] != id {
				t.Errorf("check %v", c)
			}
		}
		refused(t, e.endTransaction(as(t.Context(), "producer"), "m", id, commit), protocol.CodeOK)
		m := e.one(e.ctx(), receiveRequest("tx"))
		if u := m.GetUserProperties(); len(u) != 2 || u["k"] != "v" || u["__transactionId__"] != id {
			t.Errorf("delivered with the properties %v", u)
		}
		stats := e.b.Engine().Stats().Topics
		for _, s := range stats {
			if s.Name == "tx" && *s.Transactions != (engine.TransactionStats{Committed: 1, Checks: 2, Unheard: 1}) {
				t.Errorf("counts %+v", *s.Transactions)
			}
		}
	})
}

// A client that sends half messages is asked even if its settings did not name the topic. One that
// has terminated, or whose stream is gone, is not.
func TestReceiversOfTransactionChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := withTransactions(t, server.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		st, _ := e.telemetry(as(ctx, "client"), producer())
		id := e.half("m")
		for range 2 { // once more after other settings
			if c := e.check(st); c.GetTransactionId() != id {
				t.Errorf("check %v", c)
			}
			if err := st.Send(command(producer("tx", "normal"))); err != nil {
				t.Fatal(err)
			}
			e.settings(st)
		}
		streams := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := len(e.s.Parts().Sessions.Publishing("tx")); n != want {
				t.Errorf("%d streams can be asked, want %d", n, want)
			}
		}
		streams(1)
		other, _ := e.telemetry(as(t.Context(), "other"), producer("tx"))
		streams(2)
		cancel()
		streams(1)
		if c := e.check(other); c.GetTransactionId() != id {
			t.Errorf("check %v", c)
		}
		e.s.Parts().Sessions.Terminate("other")
		streams(0)
	})
}

// The response to a commit is lost: a repeated one reports that the transaction has ended, and the
// message is there once.
func TestLostResponseOfEndTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Bool
		e := withTransactions(t, server.Options{Intercept: func(ctx context.Context, c server.Call, next func(context.Context) error) error {
			err := next(ctx)
			if c.Op == "EndTransaction" && lost.CompareAndSwap(false, true) {
				return server.ErrNoAnswer
			}
			return err
		}})
		id := e.half("m")
		ctx, cancel := context.WithTimeout(e.ctx(), time.Second)
		defer cancel()
		req := &rmqpb.EndTransactionRequest{Topic: res("tx"), MessageId: "m", TransactionId: id, Resolution: commit}
		if _, err := e.EndTransaction(ctx, req); err == nil {
			t.Error("there was a response")
		}
		refused(t, e.endTransaction(e.ctx(), "m", id, commit), tidegate.CodeInternalServerError, "ended")
		e.one(e.ctx(), receiveRequest("tx"))
		if st, ms := e.receive(e.ctx(), receiveRequest("tx")); len(ms) != 0 {
			t.Errorf("a second one: %v %v", st, ms)
		}
	})
}
