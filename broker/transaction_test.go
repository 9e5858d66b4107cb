package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func sendHalf(tb testing.TB, b *broker.Broker, id string) tidegate.Receipt {
	tb.Helper()
	r := serve(b).SendHalf(tb.Context(), &tidegate.Message{ID: id, Topic: "t", Body: []byte(id), Properties: map[string]string{"k": "v"}}, 0)
	if r.Err != nil || r.Receipt.TransactionID == "" || r.Receipt.Queue != -1 || r.Receipt.MessageID != id {
		tb.Fatalf("the response to a half message is %+v", r)
	}
	return r.Receipt
}

func endTransaction(tb testing.TB, b *broker.Broker, r tidegate.Receipt, how transport.Resolution) error {
	tb.Helper()
	return serve(b).EndTransaction(tb.Context(), engine.TransactionEnd{Topic: r.Topic, TransactionID: r.TransactionID, MessageID: r.MessageID, Resolution: how})
}

// wantCode fails the test unless err has the code.
func wantCode(tb testing.TB, what string, err error, code tidegate.Code) {
	tb.Helper()
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != code {
		tb.Errorf("%s: %v, want %v", what, err, code)
	}
}

func ids(ds []*tidegate.Delivery) string {
	var out []string
	for _, d := range ds {
		out = append(out, d.ID)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// A half message is not delivered, and not in the backlog, before it is
// committed; then it is, with all that it has. One that is rolled back never is.
func TestTransactions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		toCommit, gone, unknown := sendHalf(t, b, "kept"), sendHalf(t, b, "gone"), sendHalf(t, b, "unknown")
		if n := len(receiveAll(t, b, "t")); n != 0 {
			t.Errorf("%d half messages were delivered", n)
		}
		if info, err := b.Topic("t"); err != nil || info.HalfMessages != 3 || info.StoredMessages != 0 || info.Backlog != (status.Backlog{}) {
			t.Errorf("the topic holds %+v, %v; want 3 half messages and nothing else", info, err)
		}
		got := make(chan time.Time)
		go func() {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Minute})
			if ids(ds) != "kept" || len(ds[0].Properties) != 1 || ds[0].Properties["k"] != "v" || ds[0].TransactionID != toCommit.TransactionID || string(ds[0].Body) != "kept" || ds[0].Attempt != 1 {
				t.Errorf("delivered: %+v", ds)
			}
			got <- time.Now()
		}()
		<-time.After(time.Second)
		if err := endTransaction(t, b, gone, transport.Rollback); err != nil {
			t.Error(err)
		}
		if err := endTransaction(t, b, unknown, transport.ResolutionUnknown); err != nil {
			t.Error(err)
		}
		<-time.After(time.Second)
		committed := time.Now()
		if err := endTransaction(t, b, toCommit, transport.Commit); err != nil {
			t.Error(err)
		}
		if at := <-got; !at.Equal(committed) {
			t.Errorf("it was delivered %v after the commit", at.Sub(committed))
		}
		for range 2 {
			for _, how := range []transport.Resolution{transport.Commit, transport.Rollback, transport.ResolutionUnknown} {
				wantCode(t, "a committed one is ended again", endTransaction(t, b, toCommit, how), tidegate.CodeInternalServerError)
				wantCode(t, "one rolled back is ended again", endTransaction(t, b, gone, how), tidegate.CodeInternalServerError)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b = open(t, broker.Options{Dir: "data"}.On(fs))
		}
		if st := serve(b).Stats().Topics[0]; st.Stored.Messages != 1 || st.Transactions == nil || st.Half != 1 {
			t.Errorf("after restarts: %+v, %+v; want one message and one half message", st, st.Transactions)
		}
		if err := endTransaction(t, b, unknown, transport.Commit); err != nil {
			t.Error(err)
		}
		if got := ids(receiveAll(t, b, "t")); got != "kept unknown" {
			t.Errorf("in the end there are %q", got)
		}
		if st := serve(b).Stats().Topics[0]; *st.Transactions != (engine.TransactionStats{Committed: 1}) || st.Accepted != 1 {
			t.Errorf("counts %+v, %+v", st, st.Transactions)
		}
	})
}

// Package engine has the other rules of half messages.
func TestTransactionsRejected(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
	putTopic(t, b, "other", settings.Topic{Type: settings.TopicTransaction})
	putTopic(t, b, "%DLQ%g", settings.Topic{})
	half := func(topic string) engine.Incoming {
		return engine.Incoming{Message: &tidegate.Message{ID: "x", Topic: topic, Body: []byte("x")}, Half: true}
	}
	for name, c := range map[string]struct {
		m    engine.Incoming
		code tidegate.Code
	}{
		"to dead letters":       {half("%DLQ%g"), tidegate.CodeMessagePropertyConflict},
		"to RocketMQ's own one": {half("TRANS_CHECK_MAX_TIME_TOPIC"), tidegate.CodeIllegalTopic},
	} {
		wantCode(t, name, serve(b).Append(t.Context(), []engine.Incoming{c.m})[0].Err, c.code)
	}

	r := sendHalf(t, b, "m")
	for name, c := range map[string]struct {
		end  engine.TransactionEnd
		code tidegate.Code
	}{
		"no transaction ID": {engine.TransactionEnd{Topic: "t"}, protocol.CodeInvalidTransactionID},
		"nonsense":          {engine.TransactionEnd{Topic: "t", TransactionID: "x", Resolution: transport.Commit}, tidegate.CodeInternalServerError},
		"another topic's":   {engine.TransactionEnd{Topic: "other", TransactionID: r.TransactionID, Resolution: transport.Commit}, tidegate.CodeInternalServerError},
		"no topic":          {engine.TransactionEnd{Topic: "nowhere", TransactionID: r.TransactionID, Resolution: transport.Commit}, tidegate.CodeTopicNotFound},
		"another message's": {engine.TransactionEnd{Topic: "t", TransactionID: r.TransactionID, MessageID: "n", Resolution: transport.Commit}, protocol.CodeInvalidTransactionID},
		"no resolution":     {engine.TransactionEnd{Topic: "t", TransactionID: r.TransactionID, Resolution: 3}, tidegate.CodeBadRequest},
	} {
		wantCode(t, name, serve(b).EndTransaction(t.Context(), c.end), c.code)
	}
	if err := endTransaction(t, b, r, transport.Commit); err != nil {
		t.Errorf("after all this it cannot be committed: %v", err)
	}
}

// The response to a half message with a known ID has the same transaction, also after a restart and
// while sends are throttled; once that has ended, with the message, or again.
func TestTransactionDuplicates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, MaxBacklog: settings.Limit{Messages: 1}})
		a, c := sendHalf(t, b, "a"), sendHalf(t, b, "c")
		if again := sendHalf(t, b, "a"); again != a {
			t.Errorf("repeated: %+v, want %+v", again, a)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		if again := sendHalf(t, b, "a"); again != a {
			t.Errorf("repeated after a restart: %+v, want %+v", again, a)
		}
		if err := endTransaction(t, b, a, transport.Commit); err != nil {
			t.Fatal(err)
		}
		// The topic is throttled now. This limit applies to new half messages, not to commits.
		wantCode(t, "above the limit", serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "d", Topic: "t", Body: []byte("d")}, 0).Err, tidegate.CodeTooManyRequests)
		if again := sendHalf(t, b, "c"); again != c {
			t.Errorf("repeated while throttled: %+v, want %+v", again, c)
		}
		if err := endTransaction(t, b, c, transport.Commit); err != nil {
			t.Error(err)
		}
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "a", Topic: "t", Body: []byte("a")}, 0)
		if r.Err != nil || r.Receipt.Queue < 0 || r.Receipt.TransactionID == "" {
			t.Errorf("repeated after the commit: %+v; want where it is, and a transaction ID", r)
		}
		wantCode(t, "its transaction", endTransaction(t, b, r.Receipt, transport.Commit), tidegate.CodeInternalServerError)
		if st := serve(b).Stats().Topics[0]; st.Stored.Messages != 2 || st.Half != 0 || st.Duplicates != 3 {
			t.Errorf("stored %+v, %+v; want 2 messages", st, st.Transactions)
		}
		putTopic(t, b, "t", settings.Topic{})
		e := sendHalf(t, b, "e")
		if err := endTransaction(t, b, e, transport.Rollback); err != nil {
			t.Fatal(err)
		}
		if anew := sendHalf(t, b, "e"); anew.TransactionID == e.TransactionID {
			t.Error("a message sent again after its roll back has the old transaction")
		}
	})
}

// If several requests end one transaction at the same time, one of them wins, also during a check.
func TestTransactionEndsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var want []string
		for i := range 50 {
			id := fmt.Sprint(i)
			r := sendHalf(t, b, id)
			<-time.After(6 * time.Second) // the moment of the check
			won := make(chan transport.Resolution, 8)
			var wg sync.WaitGroup
			for j := range 8 {
				wg.Go(func() {
					how := transport.Commit + transport.Resolution((i+j)%2)
					switch err := endTransaction(t, b, r, how); {
					case err == nil:
						won <- how
					default:
						wantCode(t, "a late end", err, tidegate.CodeInternalServerError)
					}
				})
			}
			wg.Wait()
			close(won)
			if len(won) != 1 {
				t.Fatalf("%d ends succeeded", len(won))
			}
			if <-won == transport.Commit {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		if got := ids(receiveAll(t, b, "t")); got != strings.Join(want, " ") {
			t.Errorf("delivered %q, committed were %q", got, want)
		}
		if n := b.Engine().Parts().Transactions.Claimed(); n != 0 {
			t.Errorf("%d claims are left", n)
		}
	})
}

// An end that was given up while it waited for the disk, or for another end, keeps its result.
func TestCancelledEndOfATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		r := sendHalf(t, b, "m")
		release := holdWrites(b)
		ctx, cancel := context.WithCancelCause(t.Context())
		errs := make(chan error)
		for _, how := range []transport.Resolution{transport.Commit, transport.Rollback} {
			go func() {
				errs <- serve(b).EndTransaction(ctx, engine.TransactionEnd{Topic: "t", TransactionID: r.TransactionID, Resolution: how})
			}()
			synctest.Wait()
		}
		cause := errors.New("enough")
		cancel(cause)
		for range 2 {
			if err := <-errs; !errors.Is(err, cause) {
				t.Errorf("it ended with %v", err)
			}
		}
		release()
		synctest.Wait()
		if got := ids(receiveAll(t, b, "t")); got != "m" {
			t.Errorf("delivered %q: the first end was a commit", got)
		}
	})
}

func TestDeletedTopicHasNoHalfMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var a asked
		a.of(b)
		r := sendHalf(t, b, "m")
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		wantCode(t, "ended without its topic", endTransaction(t, b, r, transport.Commit), tidegate.CodeTopicNotFound)
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		wantCode(t, "ended in the next topic", endTransaction(t, b, r, transport.Commit), tidegate.CodeInternalServerError)
		<-time.After(time.Hour)
		synctest.Wait()
		if len(a.all) != 0 {
			t.Errorf("it was checked: %v", a.all)
		}
		expectNothingPending(t, b)
	})
}
