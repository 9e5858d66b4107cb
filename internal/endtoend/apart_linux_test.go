package endtoend

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
)

// brokerApart names the variable of the environment with the settings of a broker that runs in a
// process of its own. That process is this test binary.
const brokerApart = "TIDEGATE_BENCHMARK_BROKER"

func TestMain(m *testing.M) {
	if s := os.Getenv(brokerApart); s != "" {
		if err := serveParent(s); err != nil {
			fmt.Fprintln(os.Stderr, "broker apart:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type apartSettings struct {
	Dir    string
	Topics int // t0, t1 and so on, beside the topic lite
}

// serveParent serves a broker until the standard input ends. It prints its address, and for each
// line that it reads its CPU time in nanoseconds or, for the line "resident", its resident memory
// in bytes.
func serveParent(encoded string) error {
	var s apartSettings
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	engine, err := broker.Open(broker.Options{Dir: s.Dir})
	if err != nil {
		return err
	}
	defer engine.Close()
	for i := range s.Topics {
		if _, err := engine.PutTopic(context.Background(), fmt.Sprintf("t%d", i), settings.Topic{}); err != nil {
			return err
		}
	}
	if _, err := engine.PutTopic(context.Background(), "lite", settings.Topic{Type: settings.TopicLite}); err != nil {
		return err
	}
	srv, err := server.New(engine, server.Options{Advertise: lis.Addr().String(), MaxParkedBytes: 256 << 20}) // for 5 000 waiting consumers
	if err != nil {
		return err
	}
	go srv.Serve(lis)
	defer srv.Close()
	fmt.Println(lis.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		figure := cpu
		if lines.Text() == "resident" {
			figure = resident
		}
		n, err := figure()
		if err != nil {
			return err
		}
		fmt.Println(n)
	}
	return nil
}

// cpu returns the CPU time of this process in nanoseconds.
func cpu() (int64, error) {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano(), err
}

// resident returns the resident memory of this process in bytes, without memory that Go has freed.
func resident() (int64, error) {
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// A process is a broker in a process of its own.
type process struct {
	address string
	in      io.WriteCloser
	out     *bufio.Reader
}

// serveApart starts a broker on disk with so many topics in a process of its own.
func serveApart(b *testing.B, topics int) *process {
	b.Helper()
	encoded := assert.Value(json.Marshal(apartSettings{Dir: b.TempDir(), Topics: topics}))(b)
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), brokerApart+"="+string(encoded))
	cmd.Stderr = os.Stderr
	in := assert.Value(cmd.StdinPipe())(b)
	out := assert.Value(cmd.StdoutPipe())(b)
	assert.Must(b, cmd.Start())
	b.Cleanup(func() {
		in.Close()
		assert.NoError(b, cmd.Wait(), "the broker's process")
	})
	p := &process{in: in, out: bufio.NewReader(out)}
	p.address = p.line(b)
	return p
}

func (p *process) line(b *testing.B) string {
	line, err := p.out.ReadString('\n')
	assert.MustThat(b, err == nil, "the broker's process ended: %v", err)
	return strings.TrimSpace(line)
}

// spent returns the CPU time of this process and of the broker's.
func (p *process) spent(b *testing.B) (client, broker time.Duration) {
	b.Helper()
	c, s := p.figures(b, cpu, "cpu")
	return time.Duration(c), time.Duration(s)
}

// resident returns the resident memory of this process and of the broker's in bytes.
func (p *process) resident(b *testing.B) (client, broker int64) {
	b.Helper()
	return p.figures(b, resident, "resident")
}

// figures returns a figure of this process and of the broker's.
func (p *process) figures(b *testing.B, own func() (int64, error), name string) (client, broker int64) {
	b.Helper()
	client, err := own()
	assert.Must(b, err)
	assert.Must(b, assert.Err(fmt.Fprintln(p.in, name)))
	if broker, err = strconv.ParseInt(p.line(b), 10, 64); err != nil {
		b.Fatal(err)
	}
	return client, broker
}
