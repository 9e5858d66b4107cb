// Command transaction ties orders in an SQL database to messages. Its worker, a
// process of its own, kills itself twice: between the commit of the database and the
// end of the message's transaction, and before the commit. It prints each step and
// exits with 1 unless each order in the database has its message, and no other has one.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

const (
	topic, group = "orders", "billing"
	orders       = 30
)

// The environment of a worker.
const (
	envAddress  = "EXAMPLE_WORKER_ADDRESS"  // of the broker
	envDatabase = "EXAMPLE_WORKER_DATABASE" // the file
	envLife     = "EXAMPLE_WORKER_LIFE"     // 0 is the first
)

func main() {
	var err error
	if os.Getenv(envAddress) != "" {
		err = workFromEnv(context.Background())
	} else {
		err = run(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "transaction:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "transaction")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	address, stop, err := serve(ctx)
	if err != nil {
		return err
	}
	defer stop()
	received, err := consume(ctx, address)
	if err != nil {
		return err
	}
	defer received.stop()

	start := time.Now()
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, "%6.2f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	path := filepath.Join(dir, "orders.db")
	for life := range 3 {
		w, err := startWorker(ctx, address, path, life)
		if err != nil {
			return err
		}
		report := func(line string) { say("worker %d: %s", life+1, line) }
		done, err := w.follow(report)
		switch {
		case err != nil:
			return err
		case done != (life == 2):
			return fmt.Errorf("worker %d finished: %v", life+1, done)
		case !done:
			say("worker %d was killed and is started again", life+1)
			continue
		}
		// The worker serves checks until the end of its input.
		var following sync.WaitGroup
		following.Go(func() { _, err = w.follow(report) })
		compared := compare(ctx, say, path, received)
		closed := w.input.Close()
		following.Wait()
		if err := errors.Join(compared, closed, err); err != nil {
			return err
		}
	}
	say("each order has its message, and no other order has one")
	return nil
}

// serve starts a broker. It asks for the resolution of a transaction after half a
// second; the default of six seconds suits production.
func serve(ctx context.Context) (address string, stop func(), err error) {
	b, err := broker.Open(broker.Options{})
	if err != nil {
		return "", nil, err
	}
	fail := func(err error) (string, func(), error) { return "", nil, errors.Join(err, b.Close()) }
	_, err = b.PutTopic(ctx, topic, settings.Topic{
		Type: settings.TopicTransaction,
		Transaction: settings.Transaction{
			Timeout: settings.Duration(500 * time.Millisecond), CheckInterval: settings.Duration(500 * time.Millisecond),
		},
	})
	if err != nil {
		return fail(err)
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fail(err)
	}
	address = lis.Addr().String()
	s, err := server.New(b, server.Options{Advertise: address})
	if err != nil {
		return fail(errors.Join(err, lis.Close()))
	}
	go func() { _ = s.Serve(lis) }() // it ends with stop
	return address, func() { _ = errors.Join(s.Close(), b.Close()) }, nil
}

// A process is a running worker.
type process struct {
	cmd    *exec.Cmd
	input  io.Closer
	output *bufio.Scanner
	done   bool // it has done all orders
}

func startWorker(ctx context.Context, address, path string, life int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &process{cmd: exec.CommandContext(ctx, self)}
	w.cmd.Env = append(os.Environ(), envAddress+"="+address, envDatabase+"="+path, envLife+"="+strconv.Itoa(life))
	w.cmd.Stderr = os.Stderr
	if w.input, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.output = bufio.NewScanner(stdout)
	return w, w.cmd.Start()
}

// follow reports the output of the worker until it has done all orders, or ends. A
// worker that ends has to be killed, or to have done all.
func (w *process) follow(report func(line string)) (done bool, err error) {
	for w.output.Scan() {
		line := w.output.Text()
		report(line)
		if w.done = w.done || line == allDone; line == allDone {
			return true, nil
		}
	}
	err = w.cmd.Wait()
	if killed := w.cmd.ProcessState.ExitCode() == -1; killed == w.done {
		return false, fmt.Errorf("the worker ended with %v: all done is %v", w.cmd.ProcessState, w.done)
	}
	if w.done {
		return true, err
	}
	return false, nil
}

// compare waits until every transaction is resolved and consumed, and compares the
// database with the messages.
func compare(ctx context.Context, say func(string, ...any), path string, received *messages) error {
	db, err := openDatabase(path)
	if err != nil {
		return err
	}
	defer db.Close()
	const refused, killedBeforeCommit = orders / 10, 1
	var committed, rolledBack int
	for committed+rolledBack < orders+killedBeforeCommit || received.len() < committed {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d committed and %d rolled back, %d consumed: %w", committed, rolledBack, received.len(), ctx.Err())
		}
		row := db.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE outcome = 'commit'), count(*) FILTER (WHERE outcome = 'rollback') FROM outcomes`)
		if err := row.Scan(&committed, &rolledBack); err != nil {
			return err
		}
	}
	ids, err := orderIDs(ctx, db)
	if err != nil {
		return err
	}
	say("%d orders in the database, %d messages consumed, %d half messages rolled back", len(ids), received.len(), rolledBack)
	switch {
	case len(ids) != orders-refused || rolledBack != refused+killedBeforeCommit:
		return fmt.Errorf("want %d orders and %d rolled back", orders-refused, refused+killedBeforeCommit)
	case received.len() != len(ids):
		return fmt.Errorf("%d messages were consumed", received.len())
	}
	for _, id := range ids {
		if !received.has(id) {
			return fmt.Errorf("the order of message %s is in the database, and its message was not consumed", id)
		}
	}
	return nil
}

func orderIDs(ctx context.Context, db *sql.DB) (ids []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT message_id FROM orders ORDER BY number`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

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

// messages are the IDs of the messages that were consumed.
type messages struct {
	mu   sync.Mutex
	seen map[string]bool
	stop func()
}

// consume receives the messages of the topic until stop is called.
func consume(ctx context.Context, address string) (*messages, error) {
	t, err := rocketmq.New(address, rocketmq.Options{})
	if err != nil {
		return nil, err
	}
	m := &messages{seen: map[string]bool{}}
	c, err := consumer.NewPush(t, consumer.Subscription{Group: group, Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen[d.ID] = true
		return nil
	}, consumer.PushOptions{})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) }) // the messages that arrived are compared
	m.stop = func() {
		cancel()
		running.Wait()
		_ = t.Close()
	}
	return m, nil
}

func (m *messages) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}

func (m *messages) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[id]
}
