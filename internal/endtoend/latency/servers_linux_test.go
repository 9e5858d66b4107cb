package latency

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A server runs in a process of its own, which is this test binary. These variables of the
// environment name it and its directory.
const (
	serverVariable    = "TIDEGATE_LATENCY_SERVER"
	directoryVariable = "TIDEGATE_LATENCY_DIRECTORY"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(serverVariable); name != "" {
		if err := serveParent(name, os.Getenv(directoryVariable)); err != nil {
			fmt.Fprintf(os.Stderr, "server %s: %v\n", name, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveParent serves until the standard input ends. It prints its address, and for each line that it
// reads its CPU time in nanoseconds.
func serveParent(name, dir string) error {
	serve := map[string]func(dir string) (address string, stop func(), err error){
		"broker":       serveBroker,
		"floor":        serveFloor,
		"echo":         func(string) (string, func(), error) { return serveEcho() },
		"nats-always":  func(dir string) (string, func(), error) { return serveNATS(dir, true) },
		"nats-default": func(dir string) (string, func(), error) { return serveNATS(dir, false) },
	}[name]
	if serve == nil {
		return errors.New("unknown")
	}
	address, stop, err := serve(dir)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Println(address)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			return err
		}
		fmt.Println(u.Utime.Nano() + u.Stime.Nano())
	}
	return nil
}

// A process is a server in a process of its own.
type process struct {
	address string
	in      io.WriteCloser
	out     *bufio.Reader
}

func serveApart(b testing.TB, name string) *process {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), serverVariable+"="+name, directoryVariable+"="+b.TempDir())
	cmd.Stderr = os.Stderr
	in := assert.Value(cmd.StdinPipe())(b)
	out := assert.Value(cmd.StdoutPipe())(b)
	assert.Must(b, cmd.Start())
	b.Cleanup(func() {
		in.Close()
		assert.NoError(b, cmd.Wait(), "the process of "+name)
	})
	p := &process{in: in, out: bufio.NewReader(out)}
	p.address = p.line(b)
	return p
}

func (p *process) line(b testing.TB) string {
	b.Helper()
	line, err := p.out.ReadString('\n')
	assert.MustThat(b, err == nil, "a server's process ended: %v", err)
	return strings.TrimSpace(line)
}

// cpu returns the CPU time of the process in nanoseconds.
func (p *process) cpu(b testing.TB) int64 {
	b.Helper()
	assert.Must(b, assert.Err(fmt.Fprintln(p.in)))
	return assert.Value(strconv.ParseInt(p.line(b), 10, 64))(b)
}

func serveBroker(dir string) (string, func(), error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	engine, err := broker.Open(broker.Options{Dir: dir})
	if err != nil {
		return "", nil, err
	}
	ctx := context.Background()
	for _, name := range []string{"sdk", "bare", "sdk-fifo", "bare-fifo"} {
		var topic settings.Topic
		if strings.HasSuffix(name, "fifo") {
			topic.Type = settings.TopicFIFO
		}
		if _, err := engine.PutTopic(ctx, name, topic); err != nil {
			return "", nil, err
		}
		if _, err := engine.PutGroup(ctx, name, settings.Group{FIFO: topic.Type == settings.TopicFIFO}); err != nil {
			return "", nil, err
		}
	}
	srv, err := server.New(engine, server.Options{Advertise: lis.Addr().String()})
	if err != nil {
		return "", nil, err
	}
	go srv.Serve(lis)
	return lis.Addr().String(), func() {
		srv.Close()
		engine.Close()
	}, nil
}

func serveNATS(dir string, always bool) (string, func(), error) {
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, SyncAlways: always, NoSigs: true})
	if err != nil {
		return "", nil, err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return "", nil, errors.New("it accepts no connections")
	}
	return s.ClientURL(), s.Shutdown, nil
}

// serveGRPC serves on a port of the loopback.
func serveGRPC(register func(*grpc.Server)) (string, func(), error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	g := grpc.NewServer()
	register(g)
	go g.Serve(lis)
	return lis.Addr().String(), g.Stop, nil
}

// An echo accepts every message, and stores none.
type echo struct {
	rmqpb.UnimplementedMessagingServiceServer
}

func (echo) SendMessage(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	ok := &rmqpb.Status{Code: rmqpb.Code_OK}
	res := &rmqpb.SendMessageResponse{Status: ok}
	for _, m := range r.GetMessages() {
		res.Entries = append(res.Entries, &rmqpb.SendResultEntry{Status: ok, MessageId: m.GetSystemProperties().GetMessageId()})
	}
	return res, nil
}

func serveEcho() (string, func(), error) {
	return serveGRPC(func(g *grpc.Server) { rmqpb.RegisterMessagingServiceServer(g, echo{}) })
}

const floorMethod = "/latency.Floor/Pipe"

// serveFloor serves a stream. It appends the messages that wait to a file, syncs the file, and
// returns the messages on the stream.
func serveFloor(dir string) (string, func(), error) {
	file, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", nil, err
	}
	pipe := grpc.StreamDesc{StreamName: "Pipe", ClientStreams: true, ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		f := &floor{file: file, stream: s}
		f.changed.L = &f.mu
		var loop sync.WaitGroup
		loop.Go(f.run)
		defer loop.Wait()
		for {
			var m wrapperspb.BytesValue
			err := s.RecvMsg(&m)
			f.mu.Lock()
			f.waiting, f.ended = append(f.waiting, &m), err != nil
			f.mu.Unlock()
			f.changed.Signal()
			if err != nil {
				return nil
			}
		}
	}}
	address, stop, err := serveGRPC(func(g *grpc.Server) {
		g.RegisterService(&grpc.ServiceDesc{ServiceName: "latency.Floor", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{pipe}}, struct{}{})
	})
	return address, func() {
		stop()
		file.Close()
	}, err
}

type floor struct {
	file   *os.File
	stream grpc.ServerStream

	mu      sync.Mutex
	changed sync.Cond
	waiting []*wrapperspb.BytesValue // guarded by mu
	ended   bool                     // guarded by mu
}

// run writes and syncs the messages that wait, until the stream ends.
func (f *floor) run() {
	for {
		f.mu.Lock()
		for len(f.waiting) == 0 && !f.ended {
			f.changed.Wait()
		}
		batch, ended := f.waiting, f.ended
		f.waiting = nil
		f.mu.Unlock()
		if ended {
			return
		}
		var record []byte
		for _, m := range batch {
			record = append(record, m.Value...)
		}
		if _, err := f.file.Write(record); err != nil {
			panic(err)
		}
		if err := unix.Fdatasync(int(f.file.Fd())); err != nil {
			panic(err)
		}
		for _, m := range batch {
			if f.stream.SendMsg(m) != nil {
				return
			}
		}
	}
}
