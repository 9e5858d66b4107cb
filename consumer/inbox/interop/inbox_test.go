//go:build unix

package interop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/internal/assert"
)

// A name names a message for a consumer group.
type name struct{ group, topic, id string }

func (n name) delivery() *tidegate.Delivery {
	return &tidegate.Delivery{Message: tidegate.Message{Topic: n.topic, ID: n.id}, ConsumerGroup: n.group}
}

func (n name) String() string { return fmt.Sprintf("%.30q, %.30q, %.30q", n.group, n.topic, n.id) }

// similar returns messages that a database may confuse: with one another by its collation, or by
// cutting them to the length of a column. The first three are plain.
func similar() (list []name) {
	for _, id := range []string{
		"order-1", "order-2", "order-3", "ord", "abc  ", "abc",
		"a", "A", "á", "Á", "a\u0301", "à", "ａ", "ä", "ae", "æ",
		"a ", "a  ", " a", "a\t", "a\n", "a\u00a0", "a\u200b", "a\u00ad",
		"ss", "ß", "ẞ", "K", "\u212a", "i", "I", "ı", "İ", "1", "01", "1.0", "1e0", "+1", "１",
		"😀", "😁", "😀 ", "a\\", "a'", "a%", "_", "", " ",
		"a\x00", "a\x00b", "a\x00c", "\x00", "\xff", "\xfe", "a\xff", "a\xff\xff", "\xed\xa0\x80",
		repeat("x", 255), repeat("x", 254) + "y", repeat("x", 255) + " ", repeat("x", 255) + "  ", repeat("x", 256), repeat("x", 255) + "y",
		repeat("é", 255), repeat("é", 254) + "e", repeat("😀", 255), repeat("😀", 254) + "😁", repeat("😀", 255) + " ", repeat("é", 256),
		repeat("y", 1020), repeat("y", 1020) + " ", repeat("y", 1021), repeat("y", 1020) + "z", repeat("y", 70_000), repeat("y", 70_000) + "z",
	} {
		list = append(list, name{"g", "t", id})
	}
	for _, other := range []string{"G", "g ", "ǵ", "g\x00", "g\xff", repeat("g", 255) + " ", repeat("g", 255), repeat("g", 2000)} {
		list = append(list, name{other, "t", "a"}, name{"g", other, "a"}, name{"g", other, "A"})
	}
	return list
}

// storable reports whether the columns of a dialect can store a name: VARCHAR(255) of PostgreSQL is
// UTF-8 without NUL, VARBINARY(1020) any bytes, and SQLite has no limit.
func storable(d inbox.Dialect, n name) bool {
	for _, s := range []string{n.group, n.topic, n.id} {
		switch {
		case d == inbox.Postgres && (strings.ToValidUTF8(s, "") != s || strings.ContainsRune(s, 0) || len([]rune(s)) > 255):
			return false
		case d == inbox.MySQL && len(s) > 1020:
			return false
		}
	}
	return true
}

// newInbox returns an inbox in db with its table.
func newInbox(t *testing.T, d inbox.Dialect, db *sql.DB, table string) *inbox.SQL {
	t.Helper()
	s := assert.Value(inbox.NewSQL(db, inbox.Options{Dialect: d, Table: table}))(t)
	assert.Must(t, s.CreateTable(t.Context()))
	return s
}

// A counter is a handler that counts its calls for each message.
type counter struct {
	mu    sync.Mutex
	calls map[name]int
}

func (c *counter) handle(_ context.Context, _ *sql.Tx, d *tidegate.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[name]int{}
	}
	c.calls[name{d.ConsumerGroup, d.Topic, d.ID}]++
	return nil
}

func (c *counter) handleAll(ctx context.Context, tx *sql.Tx, ds []*tidegate.Delivery) error {
	for _, d := range ds {
		if err := c.handle(ctx, tx, d); err != nil {
			return err
		}
	}
	return nil
}

// Every message is handled once, however similar its names are to others, or it is rejected with an
// error. None is acknowledged without having been handled.
func TestSimilarMessagesAreToldApart(t *testing.T) {
	for _, b := range all() {
		t.Run(b.name, func(t *testing.T) {
			db := b.open(t)
			s := newInbox(t, b.dialect, db, "")
			var c counter
			h := s.Handler(c.handle)
			for range 2 {
				for _, n := range similar() {
					err := h(t.Context(), n.delivery())
					want := 0
					if storable(b.dialect, n) {
						want = 1
					}
					if c.calls[n] != want || (err == nil) != (want == 1) || err != nil && !errors.Is(err, tidegate.ErrInvalid) {
						t.Errorf("%v: %d calls, want %d; error %v", n, c.calls[n], want, err)
					}
				}
			}
		})
	}
}

// The same for a batch: a message that the table cannot store fails alone.
func TestSimilarMessagesOfABatch(t *testing.T) {
	for _, b := range all() {
		t.Run(b.name, func(t *testing.T) {
			db := b.open(t)
			s := newInbox(t, b.dialect, db, "")
			var c counter
			h := s.BatchHandler(c.handleAll)
			var ds []*tidegate.Delivery
			for _, n := range similar() {
				ds = append(ds, n.delivery(), n.delivery())
			}
			for range 2 {
				verdicts := make(consumer.BatchResult, len(ds))
				if err := h(t.Context(), ds); err != nil {
					r, ok := errors.AsType[consumer.BatchResult](err)
					assert.MustThat(t, ok && len(r) == len(ds), "%v, want a result for each message", err)
					verdicts = r
				}
				for i, d := range ds {
					n := name{d.ConsumerGroup, d.Topic, d.ID}
					want := 0
					if storable(b.dialect, n) {
						want = 1
					}
					if c.calls[n] != want || (verdicts[i] == nil) != (want == 1) {
						t.Errorf("%v: %d calls, want %d; verdict %v", n, c.calls[n], want, verdicts[i])
					}
				}
			}
		})
	}
}

// Deliveries of one message at the same time, with failures between, have its effect once.
func TestConcurrentDeliveries(t *testing.T) {
	const messages, workers = 40, 8
	for _, b := range all() {
		t.Run(b.name, func(t *testing.T) {
			db := b.open(t)
			s := newInbox(t, b.dialect, db, "")
			exec1(t, db, "CREATE TABLE effects (id VARCHAR(20) NOT NULL, worker INTEGER NOT NULL)")
			fault := errors.New("by the test")
			var wg sync.WaitGroup
			for w := range workers {
				h := s.Handler(func(ctx context.Context, tx *sql.Tx, d *tidegate.Delivery) error {
					if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO effects VALUES ('%s', %d)", d.ID, w)); err != nil {
						return err
					}
					if w%2 == 0 && d.Attempt == 1 {
						return fault
					}
					return nil
				})
				wg.Go(func() {
					for i := range messages {
						d := name{"g", "t", fmt.Sprint("m", i)}.delivery()
						for d.Attempt = 1; ; d.Attempt++ {
							err := h(t.Context(), d)
							if err == nil {
								break
							}
							if d.Attempt == 100 {
								t.Errorf("100 attempts, the last one: %v", err)
								break
							}
						}
					}
				})
			}
			wg.Wait()
			if n, ids := number(t, db, "SELECT COUNT(*) FROM effects"), number(t, db, "SELECT COUNT(DISTINCT id) FROM effects"); n != messages || ids != messages {
				t.Errorf("%d effects of %d messages, want one of each of %d", n, ids, messages)
			}
		})
	}
}

// Purge removes what was consumed before a time, and a record that is needed again stays.
func TestPurge(t *testing.T) {
	for _, b := range all() {
		t.Run(b.name, func(t *testing.T) {
			db := b.open(t)
			s := newInbox(t, b.dialect, db, "")
			var c counter
			h := s.Handler(c.handle)
			n := name{"g", "t", "a"}
			for range 3 {
				assert.Must(t, h(t.Context(), n.delivery()))
			}
			removed, err := s.Purge(t.Context(), time.Now().Add(-time.Hour))
			assert.That(t, removed == 0 && err == nil, "purged %d, %v; want none", removed, err)
			removed, err = s.Purge(t.Context(), time.Now().Add(time.Hour))
			assert.That(t, removed == 1 && err == nil, "purged %d, %v; want 1", removed, err)
			err = h(t.Context(), n.delivery())
			assert.That(t, err == nil && c.calls[n] == 2, "%v, %d calls; want the second one after the purge", err, c.calls[n])
		})
	}
}

// Tables of a program's own schema whose columns do not compare bytes, or are too short, lead to
// errors, never to a message that is acknowledged without having been handled.
func TestColumnsOfOwnSchemas(t *testing.T) {
	schemas := map[inbox.Dialect][]string{
		inbox.SQLite: {"VARCHAR(255) COLLATE NOCASE", "VARCHAR(255) COLLATE RTRIM", "VARCHAR(3)", "BLOB"},
		inbox.Postgres: {
			"VARCHAR(255) COLLATE nocase", "VARCHAR(3)", "TEXT",
		},
		inbox.MySQL: {
			"VARCHAR(255)", "VARCHAR(255) CHARACTER SET latin1", "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "VARBINARY(3)", "VARCHAR(3)",
		},
	}
	for _, b := range all() {
		for i, column := range schemas[b.dialect] {
			t.Run(b.name+"/"+column, func(t *testing.T) {
				db := b.open(t)
				if b.dialect == inbox.Postgres && i == 0 {
					exec1(t, db, "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
				}
				exec1(t, db, fmt.Sprintf("CREATE TABLE own (consumer_group %s NOT NULL, topic %[1]s NOT NULL, message_id %[1]s NOT NULL, consumed_at BIGINT NOT NULL, "+
					"PRIMARY KEY (consumer_group, topic, message_id))", column))
				s := assert.Value(inbox.NewSQL(db, inbox.Options{Dialect: b.dialect, Table: "own"}))(t)
				var c counter
				h := s.Handler(c.handle)
				var handled, rejected int
				for _, n := range similar() {
					err := h(t.Context(), n.delivery())
					if calls := c.calls[n]; calls > 1 || (err == nil) != (calls == 1) {
						t.Errorf("%v: %d calls, error %v", n, calls, err)
					}
					if err == nil {
						handled++
					} else {
						rejected++
					}
				}
				for _, n := range similar() { // again
					if err := h(t.Context(), n.delivery()); c.calls[n] > 1 || err == nil && c.calls[n] != 1 {
						t.Errorf("again %v: %d calls, error %v", n, c.calls[n], err)
					}
				}
				t.Logf("%d handled, %d rejected", handled, rejected)
			})
		}
	}
}

// The table of the version before: it compared VARCHAR by the collation of the database.
const oldTable = `(
	consumer_group VARCHAR(255) NOT NULL,
	topic VARCHAR(255) NOT NULL,
	message_id VARCHAR(255) NOT NULL,
	consumed_at BIGINT NOT NULL,
	PRIMARY KEY (consumer_group, topic, message_id))`

// A table of the version before, with its rows, is converted by CreateTable. Messages that it
// recorded stay recorded; those that are similar to them are handled. Until the conversion they are
// rejected with an error that names the remedy.
func TestTableOfTheVersionBefore(t *testing.T) {
	for _, b := range onMariaDB() {
		for _, charset := range []string{"utf8mb4", "utf8mb3", "latin1", "utf16"} {
			for _, table := range []string{"", "other.records"} {
				t.Run(b.name+"/"+charset+"/"+table, func(t *testing.T) {
					db := b.open(t)
					stored := "tidegate_inbox"
					if table != "" {
						exec1(t, db, "DROP DATABASE IF EXISTS other")
						exec1(t, db, "CREATE DATABASE other")
						stored = table
					}
					old := []string{"order-1", "Case", "café", "space ", "x" + repeat("ü", 254)}
					if charset == "utf8mb4" {
						old = append(old, repeat("😀", 255))
					}
					if charset == "utf16" {
						old = old[:4]
					}
					exec1(t, db, "CREATE TABLE "+stored+" "+oldTable+" DEFAULT CHARSET="+charset)
					for _, id := range old {
						exec1(t, db, "INSERT IGNORE INTO "+stored+" (consumer_group, topic, message_id, consumed_at) VALUES ('g', 't', ?, ?)", id, time.Now().UnixMilli())
					}
					s := assert.Value(inbox.NewSQL(db, inbox.Options{Dialect: inbox.MySQL, Table: table}))(t)
					var c counter
					h := s.Handler(c.handle)
					check := func(id string, calls int, fails bool) {
						t.Helper()
						n := name{"g", "t", id}
						err := h(t.Context(), n.delivery())
						if c.calls[n] != calls || (err != nil) != fails || fails && (!errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "CreateTable")) {
							t.Errorf("%.20q: %d calls, want %d; error %v, want one: %t", id, c.calls[n], calls, err, fails)
						}
					}
					for _, id := range old {
						check(id, 0, false)
					}
					for _, id := range []string{"case", "space", "CAFÉ"} {
						check(id, 0, true)
					}

					// Several processes start with the new version while messages are handled.
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() { assert.NoError(t, s.CreateTable(t.Context())) })
					}
					for i := range 20 {
						wg.Go(func() {
							for _, id := range []string{"order-1", fmt.Sprint("new", i)} {
								assert.NoError(t, h(t.Context(), name{"g", "t", id}.delivery()))
							}
						})
					}
					wg.Wait()
					for range 2 {
						for _, id := range old {
							check(id, 0, false)
						}
						for _, id := range []string{"case", "space", "CAFÉ", "café ", "a\xff", "a\x00"} {
							check(id, 1, false)
						}
					}
					assert.Equal(t, "records", number(t, db, "SELECT COUNT(*) FROM "+stored), len(old)+20+6)
					kinds := number(t, db, "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE DATA_TYPE = 'varbinary' AND TABLE_NAME = ? AND TABLE_SCHEMA IN (DATABASE(), 'other')",
						stored[strings.LastIndex(stored, ".")+1:])
					assert.Equal(t, "columns are VARBINARY", kinds, 3)
					// The version before works on the converted table.
					exec1(t, db, "INSERT IGNORE INTO "+stored+" (consumer_group, topic, message_id, consumed_at) VALUES ('g', 't', 'by the old one', 1)")
					check("by the old one", 0, false)
				})
			}
		}
	}
}

// Errors of the database other than a record that exists fail the message: IGNORE would hide them.
func TestErrorsOfTheDatabase(t *testing.T) {
	for _, b := range all() {
		t.Run(b.name, func(t *testing.T) {
			db := b.open(t)
			s := newInbox(t, b.dialect, db, "")
			exec1(t, db, "CREATE TABLE checked (consumer_group VARCHAR(20) NOT NULL, topic VARCHAR(20) NOT NULL, message_id VARCHAR(20) NOT NULL, "+
				"consumed_at BIGINT NOT NULL, tenant INTEGER NOT NULL DEFAULT 0 CHECK (tenant > 0), PRIMARY KEY (consumer_group, topic, message_id))")
			o := assert.Value(inbox.NewSQL(db, inbox.Options{Dialect: b.dialect, Table: "checked"}))(t)
			var c counter
			n := name{"g", "t", "a"}
			if err := o.Handler(c.handle)(t.Context(), n.delivery()); err == nil || c.calls[n] != 0 {
				t.Errorf("%v, %d calls; want the error of the constraint and none", err, c.calls[n])
			}
			exec1(t, db, "DROP TABLE tidegate_inbox")
			err := s.Handler(c.handle)(t.Context(), n.delivery())
			assert.That(t, err != nil && c.calls[n] == 0, "%v, %d calls; want an error and none", err, c.calls[n])
		})
	}
}
