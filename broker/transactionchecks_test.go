package broker_test

import (
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
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

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
			fs := vfs.NewMem()
			b := open(t, broker.Options{Dir: "data"}.On(fs))
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
			var a asked
			a.of(b)
			start := time.Now()
			sendHalf(t, b, "m")
			if restart {
				<-time.After(100 * time.Second)
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				<-time.After(10 * time.Second)
				b = open(t, broker.Options{Dir: "data"}.On(fs))
				a.of(b)
			}
			const end = (6 + 15*30) * time.Second
			<-time.After(end - time.Millisecond - time.Since(start))
			if info, err := b.Topic("t"); err != nil || info.HalfMessages != 1 {
				t.Errorf("before the end: %+v, %v", info, err)
			}
			<-time.After(time.Hour)
			synctest.Wait()
			if len(a.all) != 15 {
				t.Fatalf("it was asked %d times, want %d", len(a.all), 15)
			}
			for i, c := range a.all {
				want := 6*time.Second + time.Duration(i)*(30*time.Second)
				if got := a.at[i].Sub(start); got != want {
					t.Errorf("restart %t: check %d came after %v, want %v", restart, i+1, got, want)
				}
				if c.Number != i+1 || c.Message.ID != "m" || c.Message.Topic != "t" || string(c.Message.Body) != "m" || !c.StoredAt.Equal(start) {
					t.Errorf("check %d is %+v", i+1, c)
				}
			}
			wantCode(t, "ended too late", serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: a.all[0].TransactionID, Resolution: transport.Commit}),
				tidegate.CodeInternalServerError)
			if n := len(receiveAll(t, b, "t")); n != 0 {
				t.Errorf("it was delivered: %d", n)
			}
			left := receiveAll(t, b, broker.AbandonedTransactions)
			if len(left) != 1 || !left[0].StoredAt.Equal(start.Add(end)) {
				t.Fatalf("left are %+v", left)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{Transaction: settings.Transaction{CheckInterval: settings.Duration(10 * time.Second)}})
		own := settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{Timeout: settings.Duration(2 * time.Second), CheckMax: 2}}
		putTopic(t, b, "t", own)
		start := time.Now()
		var at []time.Duration
		var last engine.TransactionCheck
		remove := onCheck(b, func(c engine.TransactionCheck) bool { at, last = append(at, time.Since(start)), c; return true })
		unasked := sendHalf(t, b, "a")
		if err := endTransaction(t, b, unasked, transport.Commit); err != nil {
			t.Fatal(err)
		}
		first := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "b", Topic: "t", Body: []byte("b")}, 5*time.Second)
		check := func(want ...time.Duration) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(at, want) {
				t.Errorf("asked after %v, want %v", at, want)
			}
		}
		const s = time.Second
		<-time.After(16 * s)
		check(5*s, 15*s)
		if last.TransactionID != first.Receipt.TransactionID || last.Number != 2 {
			t.Errorf("the last check is %+v", last)
		}
		own.Transaction.CheckMax = -1 // it would have been given up at 25 s
		putTopic(t, b, "t", own)
		if err := b.SetTransaction(settings.Transaction{CheckInterval: settings.Duration(3 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		if err := b.SetTransaction(settings.Transaction{CheckInterval: -1, Timeout: -1, CheckMax: -2}); err == nil || strings.Count(err.Error(), "Transaction.") != 3 {
			t.Errorf("three faults: %v", err)
		}
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
			if err := serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: c.TransactionID, Resolution: transport.Rollback}); err != nil {
				t.Error(err)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		sendHalf(t, b, "m")
		putTopic(t, b, "last", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{CheckMax: 1}})
		half := func(topic string, firstCheck time.Duration) {
			if r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: topic, Topic: topic, Body: []byte("x")}, firstCheck); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		half("last", 0)
		<-time.After(7 * time.Second) // of the last one every check is made
		putTopic(t, b, "due", settings.Topic{Type: settings.TopicTransaction})
		half("due", 50*time.Minute+time.Second)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(50 * time.Minute)
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		start := time.Now()
		var a asked
		a.of(b)
		<-time.After(6*time.Second - 1)
		if info, err := b.Topic("last"); err != nil || info.HalfMessages != 1 {
			t.Errorf("given up before its producer can be back: %+v, %v", info, err)
		}
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
		if len(due) == 0 || due[0] != time.Second {
			t.Errorf("the check that was due after the start came after %v; want 1 s", due)
		}
	})
}

// More than one batch can be due at the same time, and large ones.
func TestManyTransactionsDueAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{CheckMax: 1}})
		var a asked
		a.of(b)
		const n = 2*engine.CheckBatch + 1
		for i := range n {
			m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: make([]byte, 1+(i%32/31)*(engine.CheckBytes/12))}
			if r := serve(b).SendHalf(t.Context(), m, 0); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		<-time.After(6 * time.Second)
		synctest.Wait()
		if len(a.all) != n {
			t.Errorf("%d were checked, want %d", len(a.all), n)
		}
		<-time.After(30 * time.Second)
		synctest.Wait()
		if got := len(receiveAll(t, b, broker.AbandonedTransactions)); got != n {
			t.Errorf("%d were given up, want %d", got, n)
		}
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
	if len(waiting) > 0 {
		t.Errorf("%d half messages are not checked", len(waiting))
	}
}

// Half messages have random times, sizes and first checks; some end early, and the broker restarts.
// Each half message is checked at its own times, and at no others.
func TestTransactionChecksAtRandom(t *testing.T) {
	t.Parallel()
	for range soak(1) {
		synctest.Test(t, func(t *testing.T) {
			seed := rand.Uint64()
			rnd := rand.New(rand.NewPCG(seed, 0))
			fs := vfs.NewMem()
			var mu sync.Mutex
			due := map[string]time.Time{} // by message ID
			var early []string
			open := func() *broker.Broker {
				b := open(t, broker.Options{Dir: "data", Transaction: settings.Transaction{CheckInterval: settings.Duration(1000 * time.Second), CheckMax: -1}}.On(fs))
				onCheck(b, func(c engine.TransactionCheck) bool {
					mu.Lock()
					defer mu.Unlock()
					if want := due[c.Message.ID]; !time.Now().Equal(want) {
						t.Errorf("seed %d: %s was checked at %v, want %v", seed, c.Message.ID, time.Now(), want)
					}
					due[c.Message.ID] = time.Now().Add(1000 * time.Second)
					return true
				})
				return b
			}
			b := open()
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
			for i := range 200 {
				m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: make([]byte, 1+rnd.IntN(2)*rnd.IntN(1<<15))}
				first := []time.Duration{1, time.Second, time.Minute, time.Hour}[rnd.IntN(4)]
				mu.Lock()
				due[m.ID] = time.Now().Add(first)
				mu.Unlock()
				r := serve(b).SendHalf(t.Context(), m, first)
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				synctest.Wait()
				if rnd.IntN(3) == 0 {
					if err := endTransaction(t, b, r.Receipt, transport.Rollback); err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					delete(due, m.ID)
					mu.Unlock()
					early = append(early, m.ID)
				}
				if rnd.IntN(30) == 0 {
					if err := b.Close(); err != nil {
						t.Fatal(err)
					}
					b = open()
				}
				if rnd.IntN(4) == 0 {
					<-time.After(time.Duration(rnd.Int64N(int64(2 * time.Minute))))
					synctest.Wait()
				}
			}
			<-time.After(time.Hour)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for id, at := range due {
				if !at.After(time.Now()) {
					t.Errorf("seed %d: %s should have been checked at %v, now is %v", seed, id, at, time.Now())
				}
			}
			for _, id := range early {
				if _, ok := due[id]; ok {
					t.Errorf("seed %d: %s was checked after its end", seed, id)
				}
			}
		})
	}
}
