package inbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/inbox"
)

// A recorder is a database driver that keeps the statements, their arguments and the options of
// transactions. Each statement changes one row.
type recorder struct {
	statements []string
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

// Each dialect inserts a record unless it exists, in the syntax of its database: SQLite and
// PostgreSQL document "ON CONFLICT DO NOTHING", MySQL documents "INSERT IGNORE".
func TestDialects(t *testing.T) {
	for _, tt := range []struct {
		name           string
		dialect        inbox.Dialect
		insert, remove string
	}{
		{"SQLite", inbox.SQLite, "INSERT INTO app.inbox (consumer_group, topic, message_id, consumed_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
			"DELETE FROM app.inbox WHERE consumed_at < ?"},
		{"PostgreSQL", inbox.Postgres, "INSERT INTO app.inbox (consumer_group, topic, message_id, consumed_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
			"DELETE FROM app.inbox WHERE consumed_at < $1"},
		{"MySQL", inbox.MySQL, "INSERT IGNORE INTO app.inbox (consumer_group, topic, message_id, consumed_at) VALUES (?, ?, ?, ?)",
			"DELETE FROM app.inbox WHERE consumed_at < ?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			db := sql.OpenDB(r)
			defer db.Close()
			box, err := inbox.NewSQL(db, inbox.Options{Dialect: tt.dialect, Table: "app.inbox"})
			if err != nil {
				t.Fatal(err)
			}
			h := box.Handler(func(context.Context, *sql.Tx, *tidegate.Delivery) error { return nil })
			if err := h(t.Context(), delivery("g", "1")); err != nil {
				t.Fatal(err)
			}
			if _, err := box.Purge(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(r.statements, "\n"), tt.insert+"\n"+tt.remove; got != want {
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
			box, err := inbox.NewSQL(db, inbox.Options{TxOptions: tt.opts})
			if err != nil {
				t.Fatal(err)
			}
			one := box.Handler(func(context.Context, *sql.Tx, *tidegate.Delivery) error { return nil })
			batch := box.BatchHandler(func(context.Context, *sql.Tx, []*tidegate.Delivery) error { return nil })
			if err := one(t.Context(), delivery("g", "1")); err != nil {
				t.Fatal(err)
			}
			if err := batch(t.Context(), []*tidegate.Delivery{delivery("g", "2")}); err != nil {
				t.Fatal(err)
			}
			if len(r.options) != 2 || r.options[0] != tt.want || r.options[1] != tt.want {
				t.Errorf("options of the transactions %+v, want %+v twice", r.options, tt.want)
			}
		})
	}
}

// The messages of a batch are recorded in the order of group, topic and ID, not in that of the
// batch. So two transactions with the same messages cannot wait for each other.
func TestBatchIsRecordedInOrder(t *testing.T) {
	r := &recorder{}
	db := sql.OpenDB(r)
	defer db.Close()
	box, err := inbox.NewSQL(db, inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := box.BatchHandler(func(context.Context, *sql.Tx, []*tidegate.Delivery) error { return nil })
	if err := h(t.Context(), []*tidegate.Delivery{in("returns", "1"), in("orders", "2"), in("orders", "1"), in("orders", "2")}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, args := range r.args {
		got = append(got, args[1].Value.(string)+"/"+args[2].Value.(string))
	}
	if want := []string{"orders/1", "orders/2", "returns/1"}; !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}
