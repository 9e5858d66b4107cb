package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/internal/assert"
)

func delivery(group, id string) *tidegate.Delivery {
	return &tidegate.Delivery{Message: tidegate.Message{ID: id}, ConsumerGroup: group}
}

var errHandler = errors.New("handler failed")

func TestMemory(t *testing.T) {
	calls := map[string]int{}
	fail := true
	h := inbox.NewMemory(2).Handler(func(_ context.Context, d *tidegate.Delivery) error {
		calls[d.ConsumerGroup+d.ID]++
		if d.ID == "fails" && fail {
			return errHandler
		}
		return nil
	})
	for _, step := range []struct {
		group, id string
		calls     int
		err       error
	}{
		{"g", "1", 1, nil}, {"g", "1", 1, nil}, {"h", "1", 1, nil}, // each group on its own
		{"g", "fails", 1, errHandler}, {"g", "fails", 2, errHandler}, // a failure is not remembered
		{"g", "2", 1, nil}, {"g", "1", 2, nil}, // beyond the capacity the oldest is forgotten
		{"g", "2", 1, nil},
	} {
		err := h(t.Context(), delivery(step.group, step.id))
		got := calls[step.group+step.id]
		assert.That(t, got == step.calls && errors.Is(err, step.err), "%+v: %d calls, %v", step, got, err)
	}
}

func TestMemoryPanic(t *testing.T) {
	calls := 0
	h := inbox.NewMemory(0).Handler(func(context.Context, *tidegate.Delivery) error {
		if calls++; calls == 1 {
			panic("by the test")
		}
		return nil
	})
	func() {
		defer func() { _ = recover() }()
		_ = h(t.Context(), delivery("g", "1"))
	}()
	err := h(t.Context(), delivery("g", "1"))
	assert.That(t, err == nil && calls == 2, "after a panic: %v, %d calls; want the handler called again", err, calls)
}

// Deliveries of one message at the same time: one runs, the others wait for it.
func TestMemoryAtTheSameTime(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls, running, most atomic.Int64
			h := inbox.NewMemory(0).Handler(func(context.Context, *tidegate.Delivery) error {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				time.Sleep(time.Second)
				if calls.Add(1) == 1 && fails {
					return errHandler
				}
				return nil
			})
			var failed atomic.Int64
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					if h(t.Context(), delivery("g", "1")) != nil {
						failed.Add(1)
					}
				})
			}
			synctest.Wait()
			errStop := errors.New("the consumer stops")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errStop)
			defer cancel()
			assert.Is(t, "err", h(ctx, delivery("g", "1")), errStop)
			wg.Wait()
			want := int64(1)
			if fails {
				want = 2
			}
			assert.That(t, calls.Load() == want && most.Load() == 1 && failed.Load() == want-1,
				"fails %v: %d calls, %d at the same time, %d failed", fails, calls.Load(), most.Load(), failed.Load())
		})
	}
}

func openDB(t *testing.T, path string) *sql.DB {
	t.Helper()
	db := assert.Value(sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_txlock=immediate"))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

func newSQL(t *testing.T, db *sql.DB) *inbox.SQL {
	t.Helper()
	s := assert.Value(inbox.NewSQL(db, inbox.Options{}))(t)
	assert.Must(t, s.CreateTable(t.Context()))
	return s
}

func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	assert.Must(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// credit adds 1 to the account with the name of the message.
func credit(ctx context.Context, tx *sql.Tx, d *tidegate.Delivery) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO accounts VALUES (?, 1) ON CONFLICT (id) DO UPDATE SET n = n + 1", d.ID)
	return err
}

const createAccounts = "CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, n INTEGER)"

func TestSQL(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "test.db"))
	s := newSQL(t, db)
	assert.NoError(t, s.CreateTable(t.Context()), "a second time")
	assert.Must(t, assert.Err(db.ExecContext(t.Context(), createAccounts)))
	fail := true
	h := s.Handler(func(ctx context.Context, tx *sql.Tx, d *tidegate.Delivery) error {
		if err := credit(ctx, tx, d); err != nil {
			return err
		}
		if fail {
			return errHandler
		}
		return nil
	})
	assert.Is(t, "err", h(t.Context(), delivery("g", "1")), errHandler)
	assert.Equal(t, "a failed handler left rows", count(t, db, "SELECT COUNT(*) FROM accounts"), 0)
	fail = false
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, group := range []string{"g", "h"} {
				assert.NoError(t, h(t.Context(), delivery(group, "1")))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, "the effect happened times", count(t, db, "SELECT n FROM accounts WHERE id = '1'"), 2)
	n, err := s.Purge(t.Context(), time.Now().Add(-time.Hour))
	assert.That(t, n == 0 && err == nil, "purged %d, %v", n, err)
	first := time.UnixMilli(int64(count(t, db, "SELECT MIN(consumed_at) FROM tidegate_inbox")))
	n, err = s.Purge(t.Context(), first)
	assert.That(t, n == 0 && err == nil, "purged %d, %v; want none at the time of the first record", n, err)
	n, err = s.Purge(t.Context(), time.Now().Add(time.Hour))
	assert.That(t, n == 2 && err == nil, "purged %d, %v; want 2", n, err)
}

func TestSQLStatements(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "test.db"))
	for _, o := range []inbox.Options{{Table: "x; DROP TABLE y"}, {Table: "1x"}, {Dialect: 9}, {Dialect: -1}} {
		_, err := inbox.NewSQL(db, o)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%+v: %v, want ErrInvalid", o, err)
	}
	assert.Is(t, "err", assert.Err(inbox.NewSQL(nil, inbox.Options{})), tidegate.ErrInvalid)
	missing := assert.Value(inbox.NewSQL(db, inbox.Options{Table: "missing"}))(t)
	err := missing.Handler(credit)(t.Context(), delivery("g", "1"))
	assert.That(t, err != nil && strings.Contains(err.Error(), "missing"), "%v, want an error that names the table", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Is(t, "err", missing.Handler(credit)(ctx, delivery("g", "1")), context.Canceled)
}

// crashDB names the database of the process that is killed.
const crashDB = "TIDEGATE_INBOX_CRASH_DB"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashDB); path != "" {
		consumeUntilKilled(path)
		return
	}
	os.Exit(m.Run())
}

// crashMessages are more than the process handles before it is killed, also if the test's own
// goroutine waits for a processor. They bound the life of a process without its parent.
const crashMessages = 200_000

// consumeUntilKilled handles each message twice, from the first to the last.
func consumeUntilKilled(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	fail(err)
	s, err := inbox.NewSQL(db, inbox.Options{})
	fail(err)
	h := s.Handler(credit)
	for i := range crashMessages {
		for range 2 {
			fail(h(context.Background(), delivery("g", fmt.Sprint(i))))
		}
	}
}

// Killed at any time and started again, the effects happen once for each message.
func TestKillKeepsEffectsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := openDB(t, path)
	newSQL(t, db)
	assert.Must(t, assert.Err(db.ExecContext(t.Context(), createAccounts)))
	for round := range 5 {
		before := count(t, db, "SELECT COUNT(*) FROM accounts")
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), crashDB+"="+path)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		assert.Must(t, cmd.Start())
		for count(t, db, "SELECT COUNT(*) FROM accounts") < before+10*(round+1) && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		assert.Must(t, cmd.Process.Kill())
		err := cmd.Wait()
		assert.MustThat(t, err != nil && stderr.Len() <= 0, "the process ended before its kill: %v, %s", err, stderr.String())
	}
	n := count(t, db, "SELECT COUNT(*) FROM accounts")
	assert.That(t, n >= 150 && count(t, db, "SELECT COUNT(*) FROM tidegate_inbox") == n,
		"%d effects and %d records", n, count(t, db, "SELECT COUNT(*) FROM tidegate_inbox"))
	twice := count(t, db, "SELECT COUNT(*) FROM accounts WHERE n <> 1")
	assert.That(t, twice == 0, "%d of %d effects happened more than once", twice, n)
}

func in(topic, id string) *tidegate.Delivery {
	d := delivery("g", id)
	d.Topic = topic
	return d
}

// A message of another topic with the same ID is another message.
func TestTopicsAreSeparate(t *testing.T) {
	calls := 0
	count := func(context.Context, *tidegate.Delivery) error { calls++; return nil }
	s := newSQL(t, openDB(t, filepath.Join(t.TempDir(), "test.db")))
	for name, h := range map[string]consumer.Handler{
		"memory": inbox.NewMemory(0).Handler(count),
		"sql":    s.Handler(func(ctx context.Context, _ *sql.Tx, d *tidegate.Delivery) error { return count(ctx, d) }),
	} {
		calls = 0
		for _, topic := range []string{"orders", "returns", "orders"} {
			assert.NoError(t, h(t.Context(), in(topic, "1")))
		}
		assert.That(t, calls == 2, "%s: %d calls for the same ID in two topics, want 2", name, calls)
	}
}

// The effects and the records of a batch are committed together or not at all.
func TestSQLBatch(t *testing.T) {
	poison := errors.New("poison")
	show := func(err error, n int) string {
		r, ok := errors.AsType[consumer.BatchResult](err)
		switch {
		case err == nil:
			return strings.Repeat("+", n)
		case !ok || len(r) != n:
			return err.Error()
		}
		out := ""
		for _, err := range r {
			switch {
			case err == nil:
				out += "+"
			case errors.Is(err, poison):
				out += "p"
			case err.Error() == consumer.Snooze(0).Error():
				out += "s"
			default:
				out += "e"
			}
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		batch  string
		result func(n int) error // of the handler
		got    string            // by the handler
		want   string
		stored int // records
	}{
		{"all", "bca", func(int) error { return nil }, "bca", "+++", 4},
		{"a result of nils", "bca", func(n int) error { return make(consumer.BatchResult, n) }, "bca", "+++", 4},
		{"consumed before", "b0a", func(int) error { return nil }, "ba", "+++", 3},
		{"only consumed before", "0", func(int) error { return poison }, "", "+", 1},
		{"twice in the batch", "bab", func(int) error { return nil }, "ba", "+++", 3},
		{"an error", "b0ab", func(int) error { return poison }, "ba", "p+pp", 1},
		{"one of them", "b0ab", func(int) error { return consumer.BatchResult{poison, nil} }, "ba", "p+sp", 1},
		{"a result of another length", "b0a", func(int) error { return consumer.BatchResult{nil, nil, nil} }, "ba", "e+e", 1},
	} {
		db := openDB(t, filepath.Join(t.TempDir(), "test.db"))
		s := newSQL(t, db)
		assert.Must(t, assert.Err(db.ExecContext(t.Context(), createAccounts)))
		assert.Must(t, s.Handler(func(context.Context, *sql.Tx, *tidegate.Delivery) error { return nil })(t.Context(), in("orders", "0")))
		got := ""
		h := s.BatchHandler(func(ctx context.Context, tx *sql.Tx, ds []*tidegate.Delivery) error {
			for _, d := range ds {
				got += d.ID
				if err := credit(ctx, tx, d); err != nil {
					return err
				}
			}
			return tt.result(len(ds))
		})
		var ds []*tidegate.Delivery
		for id := range strings.SplitSeq(tt.batch, "") {
			ds = append(ds, in("orders", id))
		}
		verdicts := show(h(t.Context(), ds), len(ds))
		effects, records := count(t, db, "SELECT COUNT(*) FROM accounts"), count(t, db, "SELECT COUNT(*) FROM tidegate_inbox")
		if got != tt.got || verdicts != tt.want || records != tt.stored || effects != records-1 {
			t.Errorf("%s: the handler got %q, verdicts %q, %d effects, %d records; want %q, %q, %d records",
				tt.name, got, verdicts, effects, records, tt.got, tt.want, tt.stored)
		}
	}
}

// A commit that fails is a failure of the messages: nothing was stored.
func TestSQLCommitFails(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "test.db"))
	db.SetMaxOpenConns(1) // the pragma holds for one connection
	s := newSQL(t, db)
	for _, q := range []string{
		"PRAGMA foreign_keys = ON", "CREATE TABLE parents (id TEXT PRIMARY KEY)",
		"CREATE TABLE children (parent TEXT REFERENCES parents(id) DEFERRABLE INITIALLY DEFERRED)",
	} {
		assert.Must(t, assert.Err(db.ExecContext(t.Context(), q)))
	}
	orphan := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO children VALUES ('none')")
		return err
	}
	one := s.Handler(func(ctx context.Context, tx *sql.Tx, _ *tidegate.Delivery) error { return orphan(ctx, tx) })
	many := s.BatchHandler(func(ctx context.Context, tx *sql.Tx, _ []*tidegate.Delivery) error { return orphan(ctx, tx) })
	err := one(t.Context(), in("orders", "1"))
	assert.That(t, err != nil && strings.Contains(err.Error(), "commit"), "%v, want the error of the commit", err)
	err = many(t.Context(), []*tidegate.Delivery{in("orders", "2")})
	assert.That(t, err != nil && strings.Contains(err.Error(), "commit"), "a batch: %v, want the error of the commit", err)
	assert.Equal(t, "messages are recorded", count(t, db, "SELECT COUNT(*) FROM tidegate_inbox"), 0)
}
