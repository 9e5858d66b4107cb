package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

var (
	benchLines  = flag.Int("lines", 200_000, "lines of BenchmarkSendLines")
	benchRounds = flag.Int("lines.rounds", 5, "rounds of BenchmarkSendLines")
)

// BenchmarkSendLines compares "send --lines" of a file with SendAsync of the same bodies in turns,
// each in a process of its own or in this one, on one broker. It fails if the command has less than
// half of the rate of SendAsync, or if its memory grows with the file.
func BenchmarkSendLines(b *testing.B) {
	rounds, lines := *benchRounds, *benchLines
	tl := newTool(b, "--topic", "orders")
	long, short := lineFile(b, lines), lineFile(b, lines/10)
	var ratios, rates []float64
	var large, small int64 // KiB
	for b.Loop() {
		for range rounds {
			command, rss := sendLines(b, tl, long)
			direct := sendDirect(b, tl.grpc, lines)
			large = max(large, rss)
			_, rss = sendLines(b, tl, short)
			small = max(small, rss)
			ratios, rates = append(ratios, direct.Seconds()/command.Seconds()), append(rates, float64(lines)/command.Seconds())
		}
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "msg/s")
	b.ReportMetric(ratios[len(ratios)/2], "async/ratio")
	b.ReportMetric(float64(large)/1024, "rss-MiB")
	b.ReportMetric(float64(small)/1024, "rss-tenth-MiB")
	if ratio := ratios[len(ratios)/2]; ratio < 0.5 {
		b.Errorf("send --lines has %.2f of the rate of SendAsync, want 0.5 (%.2f)", ratio, ratios)
	}
	assert.That(b, large <= small+small/2, "send --lines takes %d KiB for %d lines, and %d KiB for a tenth of them", large, lines, small)
}

func lineFile(b *testing.B, n int) string {
	b.Helper()
	var text strings.Builder
	for i := range n {
		text.WriteString(strconv.Itoa(i) + strings.Repeat(" message", 12) + "\n")
	}
	path := filepath.Join(b.TempDir(), "lines")
	assert.Must(b, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

// sendLines returns the time of the command, and its largest memory in KiB before the end of the
// input.
func sendLines(b *testing.B, tl *tool, path string) (time.Duration, int64) {
	b.Helper()
	text := assert.Value(os.ReadFile(path))(b)
	c := exec.CommandContext(b.Context(), os.Args[0], "send", "orders", "--lines")
	c.Env = append(os.Environ(), asProgram+"=1", "XDG_CONFIG_HOME="+tl.home, "TIDEGATE_SERVER_GRPC="+tl.grpc)
	var stderr lockedBuffer
	c.Stderr = &stderr
	in := assert.Value(c.StdinPipe())(b)
	began := time.Now()
	assert.Must(b, c.Start())
	assert.Must(b, assert.Err(in.Write(text)))
	memory := maxMemory(c.Process.Pid)
	assert.Must(b, in.Close())
	if err := c.Wait(); err != nil {
		b.Fatalf("%v\n%s", err, stderr.String())
	}
	return time.Since(began), memory
}

func sendDirect(b *testing.B, grpc string, n int) time.Duration {
	b.Helper()
	t := assert.Value(rocketmq.New(grpc, rocketmq.Options{}))(b)
	defer t.Close()
	p := assert.Value(producer.New(t, producer.Options{}))(b)
	defer p.Close()
	began := time.Now()
	var sent sync.WaitGroup
	for i := range n {
		m := &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, "%d%s", i, strings.Repeat(" message", 12))}
		sent.Add(1)
		assert.Must(b, p.SendAsync(context.Background(), m, func(_ tidegate.Receipt, err error) {
			assert.NoError(b, err)
			sent.Done()
		}))
	}
	sent.Wait()
	return time.Since(began)
}
