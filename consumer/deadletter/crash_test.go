package deadletter_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// crashJob has the address, the journal and the kind of job of the process that is killed.
const crashJob = "TIDEGATE_DEADLETTER_CRASH_JOB"

func TestMain(m *testing.M) {
	if job := strings.Split(os.Getenv(crashJob), " "); len(job) == 4 {
		last, err := strconv.ParseInt(job[3], 10, 64)
		if err == nil {
			_, err = runJob(context.Background(), job[0], job[1], job[2], mortal(last), func(e deadletter.Event) { fmt.Println(e.Event, e.MessageID) })
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// mortal returns a dialer for connections that kill the process at the response to the n-th request
// that sends messages. These requests took effect, but the job does not know it. Zero means never.
func mortal(last int64) func(context.Context, string) (net.Conn, error) {
	var sends atomic.Int64
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &mortalConn{Conn: c, sends: &sends, last: last}, nil
	}
}

type mortalConn struct {
	net.Conn
	sends *atomic.Int64
	last  int64
}

func (c *mortalConn) Write(b []byte) (int, error) {
	if line, _, _ := bytes.Cut(b, []byte("\r\n")); bytes.HasPrefix(line, []byte("POST")) && (bytes.Contains(line, []byte("/redrive ")) || bytes.Contains(line, []byte("/messages "))) {
		c.sends.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *mortalConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.last > 0 && c.sends.Load() >= c.last {
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		fmt.Fprintln(os.Stderr, err)
		select {} // the signal is on its way
	}
	return n, err
}

// runJob redrives the dead letters of billing on the broker at an address.
func runJob(ctx context.Context, address, journal, kind string, dial func(context.Context, string) (net.Conn, error), on func(deadletter.Event)) (deadletter.Report, error) {
	c, err := admin.New(address, admin.Options{Dialer: dial})
	if err != nil {
		return deadletter.Report{}, err
	}
	defer c.Close()
	t, err := rest.New(address, rest.Options{RequestTimeout: time.Minute, Dialer: dial})
	if err != nil {
		return deadletter.Report{}, err
	}
	defer t.Close()
	o := deadletter.Options{Journal: journal, PerSecond: 500, Sender: t, OnEvent: on}
	var src deadletter.Source = deadletter.Broker{Client: c, Group: "billing"}
	switch kind {
	case "edited":
		o.Edit = func(*tidegate.Message) error { return nil }
	case "queue":
		// The leases of a killed process end while the next one waits.
		src = deadletter.Queue{Transport: t, Group: "billing", As: "undertaker", Lease: 2 * time.Second, Wait: 3 * time.Second}
	}
	return deadletter.Redrive(ctx, src, o)
}

// A job whose process is killed at any time, and which is run again, sends every message back once.
func TestKillSendsEachOnce(t *testing.T) {
	for kind, n := range map[string]int{"broker": 1000, "edited": 300, "queue": 300} { // a broker moves 50 at once
		t.Run(kind, func(t *testing.T) {
			b, address := crashBroker(t)
			sendAndFail(t, b, n)
			journal := filepath.Join(t.TempDir(), "journal")
			for round := range 6 {
				// Before a send, after one, and while its response is on its way.
				event, n, last := "redriven", 30, 0
				switch round % 3 {
				case 0:
					event = "intent"
				case 1:
					n, last = 0, 1+round/3
				}
				killAfter(t, fmt.Sprintf("%s=%s %s %s %d", crashJob, address, journal, kind, last), event, n)
				tear(t, journal)
			}
			for {
				report, err := runJob(t.Context(), address, journal, kind, nil, nil)
				assert.Must(t, err, "%+v", report)
				if report.Seen == 0 && report.Unresolved == 0 {
					break
				}
			}
			var got []string
			for len(got) < 2*n {
				ds := assert.Value(b.Receive(t.Context(), transport.ReceiveRequest{Group: "checker", Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour}))(t)
				if len(ds) == 0 {
					break
				}
				got = append(got, bodies(ds)...)
			}
			slices.Sort(got)
			assert.That(t, slices.Equal(got, ids("m", n)),
				"%d messages came, %d of them different; want each of %d once", len(got), len(slices.Compact(slices.Clone(got))), n)
			text := assert.Value(os.ReadFile(journal))(t)
			assert.Equal(t, "the journal has events redriven", strings.Count(string(text), `"event":"redriven"`), n)
		})
	}
}

func crashBroker(t *testing.T) (*broker.Broker, string) {
	t.Helper()
	b := assert.Value(broker.Open(broker.Options{Memory: broker.NewMemory(), MinInvisibleDuration: 1}))(t)
	t.Cleanup(func() { b.Close() })
	s := assert.Value(server.New(b, server.Options{Advertise: "127.0.0.1:8081"}))(t)
	t.Cleanup(func() { s.Close() })
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return b, web.URL
}

// sendAndFail makes n dead letters, and leaves nothing in the topic.
func sendAndFail(t *testing.T, b *broker.Broker, n int) {
	t.Helper()
	ctx := t.Context()
	assert.Must(t, assert.Err(b.PutTopic(ctx, "orders", settings.Topic{DuplicateWindow: settings.Duration(time.Hour)})))
	assert.Must(t, assert.Err(b.PutGroup(ctx, "undertaker", settings.Group{Retry: backoff.Steps{time.Millisecond}})))
	for _, id := range ids("m", n) {
		if r := b.Send(ctx, []*tidegate.Message{{ID: id, Topic: "orders", Body: []byte(id)}}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	for n > 0 {
		ds, err := b.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour})
		assert.MustThat(t, err == nil && len(ds) != 0, "%d left: %v", n, err)
		for _, d := range ds {
			_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no such customer"})
			assert.MustThat(t, err == nil, "%v", err)
		}
		n -= len(ds)
	}
	assert.Must(t, assert.Err(b.PurgeTopic(ctx, "orders")))
}

// killAfter runs the job in a process of its own, and kills the process after a number of events;
// 0: it kills itself.
func killAfter(t *testing.T, env, event string, n int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	out := assert.Value(cmd.StdoutPipe())(t)
	assert.Must(t, cmd.Start())
	lines, itself := bufio.NewScanner(out), n == 0
	for n > 0 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), event) {
			n--
		}
	}
	assert.That(t, n <= 0, "the process ended before its kill, %d too early", n)
	if !itself {
		assert.NoError(t, cmd.Process.Kill())
	}
	for lines.Scan() { // the lines that it had written
	}
	cmd.Wait()
	s := cmd.ProcessState
	assert.That(t, !s.Exited(), "the process was not killed: %v", s)
}

// tear cuts the last line of a journal off in its middle, as a crash of the machine does.
func tear(t *testing.T, journal string) {
	t.Helper()
	f := assert.Value(os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0))(t)
	assert.Must(t, assert.Err(f.WriteString(`{"time":"2026-01-31T12:00:00Z","event":"redr`)))
	assert.Must(t, f.Close())
}
