package serve

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

var startupMessages = flag.Int("startup.messages", 100_000, "the number of messages of 1 KiB in the directory of BenchmarkStartup")

// BenchmarkStartup launches the program, built by go build, and measures the time until it has
// accepted a first message from a new client over gRPC. It does so on a fresh directory, on one
// with old messages that was closed in order, on the same after kill -9, and on one whose messages
// are all within the duplicate window, so that the broker reads the index of their IDs. The goal
// for the median, p50-ms, is 50 ms; max-ms is the slowest start.
func BenchmarkStartup(b *testing.B) {
	program := filepath.Join(b.TempDir(), "tidegate")
	if out, err := exec.Command("go", "build", "-o", program, "../..").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	run := func(name string, dir func(b *testing.B) string, end syscall.Signal) {
		b.Run(name, func(b *testing.B) {
			var took []float64
			for b.Loop() {
				took = append(took, float64(launch(b, program, dir(b), end).Microseconds())/1000)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "p50-ms")
			b.ReportMetric(took[len(took)-1], "max-ms")
			b.ReportMetric(0, "ns/op") // with the end of the process
		})
	}
	run("fresh", func(b *testing.B) string { return b.TempDir() }, syscall.SIGTERM)
	old := b.TempDir()
	fill(b, old, *startupMessages, -1)
	run("closed", func(*testing.B) string { return old }, syscall.SIGTERM)
	run("killed", func(*testing.B) string { return old }, syscall.SIGKILL)
	recent := b.TempDir()
	fill(b, recent, *startupMessages, settings.Duration(time.Hour))
	run("recent", func(*testing.B) string { return recent }, syscall.SIGTERM)
}

// fill leaves a directory with n messages that no group has consumed, in a
// topic that remembers their IDs for window.
func fill(b *testing.B, dir string, n int, window settings.Duration) {
	br := assert.Value(broker.Open(broker.Options{Dir: dir}))(b)
	assert.Must(b, assert.Err(br.PutTopic(b.Context(), "orders", settings.Topic{DuplicateWindow: window})))
	body := make([]byte, 1024)
	for done := 0; done < n; done += 1000 {
		batch := make([]*tidegate.Message, 1000)
		for i := range batch {
			batch[i] = &tidegate.Message{Topic: "orders", ID: tidegate.NewMessageID(), Body: body}
		}
		for _, r := range br.Send(b.Context(), batch) {
			assert.MustThat(b, r.Err == nil, "%v", r.Err)
		}
	}
	assert.Must(b, br.Close())
}

// launch returns how long it takes from the launch to the first receipt, and ends the process.
func launch(b *testing.B, program, dir string, end syscall.Signal) time.Duration {
	p := exec.Command(program, "serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", dir, "--topic", "orders")
	stdout, err := p.StdoutPipe()
	assert.Must(b, err)
	begin := time.Now()
	assert.Must(b, p.Start())
	defer func() {
		_ = p.Process.Signal(end)
		_ = p.Wait() // it was killed or stopped
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	var grpc, http string
	if _, serr := fmt.Sscanf(line, "ready grpc=%s http=%s\n", &grpc, &http); err != nil || serr != nil {
		b.Fatalf("its first line is %q: %v, %v", line, err, serr)
	}
	c := assert.Value(rocketmq.New(grpc, rocketmq.Options{}))(b)
	defer c.Close()
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	msg := &tidegate.Message{Topic: "orders", ID: tidegate.NewMessageID(), Body: []byte("first")}
	if r := c.Send(ctx, []*tidegate.Message{msg}); r[0].Err != nil {
		b.Fatal(r[0].Err)
	}
	return time.Since(begin)
}
