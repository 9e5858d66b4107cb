// Command switch sends to a primary and a secondary system of different kinds: Apache ActiveMQ
// Artemis over AMQP 1.0, Apache Pulsar, or a tidegate broker over gRPC. Both run as processes with
// their data on the disk. The program kills them with kill -9 under load and starts them again. It
// prints each step and exits with 1 if a send failed, if an accepted message was lost or had its
// effect twice, or if sends did not return to the primary.
//
// Run it in its directory, with 'go run .', or for example
//
//	go run . -primary pulsar -secondary artemis
//
// It needs a JDK of version 17 or later and Maven, which downloads a server once. It takes about a
// minute, with a Pulsar two.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

const topic, group = "orders", "billing"

func main() {
	data := flag.String("serve", "", "be the tidegate broker with this data `directory`; the program starts itself with it")
	address := flag.String("address", "127.0.0.1:0", "`host:port` of -serve")
	primary := flag.String("primary", "artemis", "the first `system`: artemis, pulsar or tidegate")
	secondary := flag.String("secondary", "tidegate", "the second `system`, of another kind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *data != "" {
		err = serve(ctx, *data, *address)
	} else {
		err = run(ctx, os.Stdout, *primary, *secondary)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "switch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, primary, secondary string) error {
	if primary == secondary {
		return fmt.Errorf("both systems are %s: give -primary and -secondary of different kinds", primary)
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute) // Maven may download a server
	defer cancel()
	dir, err := os.MkdirTemp("", "tidegate-switch-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.2f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	var nodes []*node
	for _, name := range []string{primary, secondary} {
		n, err := newNode(ctx, name, dir)
		if err != nil {
			return err
		}
		if err := n.start(ctx); err != nil {
			return err
		}
		defer n.kill()
		nodes = append(nodes, n)
		say("%s serves at %s", n.name, n.address)
	}
	first, second := nodes[0], nodes[1]

	switches := make(chan failover.Event, 8)
	t, err := connect(ctx, nodes, func(e failover.Event) { switches <- e })
	if err != nil {
		return err
	}
	defer t.Close()
	await := func(to string) error {
		select {
		case e := <-switches:
			say("sends go from %s to %s: %s", e.From, e.To, e.Reason)
			if e.To != to {
				return fmt.Errorf("sends went to %s, not to %s", e.To, to)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("sends did not go to %s: %w", to, context.Cause(ctx))
		}
	}

	effects := newLedger()
	var deliveries atomic.Int64
	stop, err := consume(ctx, t, effects, &deliveries)
	if err != nil {
		return err
	}
	defer stop()
	l, err := newLoad(ctx, t)
	if err != nil {
		return err
	}
	l.more()
	first.kill()
	say("%s is killed", first.name)
	if err := await(second.name); err != nil {
		return err
	}
	l.more()
	if err := first.start(ctx); err != nil {
		return err
	}
	say("%s is started again, with its data", first.name)
	if err := await(first.name); err != nil {
		return err
	}
	l.more()
	second.kill()
	if err := second.start(ctx); err != nil {
		return err
	}
	say("%s was killed and started again, with its data", second.name)
	l.more()
	sent, err := l.end()
	if err != nil {
		return err
	}
	say("%d messages were accepted, none failed; the longest send took %v", len(sent), l.longest.Round(time.Millisecond))
	if err := effects.await(ctx, sent); err != nil {
		return err
	}
	say("each had its effect once; the inbox removed the duplicates among %d deliveries", deliveries.Load())
	return nil
}

// connect returns a transport over both systems.
func connect(ctx context.Context, nodes []*node, onSwitch func(failover.Event)) (*failover.Transport, error) {
	var endpoints []failover.Endpoint
	for _, n := range nodes {
		t, err := n.connect(n.address)
		if err != nil {
			return nil, err
		}
		if err := createGroup(ctx, t); err != nil {
			return nil, err
		}
		endpoints = append(endpoints, failover.Endpoint{Name: n.name, Transport: t})
	}
	return failover.New(endpoints, failover.Options{
		SwitchBack: 3 * time.Second, // the default of 60 s suits production
		OnSwitch:   onSwitch,
	})
}

// createGroup receives once, which creates the group: Artemis and Pulsar discard the messages of a
// topic without groups. A server that has just started may need more than one attempt.
func createGroup(ctx context.Context, t transport.Transport) error {
	for {
		_, err := t.Receive(ctx, transport.ReceiveRequest{
			Group: group, Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Millisecond,
		})
		if !errors.Is(err, tidegate.ErrUnavailable) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// groups are the settings of the group, which neither Artemis nor Pulsar announces.
func groups(group, topic string) transport.ConsumerSettings {
	return transport.ConsumerSettings{MaxAttempts: 17}
}

// consume receives from both systems until stop is called. The inbox calls the handler once for
// each message ID: a send whose response was lost can be stored in both systems.
func consume(ctx context.Context, t *failover.Transport, effects *ledger, deliveries *atomic.Int64) (stop func(), err error) {
	once := inbox.NewMemory(0).Handler(func(_ context.Context, d *tidegate.Delivery) error {
		effects.add(d.ID)
		return nil
	})
	c, err := consumer.NewPush(t, consumer.Subscription{Group: group, Topic: topic},
		func(ctx context.Context, d *tidegate.Delivery) error {
			deliveries.Add(1)
			return once(ctx, d)
		}, consumer.PushOptions{
			ShutdownTimeout: 5 * time.Second,
			Logger:          slog.New(slog.DiscardHandler), // the receives from a killed server fail
		})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx) // the ledger shows whether all messages arrived
	}()
	return func() {
		cancel()
		<-done
	}, nil
}

// A node is a server in a process of its own. When the server accepts connections, the process
// prints a line "ADDRESS pid PID", or with more words after the address.
type node struct {
	name    string
	command func(ctx context.Context, port string) *exec.Cmd // port is 0 at the first start
	connect func(address string) (transport.Transport, error)
	address string // the same for all starts
	server  *os.Process
	ended   chan struct{} // closed after the process has ended
}

// newNode returns a server of a kind.
func newNode(ctx context.Context, name, dir string) (*node, error) {
	data := filepath.Join(dir, name+"-data")
	switch name {
	case "artemis":
		program, err := build(ctx, dir, name, "github.com/tidegate/tidegate/transport/amqp/artemis")
		return &node{
			name: name,
			command: func(ctx context.Context, port string) *exec.Cmd {
				return exec.CommandContext(ctx, program, "-port", port, "-dir", data, "-datasync=true",
					"-set", `addressSettings."#".autoDeleteQueues=false`, // or a group without consumers loses messages
					"-set", `addressSettings."#".autoDeleteAddresses=false`,
					"-set", `addressSettings."#".redeliveryDelay=0`,
					"-set", `addressSettings."#".maxDeliveryAttempts=-1`) // the consumer counts
			},
			connect: func(address string) (transport.Transport, error) {
				return amqp.New(address, amqp.Options{CopyRetries: true, Groups: groups})
			},
		}, err
	case "pulsar":
		program, err := build(ctx, dir, name, "github.com/tidegate/tidegate/transport/pulsar/standalone")
		return &node{
			name: name,
			command: func(ctx context.Context, port string) *exec.Cmd {
				return exec.CommandContext(ctx, program, "-port", port, "-web-port", "0", "-dir", data)
			},
			connect: func(address string) (transport.Transport, error) {
				return pulsar.New(address, pulsar.Options{Groups: groups})
			},
		}, err
	case "tidegate": // this program with -serve
		return &node{
			name: name,
			command: func(ctx context.Context, port string) *exec.Cmd {
				program, err := os.Executable()
				if err != nil {
					program = os.Args[0]
				}
				return exec.CommandContext(ctx, program, "-serve", data, "-address", net.JoinHostPort("127.0.0.1", port))
			},
			connect: func(address string) (transport.Transport, error) { return rocketmq.New(address, rocketmq.Options{}) },
		}, nil
	}
	return nil, fmt.Errorf("there is no system %q: give artemis, pulsar or tidegate", name)
}

// build builds the program that starts a server.
func build(ctx context.Context, dir, name, source string) (program string, err error) {
	program = filepath.Join(dir, name)
	command := exec.CommandContext(ctx, "go", "build", "-o", program, source)
	if text, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the program that starts %s cannot be built: %w; run switch in its directory\n%s", name, err, text)
	}
	return program, nil
}

// start starts the server and waits until it accepts connections. The end of ctx ends it.
func (n *node) start(ctx context.Context) error {
	port := "0"
	if n.address != "" {
		port = n.address[strings.LastIndexByte(n.address, ':')+1:]
	}
	cmd := n.command(ctx, port)
	var faults bytes.Buffer
	cmd.Stderr = &faults
	input, err := cmd.StdinPipe() // which ends with this process, and the server with it
	if err != nil {
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(output)
	line, err := lines.ReadString('\n')
	if words := strings.Fields(line); err == nil && len(words) >= 3 {
		var pid int
		if pid, err = strconv.Atoi(words[len(words)-1]); err == nil {
			n.address = words[0]
			n.server, err = os.FindProcess(pid)
		}
	} else if err == nil {
		err = fmt.Errorf("it printed %q", line)
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended before
		_ = cmd.Wait()
		return fmt.Errorf("%s did not start: %w\n%s", n.name, err, faults.Bytes())
	}
	n.ended = make(chan struct{})
	go func() {
		defer close(n.ended)
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait() // the status of a killed process
		_ = input.Close()
	}()
	return nil
}

// kill ends the server as kill -9 does.
func (n *node) kill() {
	if n.server == nil {
		return
	}
	_ = n.server.Kill() // it may have ended before
	<-n.ended
	n.server = nil
}

// serve is the tidegate broker, with its data in a directory.
func serve(ctx context.Context, dir, address string) error {
	b, err := broker.Open(broker.Options{Dir: dir})
	if err != nil {
		return err
	}
	if _, err := b.PutTopic(ctx, topic, settings.Topic{}); err != nil {
		return errors.Join(err, b.Close())
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	s, err := server.New(b, server.Options{Advertise: lis.Addr().String()})
	if err != nil {
		return errors.Join(err, lis.Close(), b.Close())
	}
	fmt.Printf("%s pid %d\n", lis.Addr(), os.Getpid())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the program that started this one
		_ = s.Close()
	}()
	return errors.Join(s.Serve(lis), b.Close())
}

// A load sends messages from several goroutines until it is ended.
type load struct {
	producer *producer.Producer
	stop     chan struct{}
	senders  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond
	sent    []string
	err     error
	longest time.Duration
}

func newLoad(ctx context.Context, t transport.Transport) (*load, error) {
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return nil, err
	}
	l := &load{producer: p, stop: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	for range 8 {
		l.senders.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				l.send(ctx)
			}
		})
	}
	return l, nil
}

func (l *load) send(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	r, err := l.producer.Send(ctx, &tidegate.Message{Topic: topic, Body: []byte("3 apples")})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.err = err
	} else {
		l.sent = append(l.sent, r.MessageID)
	}
	l.longest = max(l.longest, time.Since(began))
	l.changed.Broadcast()
}

// more returns after 300 more messages were accepted, or a send has failed.
func (l *load) more() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for goal := len(l.sent) + 300; len(l.sent) < goal && l.err == nil; {
		l.changed.Wait()
	}
}

// end ends the load and returns the IDs of the accepted messages.
func (l *load) end() ([]string, error) {
	close(l.stop)
	l.senders.Wait()
	return l.sent, errors.Join(l.err, l.producer.Close())
}

// A ledger counts the effects of messages by ID.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

func newLedger() *ledger { return &ledger{seen: map[string]int{}} }

func (s *ledger) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[id]++
}

// count returns the messages without an effect, and those with more than one.
func (s *ledger) count(ids []string) (none, several int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		switch n := s.seen[id]; {
		case n == 0:
			none++
		case n > 1:
			several++
		}
	}
	return none, several
}

// await returns once each of the messages had its effect.
func (s *ledger) await(ctx context.Context, sent []string) error {
	for {
		none, several := s.count(sent)
		if several > 0 {
			return fmt.Errorf("%d of %d messages had their effect more than once", several, len(sent))
		}
		if none == 0 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d accepted messages were lost", none, len(sent))
		}
	}
}
