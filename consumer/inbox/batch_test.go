package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/internal/assert"
)

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
