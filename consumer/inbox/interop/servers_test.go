//go:build unix

// Package interop tests the SQL inbox on a real MariaDB, a real PostgreSQL and SQLite. The tests
// start the servers, without root's rights, on sockets in a temporary directory. Without -servers
// they use SQLite alone.
//
//	go test . -v -servers
package interop

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/internal/assert"
)

var serversFlag = flag.Bool("servers", false, "start a MariaDB and a PostgreSQL, whose programs must be installed")

// startLimit bounds the creation and the start of a server on a busy machine.
const startLimit = 3 * time.Minute

// A server is a database server of the tests.
type server struct {
	dir     string
	process *exec.Cmd
	admin   *sql.DB
	dsn     func(database string) string
}

var mariaDB, postgres *server

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		if !*serversFlag {
			fmt.Println("without -servers there are no servers: only SQLite is tested")
			return m.Run()
		}
		for _, s := range []struct {
			name  string
			start func(context.Context, *server) error
			to    **server
		}{{"MariaDB", startMariaDB, &mariaDB}, {"PostgreSQL", startPostgres, &postgres}} {
			one := &server{}
			defer one.stop()
			if err := one.start(s.start); err != nil {
				fmt.Printf("%s does not start: %v\n", s.name, err)
				return 1
			}
			*s.to = one
		}
		return m.Run()
	}())
}

// start creates the directory of a server and starts it.
func (s *server) start(f func(context.Context, *server) error) (err error) {
	if s.dir, err = os.MkdirTemp("", "tidegate-inbox"); err != nil {
		return err
	}
	if attr, err := unprivileged(); err != nil {
		return err
	} else if attr != nil {
		if err := os.Chown(s.dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := f(ctx, s); err != nil {
		return err
	}
	for {
		err := s.admin.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("%w; its log:\n%s", err, log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) stop() {
	if s.admin != nil {
		s.admin.Close()
	}
	if s.process != nil && s.process.Process != nil {
		_ = s.process.Process.Signal(syscall.SIGKILL)
		_ = s.process.Wait()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// unprivileged returns the attributes of a process without root's rights: both servers demand it.
func unprivileged() (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

func (s *server) command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "LC_ALL=C")
	var err error
	cmd.SysProcAttr, err = unprivileged()
	return cmd, err
}

// run runs a program that prepares the directory.
func (s *server) run(ctx context.Context, name string, args ...string) error {
	cmd, err := s.command(ctx, name, args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
}

// launch starts the server's program, with its output in the file log.
func (s *server) launch(name string, args ...string) (err error) {
	if s.process, err = s.command(context.Background(), name, args...); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	return s.process.Start()
}

func startMariaDB(ctx context.Context, s *server) (err error) {
	data, socket := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "s")
	if err := s.run(ctx, "mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"); err != nil {
		return err
	}
	program, err := find("mariadbd", "/usr/sbin/mariadbd")
	if err != nil {
		return err
	}
	if err := s.launch(program, "--no-defaults", "--datadir="+data, "--socket="+socket, "--skip-networking", "--innodb-flush-log-at-trx-commit=0",
		"--pid-file="+filepath.Join(s.dir, "pid"), "--innodb-buffer-pool-size=32M"); err != nil {
		return err
	}
	s.dsn = func(database string) string { return "root@unix(" + socket + ")/" + database }
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil {
		return err
	}
	s.admin, err = sql.Open("mysql", s.dsn(""))
	return err
}

func startPostgres(ctx context.Context, s *server) (err error) {
	data := filepath.Join(s.dir, "data")
	initdb, err := find("initdb", "/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return err
	}
	if err := s.run(ctx, initdb, "--pgdata="+data, "--username=test", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"); err != nil {
		return err
	}
	program, err := find("postgres", "/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return err
	}
	if err := s.launch(program, "-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off"); err != nil {
		return err
	}
	s.dsn = func(database string) string { return "host=" + s.dir + " user=test dbname=" + database }
	s.admin, err = sql.Open("pgx", s.dsn("postgres"))
	return err
}

// find returns a program of PATH, or the newest one of a pattern of files, as Debian has it.
func find(name, pattern string) (string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) > 0 {
		slices.Sort(files)
		return files[len(files)-1], err
	}
	return exec.LookPath(name)
}

// A database is one way to a database with the inbox in it.
type database struct {
	name    string
	dialect inbox.Dialect
	open    func(t *testing.T) *sql.DB // an empty database of the test's own
}

var databases atomic.Int64

// all returns the databases to test.
func all() []database {
	list := []database{{"SQLite", inbox.SQLite, func(t *testing.T) *sql.DB {
		return open(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	}}}
	if *serversFlag {
		list = append(list, database{"PostgreSQL", inbox.Postgres, func(t *testing.T) *sql.DB { return postgres.open(t, "pgx", "") }})
		list = append(list, onMariaDB()...)
	}
	return list
}

// onMariaDB returns MariaDB with the options of the driver that change its answers. An empty
// sql_mode is the lenient one, in which the server cuts values that are too long.
func onMariaDB() (list []database) {
	if !*serversFlag {
		return nil
	}
	for _, o := range []string{"", "?clientFoundRows=true&interpolateParams=true", "?sql_mode=%27%27"} {
		list = append(list, database{"MariaDB" + o, inbox.MySQL, func(t *testing.T) *sql.DB { return mariaDB.open(t, "mysql", o) }})
	}
	return list
}

// open creates a database and opens it.
func (s *server) open(t *testing.T, driver, options string) *sql.DB {
	t.Helper()
	name := fmt.Sprint("test", databases.Add(1))
	exec1(t, s.admin, "CREATE DATABASE "+name)
	return open(t, driver, s.dsn(name)+options)
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db := assert.Value(sql.Open(driver, dsn))(t)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	db.SetMaxOpenConns(8)
	return db
}

func exec1(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	assert.Must(t, assert.Err(db.ExecContext(t.Context(), query, args...)), "%s", query)
}

// number returns the number that a query selects.
func number(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), query, args...).Scan(&n)
	assert.MustThat(t, err == nil || errors.Is(err, sql.ErrNoRows), "%s: %v", query, err)
	return n
}

func repeat(s string, n int) string { return strings.Repeat(s, n) }
