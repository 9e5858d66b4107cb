package serve

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The environment variable makes the test binary run as the program.
const asProgram = "TIDEGATE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// A process is a tidegate serve of its own.
type process struct {
	t          *testing.T
	cmd        *exec.Cmd
	grpc, http string
	stderr     output
	ended      chan struct{} // closed when the process has ended and stderr is complete
}

// An output has the text that a process has written so far.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed by the next write; nil without a waiting test
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown != nil {
		close(o.grown)
		o.grown = nil
	}
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await returns the first line after the first from bytes that contains text. It fails the test if
// the process ends without that line.
func (p *process) await(t *testing.T, from int, text string) string {
	t.Helper()
	o := &p.stderr
	for ended := false; ; {
		o.mu.Lock()
		written := o.text.String()
		if o.grown == nil {
			o.grown = make(chan struct{})
		}
		grown := o.grown
		o.mu.Unlock()
		for line := range strings.Lines(written[from:]) {
			if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
				return line
			}
		}
		assert.MustThat(t, !ended, "it ended without a line with %q: %s", text, written[from:])
		select {
		case <-grown:
		case <-p.ended:
			ended = true // it has written everything
		}
	}
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.stderr
	stdout, out := io.Pipe()
	p.cmd.Stdout = out
	assert.Must(t, p.cmd.Start())
	t.Cleanup(func() { p.kill() })
	go func() {
		defer close(p.ended)
		p.cmd.Wait() // for its output too
		out.Close()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		<-p.ended
		t.Fatalf("it did not report that it is ready: %v\n%s", err, p.stderr.String())
	}
	go io.Copy(io.Discard, stdout)
	if _, err := fmt.Sscanf(line, "ready grpc=%s http=%s\n", &p.grpc, &p.http); err != nil {
		t.Fatalf("its first line is %q: %v", line, err)
	}
	return p
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// stop signals the process to end, and returns its exit code.
func (p *process) stop() int {
	p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

var killRounds = flag.Int("kill.rounds", 2, "how often the process is killed")

// A ledger has the responses that clients got.
type ledger struct {
	mu       sync.Mutex
	grown    sync.Cond // on mu; sent or acked has grown
	sent     map[string]bool
	attempts map[string]int          // the highest delivered to the group
	before   map[string]int          // likewise, when the process was last started
	seen     map[string]map[int]bool // every one delivered to the group
	acked    map[string]int          // by which attempt
}

func newLedger() *ledger {
	l := &ledger{
		sent: map[string]bool{}, attempts: map[string]int{}, before: map[string]int{},
		seen: map[string]map[int]bool{}, acked: map[string]int{},
	}
	l.grown.L = &l.mu
	return l
}

// kill -9 during sends, receives and acknowledgements, repeatedly on one directory. Each group
// receives every confirmed message once, and no acknowledged message again. Attempt numbers
// continue, except that the process may lose a first delivery.
func TestKilledProcessLosesNothing(t *testing.T) {
	dir := t.TempDir()
	l := newLedger()
	for round := range *killRounds {
		p := start(t, "--data", dir, "--topic", "orders", "--min-invisible-duration", "0", "--min-long-polling", "0")
		ctx, stop := context.WithCancel(t.Context())
		c := dial(t, p)
		var wg sync.WaitGroup
		for s := range 4 {
			wg.Go(func() { l.send(ctx, c, fmt.Sprintf("%d-%d", round, s)) })
		}
		for range 2 {
			wg.Go(func() { l.consume(t, ctx, c) })
		}
		l.awaitMore(20+rand.IntN(180), 1+rand.IntN(20))
		p.kill()
		stop()
		wg.Wait()
		c.Close()
		l.killed()
	}
	p := start(t, "--data", dir, "--min-invisible-duration", "0", "--min-long-polling", "0")
	c := dial(t, p)
	defer c.Close()

	// A new group receives every confirmed message once.
	seen := map[string]int{}
	for {
		ds := l.receive(t, t.Context(), c, "auditor", time.Hour)
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			seen[d.ID]++
		}
	}
	for id := range l.sent {
		assert.That(t, seen[id] == 1, "%s was confirmed, and a new group received it %d times", id, seen[id])
	}
	// The first group receives the rest, with attempt numbers that continue.
	rest := 0
	for {
		ds := l.receive(t, t.Context(), c, "workers", time.Hour)
		if len(ds) == 0 {
			break
		}
		rest += len(ds)
		for _, d := range ds {
			l.check(t, d)
		}
	}
	for id := range l.sent {
		assert.That(t, l.attempts[id] != 0, "%s was confirmed, but the group never received it", id)
	}
	t.Logf("%d kills: %d messages sent, %d acknowledged, %d left for the group", *killRounds, len(l.sent), len(l.acked), rest)
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, p.stderr.String())
	}
}

func dial(t *testing.T, p *process) *rocketmq.Client {
	t.Helper()
	c := assert.Value(rocketmq.New(p.grpc, rocketmq.Options{}))(t)
	return c
}

// awaitMore waits until the given numbers of further messages were sent and acknowledged.
func (l *ledger) awaitMore(sent, acked int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sent, acked = sent+len(l.sent), acked+len(l.acked); len(l.sent) < sent || len(l.acked) < acked; {
		l.grown.Wait()
	}
}

func (l *ledger) send(ctx context.Context, c *rocketmq.Client, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%s-%d", name, i)
		r := c.Send(ctx, []*tidegate.Message{{ID: id, Topic: "orders", Body: []byte(id)}})[0]
		if r.Err != nil {
			continue
		}
		l.mu.Lock()
		l.sent[id] = true
		l.grown.Broadcast()
		l.mu.Unlock()
	}
}

// consume acknowledges half of its messages. The leases of the others time out.
func (l *ledger) consume(t *testing.T, ctx context.Context, c *rocketmq.Client) {
	for ctx.Err() == nil {
		for _, d := range l.receive(t, ctx, c, "workers", 100*time.Millisecond) {
			l.check(t, d)
			if rand.IntN(2) == 0 {
				continue
			}
			// An acknowledgement without a response may have worked. One with a response must have
			// worked.
			if err := c.Ack(ctx, []*tidegate.Delivery{d})[0]; err == nil {
				l.mu.Lock()
				l.acked[d.ID] = d.Attempt
				l.grown.Broadcast()
				l.mu.Unlock()
			}
		}
	}
}

func (l *ledger) receive(t *testing.T, ctx context.Context, c *rocketmq.Client, group string, invisible time.Duration) []*tidegate.Delivery {
	ds, err := c.Receive(ctx, transport.ReceiveRequest{
		Group: group, Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: invisible, Wait: 500 * time.Millisecond,
	})
	assert.That(t, err == nil || ctx.Err() != nil || group != "auditor", "receive: %v", err)
	return ds
}

// killed notes the attempts at the end of a process. A first delivery is not on disk at once, so a
// message that was delivered once and not acknowledged may be redelivered as attempt 1.
func (l *ledger) killed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = maps.Clone(l.attempts)
	for id, attempt := range l.attempts {
		if attempt == 1 && l.acked[id] == 0 {
			delete(l.before, id)
			delete(l.seen, id)
		}
	}
}

// check compares a delivery with the earlier responses.
func (l *ledger) check(t *testing.T, d *tidegate.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Two consumers can get here in another order than the broker delivered.
	if by := l.acked[d.ID]; by > 0 && d.Attempt > by {
		t.Errorf("%s was acknowledged in attempt %d, and came again with attempt %d", d.ID, by, d.Attempt)
	}
	assert.That(t, d.Attempt > l.before[d.ID] && !l.seen[d.ID][d.Attempt], "%s came with attempt %d after attempt %d", d.ID, d.Attempt, l.attempts[d.ID])
	if l.seen[d.ID] == nil {
		l.seen[d.ID] = map[int]bool{}
	}
	l.seen[d.ID][d.Attempt] = true
	l.attempts[d.ID] = max(l.attempts[d.ID], d.Attempt)
	assert.That(t, string(d.Body) == d.ID, "the body of %s is %q", d.ID, d.Body)
}

// After SIGTERM the process rejects new HTTP requests and completes those under way. It does so
// even while a gRPC client that does not read delays the end of the gRPC server.
func TestStopEndsBothAtOnce(t *testing.T) {
	p := start(t, "--topic", "orders", "--stop-timeout", "4s")
	dial := func(address string) net.Conn {
		t.Helper()
		c := assert.Value(net.Dial("tcp", address))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	silent := dial(p.grpc)
	if _, err := io.WriteString(silent, grpcHello); err != nil { // and no more
		t.Fatal(err)
	}
	if _, err := io.ReadFull(silent, make([]byte, 9)); err != nil { // it is a connection of gRPC's by now
		t.Fatal(err)
	}
	under, body := dial(p.http), `{"id":"m","body":"eA=="}`
	fmt.Fprintf(under, "POST /v1/topics/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	answers := bufio.NewReader(under)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	assert.Must(t, assert.Err(answers.ReadString('\n')))
	assert.Must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.await(t, 0, "broker stopping")
	for late := time.Now().Add(30 * time.Second); ; {
		c, err := net.Dial("tcp", p.http)
		if err != nil {
			break
		}
		c.Close()
		assert.MustThat(t, !time.Now().After(late), "it still takes connections")
	}
	assert.Must(t, assert.Err(io.WriteString(under, body)))
	resp, err := http.ReadResponse(answers, nil)
	assert.MustThat(t, err == nil, "a request under way got no response: %v", err)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || err != nil || !strings.Contains(string(text), `"m"`) {
		t.Errorf("%s %s, %v", resp.Status, text, err)
	}
	silent.Close()
	if code := p.stop(); code != 0 {
		t.Errorf("code %d\n%s", code, p.stderr.String())
	}
	if lines := p.stderr.String(); strings.Count(lines, "broker stopped") != 1 {
		t.Errorf("the last line does not report that it has stopped:\n%s", lines)
	}
}

// A process that is stopped during its start ends with code 0 and is never ready.
func TestStopDuringStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, topics := range []string{"", "a,b,c,d"} {
		args := []string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}
		if topics != "" {
			args = append(args, "--topic", topics)
		}
		var stdout, stderr strings.Builder
		if code := run(ctx, args, &stdout, &stderr); code != 0 || stdout.Len() > 0 || strings.Contains(stderr.String(), "cancel") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", topics, code, stdout.String(), stderr.String())
		}
	}
}

// The broker refuses to serve without keys a directory that it has served with keys. The flag that
// permits it holds for all later starts, until one with keys.
func TestProtect(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		keys, noKeys bool
		want         string // in the error; empty: none
	}{
		{false, false, ""},
		{false, true, ""},
		{true, false, ""},
		{true, false, ""},
		{false, false, "--no-keys"},
		{false, true, ""},
		{false, false, ""},
		{true, false, ""},
		{false, false, "was served with access keys"},
	} {
		err := protect(dir, c.keys, c.noKeys)
		assert.That(t, (err == nil) == (c.want == "") && (err == nil || strings.Contains(err.Error(), c.want)), "step %d: protect(%t, %t) = %v, want %q", i, c.keys, c.noKeys, err, c.want)
	}
	assert.NoError(t, protect("", false, false), "in memory")
	if err := protect(filepath.Join(dir, protectedFile), false, false); err == nil {
		t.Error("a directory that cannot be read is accepted")
	}
	assert.That(t, protect(filepath.Join(dir, "none"), true, false) != nil, "a failed write of the mark has no error")
}

// The program refuses to start where the keys are gone, whether they came at start or by SIGHUP.
func TestServeNeedsTheEarlierKeys(t *testing.T) {
	const keys = "access:\n  keys:\n    app:\n      secret: sesame\n"
	refused := func(args ...string) {
		t.Helper()
		var stdout, stderr strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a broker that starts stops then
		defer cancel()
		if code := run(ctx, append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...), &stdout, &stderr); code == 0 ||
			!strings.Contains(stderr.String(), "--no-keys") || strings.Contains(stdout.String(), "ready") {
			t.Errorf("%q: code %d, %s%s", args, code, stdout.String(), stderr.String())
		}
	}
	stop := func(p *process) {
		t.Helper()
		if code := p.stop(); code != 0 {
			t.Fatalf("code %d: %s", code, p.stderr.String())
		}
	}
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	for _, reload := range []bool{false, true} {
		dir := t.TempDir()
		write(t, file, keys)
		if reload {
			write(t, file, "max_backlog: 100\n")
		}
		p := start(t, "--data", dir, "--config", file)
		if reload {
			write(t, file, keys)
			assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
			p.await(t, 0, "configuration reloaded")
		}
		stop(p)
		refused("--data", dir)
		stop(start(t, "--data", dir, "--no-keys"))
		stop(start(t, "--data", dir))
	}
	assert.Must(t, os.WriteFile(file, []byte(keys+"no_keys: true\n"), 0o600))
	refused("--config", file, "--no-keys")
}
