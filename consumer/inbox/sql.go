package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// defaultTable is the default name of the table of an SQL inbox.
const defaultTable = "tidegate_inbox"

// A Dialect selects the SQL syntax for a database.
type Dialect int

// The dialects.
const (
	SQLite Dialect = iota
	Postgres
	MySQL
)

// Options configure an [SQL]. The zero value is valid and means SQLite.
type Options struct {
	// Dialect is the SQL syntax of the database. Zero means SQLite.
	Dialect Dialect

	// Table is the table's name: letters, digits and '_', optionally after a schema, for example
	// "app.inbox". Default: tidegate_inbox.
	Table string

	// TxOptions are the options of each transaction. Nil means the driver's defaults.
	TxOptions *sql.TxOptions
}

// An SQL is an inbox in a database. Several goroutines may share an SQL, and several processes may
// share its table. Create it with [NewSQL].
type SQL struct {
	db                    *sql.DB
	tx                    *sql.TxOptions
	create, insert, purge string
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// NewSQL returns an inbox in db. It neither connects to the database nor creates the table; see
// [SQL.CreateTable]. The error joins all faults of the arguments.
func NewSQL(db *sql.DB, o Options) (*SQL, error) {
	if o.Table == "" {
		o.Table = defaultTable
	}
	var errs []error
	if db == nil {
		errs = append(errs, invalid("db", "it is nil; give an open database"))
	}
	if !tableName.MatchString(o.Table) {
		errs = append(errs, invalid("Options.Table", fmt.Sprintf("%q is not a table name; use letters, digits and '_'", o.Table)))
	}
	if o.Dialect < SQLite || o.Dialect > MySQL {
		errs = append(errs, invalid("Options.Dialect", fmt.Sprintf("%d is unknown; use SQLite, Postgres or MySQL", o.Dialect)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &SQL{db: db, tx: o.TxOptions}
	s.create = "CREATE TABLE IF NOT EXISTS " + o.Table + ` (
	consumer_group VARCHAR(255) NOT NULL,
	topic VARCHAR(255) NOT NULL,
	message_id VARCHAR(255) NOT NULL,
	consumed_at BIGINT NOT NULL,
	PRIMARY KEY (consumer_group, topic, message_id))`
	columns := o.Table + " (consumer_group, topic, message_id, consumed_at) VALUES "
	remove := "DELETE FROM " + o.Table + " WHERE consumed_at < "
	switch o.Dialect {
	case Postgres:
		s.insert, s.purge = "INSERT INTO "+columns+"($1, $2, $3, $4) ON CONFLICT DO NOTHING", remove+"$1"
	case MySQL:
		s.insert, s.purge = "INSERT IGNORE INTO "+columns+"(?, ?, ?, ?)", remove+"?"
	default:
		s.insert, s.purge = "INSERT INTO "+columns+"(?, ?, ?, ?) ON CONFLICT DO NOTHING", remove+"?"
	}
	return s, nil
}

func invalid(subject, text string) error {
	return &tidegate.Error{Op: "inbox.NewSQL", Subject: subject, Code: tidegate.CodeBadRequest, Message: text}
}

// CreateTable creates the inbox's table unless it exists. A program that manages its own schema
// creates the same columns instead:
//
//   - consumer_group, topic and message_id, VARCHAR(255), which together are the primary key;
//   - consumed_at, BIGINT, the time in milliseconds since 1970.
func (s *SQL) CreateTable(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, s.create); err != nil {
		return fmt.Errorf("inbox: create the table: %w", err)
	}
	return nil
}

// Handler returns a handler that records the message and calls next in one transaction. If the
// message is recorded already, the handler returns nil without calling next. next must neither
// commit nor roll back tx. Its effects outside of tx, such as a request to another service, can
// happen more than once.
//
// After an error or a panic of next the transaction is rolled back, and the handler returns the
// error or passes on the panic. If two deliveries of a message are handled at the same time, the
// database makes the second insert wait until the first transaction has ended.
//
// If the response to the commit is lost, the handler returns an error, and the consumer retries the
// message. The retry calls next only if the database did not commit.
func (s *SQL) Handler(next func(ctx context.Context, tx *sql.Tx, d *tidegate.Delivery) error) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		return s.transact(ctx, func(tx *sql.Tx) error {
			if fresh, err := s.record(ctx, tx, keyOf(d)); err != nil || !fresh {
				return err
			}
			return next(ctx, tx, d)
		})
	}
}

// transact calls f in a transaction, and commits it if f returns nil.
func (s *SQL) transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, s.tx)
	if err != nil {
		return fmt.Errorf("inbox: begin a transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("inbox: commit: %w", err)
	}
	return nil
}

// record records a message as consumed, and reports false if it was recorded before.
func (s *SQL) record(ctx context.Context, tx *sql.Tx, k key) (fresh bool, err error) {
	result, err := tx.ExecContext(ctx, s.insert, k.group, k.topic, k.id, time.Now().UnixMilli())
	if err != nil {
		return false, fmt.Errorf("inbox: record message %s of %s: %w", k.id, k.topic, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("inbox: record message %s of %s: %w", k.id, k.topic, err)
	}
	return n > 0, nil
}

// Purge deletes the records of messages that were consumed before t and returns their number. A
// message that is delivered again after the deletion is handled again. Keep the records for longer
// than the broker retains messages.
func (s *SQL) Purge(ctx context.Context, t time.Time) (int64, error) {
	result, err := s.db.ExecContext(ctx, s.purge, t.UnixMilli())
	if err != nil {
		return 0, fmt.Errorf("inbox: purge: %w", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("inbox: purge: %w", err)
	}
	return n, nil
}
