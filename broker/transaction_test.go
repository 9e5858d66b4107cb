package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func sendHalf(tb testing.TB, b *broker.Broker, id string) tidegate.Receipt {
	tb.Helper()
	r := serve(b).SendHalf(tb.Context(), &tidegate.Message{ID: id, Topic: "t", Body: []byte(id), Properties: map[string]string{"k": "v"}}, 0)
	assert.MustThat(tb, r.Err == nil && r.Receipt.TransactionID != "" && r.Receipt.Queue == -1 && r.Receipt.MessageID == id,
		"the response to a half message is %+v", r)
	return r.Receipt
}

func endTransaction(tb testing.TB, b *broker.Broker, r tidegate.Receipt, how transport.Resolution) error {
	tb.Helper()
	return serve(b).EndTransaction(tb.Context(), engine.TransactionEnd{Topic: r.Topic, TransactionID: r.TransactionID, MessageID: r.MessageID, Resolution: how})
}

// wantCode fails the test unless err has the code.
func wantCode(tb testing.TB, what string, err error, code tidegate.Code) {
	tb.Helper()
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(tb, ok && e.Code == code, "%s: %v, want %v", what, err, code)
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
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		toCommit, gone, unknown := sendHalf(t, b, "kept"), sendHalf(t, b, "gone"), sendHalf(t, b, "unknown")
		assert.Equal(t, "half messages were delivered", len(receiveAll(t, b, "t")), 0)
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
		assert.NoError(t, endTransaction(t, b, gone, transport.Rollback))
		assert.NoError(t, endTransaction(t, b, unknown, transport.ResolutionUnknown))
		<-time.After(time.Second)
		committed := time.Now()
		assert.NoError(t, endTransaction(t, b, toCommit, transport.Commit))
		if at := <-got; !at.Equal(committed) {
			t.Errorf("it was delivered %v after the commit", at.Sub(committed))
		}
		for range 2 {
			for _, how := range []transport.Resolution{transport.Commit, transport.Rollback, transport.ResolutionUnknown} {
				wantCode(t, "a committed one is ended again", endTransaction(t, b, toCommit, how), tidegate.CodeInternalServerError)
				wantCode(t, "one rolled back is ended again", endTransaction(t, b, gone, how), tidegate.CodeInternalServerError)
			}
			b = reopen(t, b, fs)
		}
		if st := serve(b).Stats().Topics[0]; st.Stored.Messages != 1 || st.Transactions == nil || st.Half != 1 {
			t.Errorf("after restarts: %+v, %+v; want one message and one half message", st, st.Transactions)
		}
		assert.NoError(t, endTransaction(t, b, unknown, transport.Commit))
		assert.Equal(t, "in the end there are", ids(receiveAll(t, b, "t")), "kept unknown")
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
		"to dead letters":       {half("%DLQ%g"), protocol.CodeMessagePropertyConflict},
		"to RocketMQ's own one": {half("TRANS_CHECK_MAX_TIME_TOPIC"), protocol.CodeIllegalTopic},
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
	assert.NoError(t, endTransaction(t, b, r, transport.Commit), "after all this it cannot be committed")
}

// The response to a half message with a known ID has the same transaction, also after a restart and
// while sends are throttled; once that has ended, with the message, or again.
func TestTransactionDuplicates(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, MaxBacklog: settings.Limit{Messages: 1}})
		a, c := sendHalf(t, b, "a"), sendHalf(t, b, "c")
		assert.Equal(t, "repeated", sendHalf(t, b, "a"), a)
		b = reopen(t, b, fs)
		assert.Equal(t, "repeated after a restart", sendHalf(t, b, "a"), a)
		assert.Must(t, endTransaction(t, b, a, transport.Commit))
		// The topic is throttled now. This limit applies to new half messages, not to commits.
		wantCode(t, "above the limit", serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "d", Topic: "t", Body: []byte("d")}, 0).Err, tidegate.CodeTooManyRequests)
		assert.Equal(t, "repeated while throttled", sendHalf(t, b, "c"), c)
		assert.NoError(t, endTransaction(t, b, c, transport.Commit))
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "a", Topic: "t", Body: []byte("a")}, 0)
		assert.That(t, r.Err == nil && r.Receipt.Queue >= 0 && r.Receipt.TransactionID != "",
			"repeated after the commit: %+v; want where it is, and a transaction ID", r)
		wantCode(t, "its transaction", endTransaction(t, b, r.Receipt, transport.Commit), tidegate.CodeInternalServerError)
		if st := serve(b).Stats().Topics[0]; st.Stored.Messages != 2 || st.Half != 0 || st.Duplicates != 3 {
			t.Errorf("stored %+v, %+v; want 2 messages", st, st.Transactions)
		}
		putTopic(t, b, "t", settings.Topic{})
		e := sendHalf(t, b, "e")
		assert.Must(t, endTransaction(t, b, e, transport.Rollback))
		assert.That(t, sendHalf(t, b, "e").TransactionID != e.TransactionID,
			"a message sent again after its roll back has the old transaction")
	})
}

// If several requests end one transaction at the same time, one of them wins, also during a check.
func TestTransactionEndsOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
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
			assert.MustEqual(t, "ends succeeded", len(won), 1)
			if <-won == transport.Commit {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		got := ids(receiveAll(t, b, "t"))
		assert.That(t, got == strings.Join(want, " "), "delivered %q, committed were %q", got, want)
		assert.Equal(t, "claims are left", b.Engine().Parts().Transactions.Claimed(), 0)
	})
}

// An end that was given up while it waited for the disk, or for another end, keeps its result.
func TestCancelledEndOfATransaction(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
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
			assert.Is(t, "it ended with", <-errs, cause)
		}
		release()
		synctest.Wait()
		assert.Equal(t, "delivered: the first end was a commit", ids(receiveAll(t, b, "t")), "m")
	})
}

func TestDeletedTopicHasNoHalfMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var a asked
		a.of(b)
		r := sendHalf(t, b, "m")
		assert.Must(t, b.DeleteTopic(t.Context(), "t"))
		wantCode(t, "ended without its topic", endTransaction(t, b, r, transport.Commit), tidegate.CodeTopicNotFound)
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		wantCode(t, "ended in the next topic", endTransaction(t, b, r, transport.Commit), tidegate.CodeInternalServerError)
		<-time.After(time.Hour)
		synctest.Wait()
		assert.That(t, len(a.all) == 0, "it was checked: %v", a.all)
		expectNothingPending(t, b)
	})
}

// A checker is a server that gets checks.
type checker struct {
	check func(engine.TransactionCheck) bool
}

func (c *checker) CheckTransaction(check engine.TransactionCheck) bool { return c.check(check) }

func (*checker) ConsumerSettingsChanged(string) {}

// onCheck has the checks of a broker passed to a function.
func onCheck(b *broker.Broker, check func(engine.TransactionCheck) bool) (remove func()) {
	c := &checker{check: check}
	serve(b).Attach(c)
	return func() { serve(b).Detach(c) }
}

// asked collects the checks that a broker makes.
type asked struct {
	mu  sync.Mutex
	all []engine.TransactionCheck
	at  []time.Time
}

func (a *asked) of(b *broker.Broker) (remove func()) {
	return onCheck(b, func(c engine.TransactionCheck) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all, a.at = append(a.all, c), append(a.at, time.Now())
		return true
	})
}

// The producer is asked after 6 s and then each 30 s, 15 times, to the instant; 30 s later the
// transaction is given up, and its message is in the topic of abandoned transactions. A restart in
// between changes nothing.
func TestTransactionChecks(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
			var a asked
			a.of(b)
			start := time.Now()
			sendHalf(t, b, "m")
			if restart {
				<-time.After(100 * time.Second)
				assert.Must(t, b.Close())
				<-time.After(10 * time.Second)
				b = open(t, broker.Options{Dir: "data"}.On(fs))
				a.of(b)
			}
			const end = (6 + 15*30) * time.Second
			<-time.After(end - time.Millisecond - time.Since(start))
			info, err := b.Topic("t")
			assert.That(t, err == nil && info.HalfMessages == 1, "before the end: %+v, %v", info, err)
			<-time.After(time.Hour)
			synctest.Wait()
			assert.MustEqual(t, "it was asked times", len(a.all), 15)
			for i, c := range a.all {
				want := 6*time.Second + time.Duration(i)*(30*time.Second)
				got := a.at[i].Sub(start)
				assert.That(t, got == want, "restart %t: check %d came after %v, want %v", restart, i+1, got, want)
				if c.Number != i+1 || c.Message.ID != "m" || c.Message.Topic != "t" || string(c.Message.Body) != "m" || !c.StoredAt.Equal(start) {
					t.Errorf("check %d is %+v", i+1, c)
				}
			}
			wantCode(t, "ended too late", serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: a.all[0].TransactionID, Resolution: transport.Commit}),
				tidegate.CodeInternalServerError)
			assert.Equal(t, "it was delivered", len(receiveAll(t, b, "t")), 0)
			left := receiveAll(t, b, broker.AbandonedTransactions)
			assert.MustThat(t, len(left) == 1 && left[0].StoredAt.Equal(start.Add(end)), "left are %+v", left)
			if d, ok := left[0].DeadLetter(); !ok || d.Topic != "t" || d.MessageID != "m" || d.Attempts != 15 || d.Reason == "" || d.Group != "" ||
				left[0].Properties["k"] != "v" || left[0].Properties[protocol.PropertyCheckTimes] != "15" {
				t.Errorf("it is kept as %+v, %v", d, left[0].Properties)
			}
			want := engine.TransactionStats{Abandoned: 1, Checks: 15}
			if restart {
				want.Checks = 11
			}
			for _, st := range serve(b).Stats().Topics {
				if st.Name == "t" && *st.Transactions != want {
					t.Errorf("counts %+v, want %+v", *st.Transactions, want)
				}
			}
			expectNothingPending(t, b)
		})
	}
}

// Checks by the topic's settings, the broker's, or the message's own wish;
// they change while in use; and one that ended is not checked any more.
func TestTransactionSettings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{Transaction: settings.Transaction{CheckInterval: settings.Duration(10 * time.Second)}})
		own := settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{Timeout: settings.Duration(2 * time.Second), CheckMax: 2}}
		putTopic(t, b, "t", own)
		start := time.Now()
		var at []time.Duration
		var last engine.TransactionCheck
		remove := onCheck(b, func(c engine.TransactionCheck) bool { at, last = append(at, time.Since(start)), c; return true })
		unasked := sendHalf(t, b, "a")
		assert.Must(t, endTransaction(t, b, unasked, transport.Commit))
		first := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "b", Topic: "t", Body: []byte("b")}, 5*time.Second)
		check := func(want ...time.Duration) {
			t.Helper()
			synctest.Wait()
			assert.That(t, slices.Equal(at, want), "asked after %v, want %v", at, want)
		}
		const s = time.Second
		<-time.After(16 * s)
		check(5*s, 15*s)
		assert.That(t, last.TransactionID == first.Receipt.TransactionID && last.Number == 2, "the last check is %+v", last)
		own.Transaction.CheckMax = -1 // it would have been given up at 25 s
		putTopic(t, b, "t", own)
		assert.Must(t, b.SetTransaction(settings.Transaction{CheckInterval: settings.Duration(3 * time.Second)}))
		err := b.SetTransaction(settings.Transaction{CheckInterval: -1, Timeout: -1, CheckMax: -2})
		assert.That(t, err != nil && strings.Count(err.Error(), "Transaction.") == 3, "three faults: %v", err)
		<-time.After(13 * s)
		check(5*s, 15*s, 25*s, 28*s)
		remove()
		<-time.After(3 * s)
		check(5*s, 15*s, 25*s, 28*s)
		if st := serve(b).Stats().Topics[0]; st.Half != 1 || *st.Transactions != (engine.TransactionStats{Committed: 1, Checks: 4, Unheard: 1}) {
			t.Errorf("%d half messages, counts %+v", st.Half, *st.Transactions)
		}
		// A checker may end the transaction at once.
		onCheck(b, func(engine.TransactionCheck) bool { return false })
		onCheck(b, func(c engine.TransactionCheck) bool {
			assert.NoError(t, serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: c.TransactionID, Resolution: transport.Rollback}))
			return true
		})
		<-time.After(time.Hour)
		if st := serve(b).Stats().Topics[0].Transactions; *st != (engine.TransactionStats{Committed: 1, RolledBack: 1, Checks: 5, Unheard: 1}) {
			t.Errorf("counts %+v", *st)
		}
	})
}

// After a long stop the broker does not check transactions at once: producers need time to
// reconnect, also if another check is due before. The broker does not repeat missed checks, and
// gives up no transaction before that time.
func TestTransactionChecksAfterALongStop(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		sendHalf(t, b, "m")
		putTopic(t, b, "last", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{CheckMax: 1}})
		half := func(topic string, firstCheck time.Duration) {
			r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: topic, Topic: topic, Body: []byte("x")}, firstCheck)
			assert.MustThat(t, r.Err == nil, "%+v", r.Err)
		}
		half("last", 0)
		<-time.After(7 * time.Second) // of the last one every check is made
		putTopic(t, b, "due", settings.Topic{Type: settings.TopicTransaction})
		half("due", 50*time.Minute+time.Second)
		assert.Must(t, b.Close())
		<-time.After(50 * time.Minute)
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		start := time.Now()
		var a asked
		a.of(b)
		<-time.After(6*time.Second - 1)
		info, err := b.Topic("last")
		assert.That(t, err == nil && info.HalfMessages == 1, "given up before its producer can be back: %+v, %v", info, err)
		<-time.After(61 * time.Second)
		synctest.Wait()
		var of, due []time.Duration
		for i, c := range a.all {
			if c.Message.ID == "m" && c.Number == len(of)+2 {
				of = append(of, a.at[i].Sub(start))
			} else if c.Message.ID == "due" {
				due = append(due, a.at[i].Sub(start))
			}
		}
		if want := []time.Duration{6 * time.Second, 36 * time.Second, 66 * time.Second}; !slices.Equal(of, want) {
			t.Errorf("asked after %v; want %v", of, want)
		}
		assert.That(t, len(due) != 0 && due[0] == time.Second, "the check that was due after the start came after %v; want 1 s", due)
	})
}

// More than one batch can be due at the same time, and large ones.
func TestManyTransactionsDueAtOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{CheckMax: 1}})
		var a asked
		a.of(b)
		const n = 2*engine.CheckBatch + 1
		for i := range n {
			m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: make([]byte, 1+(i%32/31)*(engine.CheckBytes/12))}
			r := serve(b).SendHalf(t.Context(), m, 0)
			assert.MustThat(t, r.Err == nil, "%+v", r.Err)
		}
		<-time.After(6 * time.Second)
		synctest.Wait()
		assert.Equal(t, "were checked", len(a.all), n)
		<-time.After(30 * time.Second)
		synctest.Wait()
		assert.Equal(t, "were given up", len(receiveAll(t, b, broker.AbandonedTransactions)), n)
	})
}

// A file system forgets its unsynced data at a random moment. Every acknowledged half message is
// there unless it was ended, every acknowledged commit is there once, no acknowledged end is
// undone, and unresolved transactions are checked again.
func TestPowerLossKeepsTransactions(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(6), loseTransactions)
}

func loseTransactions(t *testing.T, seed uint64) {
	answered, tried, receipts := map[string]string{}, map[string]string{}, map[string]tidegate.Receipt{} // by message ID
	b := losePower(t, rand.New(rand.NewPCG(seed, 0)), 100, func(b *broker.Broker, p *powerCut) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Queues: 3, Transaction: settings.Transaction{
			Timeout: settings.Duration(time.Millisecond), CheckInterval: settings.Duration(10 * time.Millisecond), CheckMax: -1,
		}})
		onCheck(b, func(engine.TransactionCheck) bool { return true })
		var wg sync.WaitGroup
		for c := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-p.failed:
						return
					default:
					}
					id := fmt.Sprintf("%d-%d", c, i)
					r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: id, Topic: "t", Body: []byte(id)}, 0)
					if r.Err != nil {
						continue
					}
					how, name := []transport.Resolution{transport.ResolutionUnknown, transport.Commit, transport.Rollback}[i%3], []string{"half", "Commit", "Rollback"}[i%3]
					p.responded(func() { answered[id], tried[id], receipts[id] = "half", name, r.Receipt })
					if err := endTransaction(t, b, r.Receipt, how); err == nil {
						p.responded(func() { answered[id] = name })
					}
				}
			})
		}
		wg.Wait()
	})
	seen := map[string]int{}
	for _, d := range receiveAll(t, b, "t") {
		seen[d.ID]++
	}
	waiting := map[string]bool{}
	for id, state := range answered {
		half := endTransaction(t, b, receipts[id], transport.ResolutionUnknown) == nil
		if half {
			waiting[id] = true
		}
		ok := map[string]bool{
			"half":     half && seen[id] == 0 || tried[id] == "Commit" && seen[id] == 1 && !half || tried[id] == "Rollback" && seen[id] == 0 && !half,
			"Commit":   !half && seen[id] == 1,
			"Rollback": !half && seen[id] == 0,
		}[state]
		if !ok {
			t.Errorf("%s was %s, then %s was tried: it waits: %t, delivered: %d", id, state, tried[id], half, seen[id])
		}
	}
	if n := serve(b).Stats().Topics[0].Half; n < int64(len(waiting)) {
		t.Errorf("%d half messages are counted, at least %d wait", n, len(waiting))
	}
	var mu sync.Mutex // of waiting
	onCheck(b, func(c engine.TransactionCheck) bool {
		mu.Lock()
		defer mu.Unlock()
		delete(waiting, c.Message.ID)
		return true
	})
	elapse(time.Second)
	mu.Lock()
	defer mu.Unlock()
	assert.That(t, len(waiting) == 0, "%d half messages are not checked", len(waiting))
}
