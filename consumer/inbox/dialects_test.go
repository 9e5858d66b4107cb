package inbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/internal/assert"
)

// A recorder is a database driver that keeps the statements, their arguments and the options of
// transactions. Each statement changes one row. A query finds the row of its arguments, in exact if
// it is set.
type recorder struct {
	statements []string
	exact      []driver.Value
	args       [][]driver.NamedValue
	options    []driver.TxOptions
}

func (r *recorder) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r *recorder) Driver() driver.Driver                        { return nil }
func (r *recorder) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (r *recorder) Close() error                                 { return nil }
func (r *recorder) Begin() (driver.Tx, error)                    { return r, nil }
func (r *recorder) Commit() error                                { return nil }
func (r *recorder) Rollback() error                              { return nil }

func (r *recorder) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	r.options = append(r.options, o)
	return r, nil
}

func (r *recorder) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r.statements, r.args = append(r.statements, query), append(r.args, args)
	return driver.RowsAffected(1), nil
}

func (r *recorder) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	r.statements = append(r.statements, query)
	row := &oneRow{r.exact}
	if r.exact == nil {
		for _, a := range args {
			row.values = append(row.values, a.Value)
		}
	}
	return row, nil
}

// oneRow is a result of one row.
type oneRow struct{ values []driver.Value }

func (*oneRow) Columns() []string { return []string{"consumer_group", "topic", "message_id"} }
func (*oneRow) Close() error      { return nil }
func (r *oneRow) Next(dest []driver.Value) error {
	if r.values == nil {
		return io.EOF
	}
	copy(dest, r.values)
	r.values = nil
	return nil
}

// Each dialect inserts a record unless it exists, in the syntax of its database: SQLite and
// PostgreSQL document "ON CONFLICT DO NOTHING", MySQL documents "ON DUPLICATE KEY UPDATE". Where
// the database may cut a value, the first record is read back.
func TestDialects(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		dialect              inbox.Dialect
		insert, read, remove string
	}{
		{"SQLite", inbox.SQLite, "INSERT INTO app.inbox (consumer_group, topic, message_id, consumed_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", "",
			"DELETE FROM app.inbox WHERE consumed_at < ?"},
		{"PostgreSQL", inbox.Postgres, "INSERT INTO app.inbox (consumer_group, topic, message_id, consumed_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
			"SELECT consumer_group, topic, message_id FROM app.inbox WHERE consumer_group = $1 AND topic = $2 AND message_id = $3\n",
			"DELETE FROM app.inbox WHERE consumed_at < $1"},
		{"MySQL", inbox.MySQL, "INSERT INTO app.inbox (consumer_group, topic, message_id, consumed_at) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE consumed_at = consumed_at + 1",
			"SELECT consumer_group, topic, message_id FROM app.inbox WHERE consumer_group = ? AND topic = ? AND message_id = ? FOR UPDATE\n",
			"DELETE FROM app.inbox WHERE consumed_at < ?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			db := sql.OpenDB(r)
			defer db.Close()
			box := assert.Value(inbox.NewSQL(db, inbox.Options{Dialect: tt.dialect, Table: "app.inbox"}))(t)
			h := box.Handler(func(context.Context, *sql.Tx, *tidegate.Delivery) error { return nil })
			for _, id := range []string{"1", "2"} {
				assert.Must(t, h(t.Context(), delivery("g", id)))
			}
			assert.Must(t, assert.Err(box.Purge(t.Context(), time.Now())))
			if got, want := strings.Join(r.statements, "\n"), tt.insert+"\n"+tt.read+tt.insert+"\n"+tt.remove; got != want {
				t.Errorf("statements:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TxOptions are the options of each transaction, of messages and of batches.
func TestTxOptions(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts *sql.TxOptions
		want driver.TxOptions
	}{
		{"the driver's defaults", nil, driver.TxOptions{}},
		{"serializable", &sql.TxOptions{Isolation: sql.LevelSerializable}, driver.TxOptions{Isolation: driver.IsolationLevel(sql.LevelSerializable)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			db := sql.OpenDB(r)
			defer db.Close()
			box := assert.Value(inbox.NewSQL(db, inbox.Options{TxOptions: tt.opts}))(t)
			one := box.Handler(func(context.Context, *sql.Tx, *tidegate.Delivery) error { return nil })
			batch := box.BatchHandler(func(context.Context, *sql.Tx, []*tidegate.Delivery) error { return nil })
			assert.Must(t, one(t.Context(), delivery("g", "1")))
			assert.Must(t, batch(t.Context(), []*tidegate.Delivery{delivery("g", "2")}))
			assert.That(t, len(r.options) == 2 && r.options[0] == tt.want && r.options[1] == tt.want, "options of the transactions %+v, want %+v twice", r.options, tt.want)
		})
	}
}

// The messages of a batch are recorded in the order of group, topic and ID, not in that of the
// batch. So two transactions with the same messages cannot wait for each other.
func TestBatchIsRecordedInOrder(t *testing.T) {
	r := &recorder{}
	db := sql.OpenDB(r)
	defer db.Close()
	box := assert.Value(inbox.NewSQL(db, inbox.Options{}))(t)
	h := box.BatchHandler(func(context.Context, *sql.Tx, []*tidegate.Delivery) error { return nil })
	assert.Must(t, h(t.Context(), []*tidegate.Delivery{in("returns", "1"), in("orders", "2"), in("orders", "1"), in("orders", "2")}))
	var got []string
	for _, args := range r.args {
		got = append(got, args[1].Value.(string)+"/"+args[2].Value.(string))
	}
	want := []string{"orders/1", "orders/2", "returns/1"}
	assert.That(t, slices.Equal(got, want), "recorded %v, want %v", got, want)
}

// A record that a database cut or changed is that of another message: the handler does not run.
func TestRecordOfAnotherMessage(t *testing.T) {
	for _, d := range []inbox.Dialect{inbox.Postgres, inbox.MySQL} {
		r := &recorder{exact: []driver.Value{"g", "", "order-"}}
		db := sql.OpenDB(r)
		defer db.Close()
		box := assert.Value(inbox.NewSQL(db, inbox.Options{Dialect: d}))(t)
		h := box.Handler(func(context.Context, *sql.Tx, *tidegate.Delivery) error { t.Error("the handler ran"); return nil })
		if err := h(t.Context(), delivery("g", "order-1")); !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "order-1") {
			t.Errorf("%v, want ErrInvalid with the ID", err)
		}
	}
}

// Columns of SQLite that ignore case do not confuse two messages, alone or in a batch.
func TestColumnsThatIgnoreCase(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "test.db"))
	assert.Must(t, assert.Err(db.ExecContext(t.Context(), `CREATE TABLE own (consumer_group TEXT, topic TEXT, message_id TEXT COLLATE NOCASE, consumed_at BIGINT,
		PRIMARY KEY (consumer_group, topic, message_id))`)))
	box, err := inbox.NewSQL(db, inbox.Options{Table: "own"})
	assert.Must(t, err)
	var got []string
	one := box.Handler(func(_ context.Context, _ *sql.Tx, d *tidegate.Delivery) error { got = append(got, d.ID); return nil })
	assert.Must(t, one(t.Context(), in("orders", "A")))
	for range 2 {
		if err := one(t.Context(), in("orders", "a")); !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), `"A"`) {
			t.Errorf("%v, want ErrInvalid with the ID of the record", err)
		}
	}
	many := box.BatchHandler(func(_ context.Context, _ *sql.Tx, ds []*tidegate.Delivery) error {
		for _, d := range ds {
			got = append(got, d.ID)
		}
		return nil
	})
	err = many(t.Context(), []*tidegate.Delivery{in("orders", "b"), in("orders", "A"), in("orders", "a"), in("orders", "c")})
	r, ok := errors.AsType[consumer.BatchResult](err)
	assert.That(t, ok && len(r) == 4 && r[0] == nil && r[1] == nil && errors.Is(r[2], tidegate.ErrInvalid) && r[3] == nil, "%v, want an error of the third message alone", err)
	want := []string{"A", "b", "c"}
	assert.That(t, slices.Equal(got, want), "handled %q, want %q", got, want)
}
