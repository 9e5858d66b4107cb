package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The worker kills itself at these orders, in its first and in its second life.
const (
	killAfterCommit  = 10
	killBeforeCommit = 20
)

const allDone = "all orders are done"

var errRefused = errors.New("the customer has no credit")

func workFromEnv(ctx context.Context) error {
	life, err := strconv.Atoi(os.Getenv(envLife))
	if err != nil {
		return err
	}
	db, err := openDatabase(os.Getenv(envDatabase))
	if err != nil {
		return err
	}
	defer db.Close()
	return work(ctx, db, os.Getenv(envAddress), life)
}

// openDatabase opens the file. The table outcomes has the resolution of each message:
// the first insert decides, that of the local transaction or that of the checker.
func openDatabase(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(context.Background(), `
		CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, message_id TEXT NOT NULL);
		CREATE TABLE IF NOT EXISTS outcomes (message_id TEXT PRIMARY KEY, outcome TEXT NOT NULL)`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// work stores the orders that are not in the database yet, each with its message.
func work(ctx context.Context, db *sql.DB, address string, life int) error {
	t, err := rocketmq.New(address, rocketmq.Options{})
	if err != nil {
		return err
	}
	defer t.Close()
	p, err := producer.New(t, producer.Options{
		Checker: func(ctx context.Context, check transport.TransactionCheck) transport.Resolution {
			r, err := outcome(ctx, db, check.Transaction.MessageID)
			if err != nil {
				fmt.Fprintln(os.Stderr, "checker:", err)
				return transport.ResolutionUnknown // the broker asks again
			}
			fmt.Printf("the checker resolves message %s with %v\n", check.Transaction.MessageID, r)
			return r
		},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	serving.Go(func() {
		if err := p.ServeChecks(ctx, topic); err != nil {
			fmt.Fprintln(os.Stderr, "checks:", err)
		}
	})

	var stored int
	if err := db.QueryRowContext(ctx, `SELECT coalesce(max(number), 0) FROM orders`).Scan(&stored); err != nil {
		return err
	}
	fmt.Printf("begins with order %d\n", stored+1)
	for n := stored + 1; n <= orders; n++ {
		msg := &tidegate.Message{Topic: topic, Keys: []string{strconv.Itoa(n)}, Body: fmt.Appendf(nil, "order %d", n)}
		_, err := p.Transact(ctx, msg, func(ctx context.Context, msg *tidegate.Message) error {
			return store(ctx, db, n, msg.ID, life)
		})
		if err != nil && !errors.Is(err, errRefused) {
			return fmt.Errorf("order %d: %w", n, err)
		}
	}
	fmt.Println(allDone)
	_, err = io.Copy(io.Discard, os.Stdin) // checks are served until the end of the input
	return err
}

// store is the local transaction: the order and the outcome of its message.
func store(ctx context.Context, db *sql.DB, n int, messageID string, life int) error {
	if n%10 == 5 {
		return errRefused
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (number, message_id) VALUES (?, ?)`, n, messageID); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO outcomes (message_id, outcome) VALUES (?, 'commit')`, messageID); err != nil {
		return err // the checker was quicker, and has rolled the message back
	}
	if life == 1 && n == killBeforeCommit {
		kill("before the commit of order", n)
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if life == 0 && n == killAfterCommit {
		kill("after the commit of order", n)
	}
	return nil
}

// outcome returns the resolution of a message. A message without one gets 'rollback',
// and a local transaction that is still under way cannot commit any more.
func outcome(ctx context.Context, db *sql.DB, messageID string) (transport.Resolution, error) {
	if _, err := db.ExecContext(ctx, `INSERT OR IGNORE INTO outcomes (message_id, outcome) VALUES (?, 'rollback')`, messageID); err != nil {
		return transport.ResolutionUnknown, err
	}
	var s string
	if err := db.QueryRowContext(ctx, `SELECT outcome FROM outcomes WHERE message_id = ?`, messageID).Scan(&s); err != nil {
		return transport.ResolutionUnknown, err
	}
	if s == "commit" {
		return transport.Commit, nil
	}
	return transport.Rollback, nil
}

// kill ends the process as kill -9 does.
func kill(where string, n int) {
	fmt.Println("kills itself", where, n)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // until the signal arrives
}
