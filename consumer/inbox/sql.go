package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// defaultTable is the default name of the table of an SQL inbox.
const defaultTable = "tidegate_inbox"

// A Dialect selects the SQL syntax for a database.
type Dialect int

// The dialects. MySQL is also the one of MariaDB.
const (
	SQLite Dialect = iota
	Postgres
	MySQL
)

const (
	maxCharacters = 255  // of the columns in PostgreSQL, VARCHAR(255)
	maxBytes      = 1020 // of the columns in MySQL, VARBINARY(1020): a VARCHAR(255) of utf8mb4 fits
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
	db                              *sql.DB
	tx                              *sql.TxOptions
	dialect                         Dialect
	table                           string
	create, insert, recorded, purge string

	longest [3]atomic.Int64 // see mayCut
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
	s := &SQL{db: db, tx: o.TxOptions, dialect: o.Dialect, table: o.Table}
	column, engine := fmt.Sprintf("VARCHAR(%d)", maxCharacters), ""
	insert := "INSERT INTO " + o.Table + " (consumer_group, topic, message_id, consumed_at) VALUES "
	s.recorded = "SELECT consumer_group, topic, message_id FROM " + o.Table + " WHERE consumer_group = "
	s.purge = "DELETE FROM " + o.Table + " WHERE consumed_at < "
	switch o.Dialect {
	case Postgres:
		s.insert = insert + "($1, $2, $3, $4) ON CONFLICT DO NOTHING"
		s.recorded += "$1 AND topic = $2 AND message_id = $3"
		s.purge += "$1"
	case MySQL:
		column, engine = fmt.Sprintf("VARBINARY(%d)", maxBytes), " ENGINE=InnoDB"
		// IGNORE would hide other errors, and truncate. The update always changes the row: a record
		// that exists counts as two affected rows, also for a driver that counts the rows found.
		s.insert = insert + "(?, ?, ?, ?) ON DUPLICATE KEY UPDATE consumed_at = consumed_at + 1"
		s.recorded += "? AND topic = ? AND message_id = ? FOR UPDATE" // the newest, not the one of a snapshot
		s.purge += "?"
	default:
		s.insert = insert + "(?, ?, ?, ?) ON CONFLICT DO NOTHING"
		s.recorded += "? AND topic = ? AND message_id = ?"
		s.purge += "?"
	}
	s.create = "CREATE TABLE IF NOT EXISTS " + o.Table + ` (
	consumer_group ` + column + ` NOT NULL,
	topic ` + column + ` NOT NULL,
	message_id ` + column + ` NOT NULL,
	consumed_at BIGINT NOT NULL,
	PRIMARY KEY (consumer_group, topic, message_id))` + engine
	return s, nil
}

func invalid(subject, text string) error {
	return &tidegate.Error{Op: "inbox.NewSQL", Subject: subject, Code: tidegate.CodeBadRequest, Message: text}
}

// CreateTable creates the inbox's table unless it exists. A program that manages its own schema
// creates the same columns instead:
//
//   - consumer_group, topic and message_id, which together are the primary key: VARCHAR(255) in
//     SQLite and PostgreSQL, VARBINARY(1020) in MySQL and MariaDB, where the engine of the table
//     must be transactional, as InnoDB is;
//   - consumed_at, BIGINT, the time in milliseconds since 1970.
//
// The first three columns must compare bytes, as VARCHAR does in SQLite and PostgreSQL unless it is
// declared with another collation. VARCHAR of MySQL and MariaDB compares by a collation: messages
// whose IDs, topics or groups differ only in case, accents or trailing spaces have one record then.
//
// In MySQL and MariaDB, CreateTable therefore converts VARCHAR columns, which earlier versions
// created, to VARBINARY(1020). The records stay valid. The conversion copies the table, and
// transactions of handlers wait until it ends. It needs the right ALTER. Programs with the earlier
// version may use the converted table.
func (s *SQL) CreateTable(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, s.create); err != nil {
		return fmt.Errorf("inbox: create the table %s: %w", s.table, err)
	}
	if s.dialect != MySQL {
		return nil
	}
	if err := s.convert(ctx); err != nil {
		return fmt.Errorf("inbox: convert columns of the table %s to VARBINARY(%d), so that they compare bytes: %w", s.table, maxBytes, err)
	}
	return nil
}

// convert makes the columns of a table in MySQL compare bytes. One process converts at a time.
func (s *SQL) convert(ctx context.Context) error {
	if columns, err := s.characterColumns(ctx); err != nil || len(columns) == 0 {
		return err
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for {
		var locked sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK('tidegate inbox', 5)").Scan(&locked); err != nil {
			return err
		}
		if locked.Int64 == 1 {
			break
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	defer func() {
		// A connection that cannot release the lock is closed, which releases it.
		if _, err := conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK('tidegate inbox')"); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	columns, err := s.characterColumns(ctx)
	if err != nil || len(columns) == 0 {
		return err
	}
	// By way of UTF-8, because the change to VARBINARY keeps the bytes of the former character set.
	for _, kind := range []string{fmt.Sprintf("VARCHAR(%d) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", maxCharacters), fmt.Sprintf("VARBINARY(%d)", maxBytes)} {
		var changes []string
		for _, c := range columns {
			changes = append(changes, "MODIFY "+c+" "+kind+" NOT NULL")
		}
		if _, err := conn.ExecContext(ctx, "ALTER TABLE "+s.table+" "+strings.Join(changes, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// characterColumns returns the columns of the key that have a character set.
func (s *SQL) characterColumns(ctx context.Context) (columns []string, err error) {
	query, args := `SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE CHARACTER_SET_NAME IS NOT NULL
		AND COLUMN_NAME IN ('consumer_group', 'topic', 'message_id') AND TABLE_NAME = ? AND TABLE_SCHEMA = `, []any{s.table}
	if schema, table, ok := strings.Cut(s.table, "."); ok {
		query, args = query+"?", []any{table, schema}
	} else {
		query += "DATABASE()"
	}
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var c string
		if err := rows.Scan(&c); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, rows.Err()
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
//
// The handler returns an error without calling next for a message whose ID, topic or group the
// database cannot store, and for one whose record is that of another message, because the columns
// of the table do not compare bytes. These errors match [tidegate.ErrInvalid]. PostgreSQL stores up
// to 255 characters of UTF-8 without NUL, MySQL up to 1020 bytes.
//
// The handler needs the rights to insert and select rows of the table, and in MySQL to update them.
func (s *SQL) Handler(next func(ctx context.Context, tx *sql.Tx, d *tidegate.Delivery) error) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		return s.transact(ctx, func(tx *sql.Tx) error {
			if fresh, refused, err := s.record(ctx, tx, keyOf(d)); !fresh {
				return cmp.Or(err, refused)
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

// record records a message as consumed, and reports false if it was recorded before. If it cannot
// record the message because of its names, it returns refused and changes nothing. After an err the
// transaction cannot be committed.
func (s *SQL) record(ctx context.Context, tx *sql.Tx, k key) (fresh bool, refused, err error) {
	if err := s.storable(k); err != nil {
		return false, err, nil
	}
	failed := func(err error) (bool, error, error) {
		return false, nil, fmt.Errorf("inbox: record message %q of topic %q: %w", k.id, k.topic, err)
	}
	result, err := tx.ExecContext(ctx, s.insert, k.group, k.topic, k.id, time.Now().UnixMilli())
	if err != nil {
		return failed(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return failed(err)
	}
	if fresh = n == 1; fresh && !s.mayCut(k) {
		return true, nil, nil
	}
	found, err := s.read(ctx, tx, k)
	switch {
	case err != nil:
		return failed(err)
	case found != nil && *found == k:
		s.stored(k)
		return fresh, nil, nil
	case fresh:
		return false, nil, s.refused(k, "the columns of the table %s cut or change it; call SQL.CreateTable, or change the columns to those in its document", s.table)
	case found == nil:
		return failed(errors.New("its record was removed meanwhile; the next attempt creates a new one"))
	}
	return false, s.refused(k, "the record of message %q of topic %q, group %q, has its place, because the columns of the table %s do not compare bytes; "+
		"call SQL.CreateTable, or change the columns to those in its document", found.id, found.topic, found.group, s.table), nil
}

// mayCut reports whether the columns may be too short for the names of k, so that a database stores
// only their beginning: MySQL without its strict mode does so, and both MySQL and PostgreSQL cut
// spaces at the end in any mode. The columns have been seen to store names of the length longest.
func (s *SQL) mayCut(k key) bool {
	if s.dialect == SQLite {
		return false
	}
	for i, f := range k.fields() {
		if int64(len(f)) > s.longest[i].Load() || strings.HasSuffix(f, " ") {
			return true
		}
	}
	return false
}

// stored notes that the columns have stored the names of k. It counts characters, the unit of
// VARCHAR, of which a name never has more than bytes.
func (s *SQL) stored(k key) {
	for i, f := range k.fields() {
		n := int64(utf8.RuneCountInString(f))
		for old := s.longest[i].Load(); old < n && !s.longest[i].CompareAndSwap(old, n); old = s.longest[i].Load() {
		}
	}
}

// read returns the record that the database finds for k: k itself if there is such a record, nil if
// there is none.
func (s *SQL) read(ctx context.Context, tx *sql.Tx, k key) (found *key, err error) {
	rows, err := tx.QueryContext(ctx, s.recorded, k.group, k.topic, k.id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() && (found == nil || *found != k) {
		found = &key{}
		if err := rows.Scan(&found.group, &found.topic, &found.id); err != nil {
			return nil, err
		}
	}
	return found, rows.Err()
}

// storable returns an error for a message whose names the columns of the database cannot store.
// Databases cut some of them: MySQL without its strict mode, and PostgreSQL spaces at the end.
func (s *SQL) storable(k key) error {
	for i, f := range k.fields() {
		name := [...]string{"consumer group", "topic", "ID"}[i]
		switch n := len(f); {
		case s.dialect == MySQL && n > maxBytes:
			return s.refused(k, "the %s has %d bytes; the limit is %d", name, n, maxBytes)
		case s.dialect == Postgres && (!utf8.ValidString(f) || strings.Contains(f, "\x00")):
			return s.refused(k, "the %s is not UTF-8, or contains NUL; PostgreSQL cannot store it as text", name)
		case s.dialect == Postgres && n > maxCharacters && utf8.RuneCountInString(f) > maxCharacters:
			return s.refused(k, "the %s has %d characters; the limit is %d", name, utf8.RuneCountInString(f), maxCharacters)
		}
	}
	return nil
}

// refused returns the error of a message that is not handled because the inbox cannot record it.
func (s *SQL) refused(k key, format string, args ...any) error {
	return &tidegate.Error{
		Op: "inbox: record", Subject: fmt.Sprintf("message %.300q of topic %.300q", k.id, k.topic), Code: tidegate.CodeBadRequest,
		Message: fmt.Sprintf(format, args...),
	}
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
