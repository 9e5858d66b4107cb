// Command switch sends to a primary and a secondary system of different kinds: Apache ActiveMQ
// Artemis over AMQP 1.0, and a tidegate broker over gRPC. Both run as processes with their data on
// the disk. The program kills them with kill -9 under load and starts them again. It prints each
// step and exits with 1 if a send failed, if an accepted message was lost or had its effect twice,
// or if sends did not return to Artemis.
//
// Run it in its directory, with 'go run .'. It needs a JDK of version 17 or later and Maven, which
// downloads Artemis once. It takes about a minute.
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
	"github.com/tidegate/tidegate/transport/rocketmq"
)

const topic, group = "orders", "billing"

func main() {
	data := flag.String("serve", "", "be the tidegate broker with this data `directory`; the program starts itself with it")
	address := flag.String("address", "127.0.0.1:0", "`host:port` of -serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *data != "" {
		err = serve(ctx, *data, *address)
	} else {
		err = run(ctx, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "switch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute) // Maven may download Artemis
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
	artemis, err := newArtemis(ctx, dir)
	if err != nil {
		return err
	}
	secondary := newTidegate(dir)
	for _, n := range []*node{artemis, secondary} {
		if err := n.start(ctx); err != nil {
			return err
		}
		defer n.kill()
	}
	say("Artemis serves at %s, with journal-datasync; tidegate at %s", artemis.address, secondary.address)

	switches := make(chan failover.Event, 8)
	t, err := connect(ctx, artemis, secondary, func(e failover.Event) { switches <- e })
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
	artemis.kill()
	say("Artemis is killed")
	if err := await("tidegate"); err != nil {
		return err
	}
	l.more()
	if err := artemis.start(ctx); err != nil {
		return err
	}
	say("Artemis is started again, with its data")
	if err := await("artemis"); err != nil {
		return err
	}
	l.more()
	secondary.kill()
	if err := secondary.start(ctx); err != nil {
		return err
	}
	say("tidegate was killed and started again, with its data")
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
func connect(ctx context.Context, artemis, secondary *node, onSwitch func(failover.Event)) (*failover.Transport, error) {
	first, err := amqp.New(artemis.address, amqp.Options{
		CopyRetries: true,
		Groups: func(group, topic string) transport.ConsumerSettings { // Artemis announces none
			return transport.ConsumerSettings{MaxAttempts: 17}
		},
	})
	if err != nil {
		return nil, err
	}
	// Artemis discards the messages of an address without queues. This receive creates the group's
	// queue before the first send.
	if _, err := first.Receive(ctx, transport.ReceiveRequest{
		Group: group, Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Millisecond,
	}); err != nil {
		return nil, err
	}
	second, err := rocketmq.New(secondary.address, rocketmq.Options{})
	if err != nil {
		return nil, err
	}
	return failover.New([]failover.Endpoint{{Name: "artemis", Transport: first}, {Name: "tidegate", Transport: second}}, failover.Options{
		SwitchBack: 3 * time.Second, // the default of 60 s suits production
		OnSwitch:   onSwitch,
	})
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
// prints a line "ADDRESS pid PID".
type node struct {
	name    string
	command func(ctx context.Context, address string) *exec.Cmd // address is empty at the first start
	address string                                              // the same for all starts
	server  *os.Process
	ended   chan struct{} // closed after the process has ended
}

// newArtemis builds the program that starts Artemis.
func newArtemis(ctx context.Context, dir string) (*node, error) {
	program := filepath.Join(dir, "artemis")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/tidegate/tidegate/transport/amqp/artemis")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the program that starts Artemis cannot be built: %w; run switch in its directory\n%s", err, text)
	}
	return &node{name: "Artemis", command: func(ctx context.Context, address string) *exec.Cmd {
		port := "0"
		if address != "" {
			port = address[strings.LastIndexByte(address, ':')+1:]
		}
		return exec.CommandContext(ctx, program, "-port", port, "-dir", filepath.Join(dir, "primary"), "-datasync=true",
			"-set", `addressSettings."#".autoDeleteQueues=false`, // or a group without consumers loses messages
			"-set", `addressSettings."#".autoDeleteAddresses=false`,
			"-set", `addressSettings."#".redeliveryDelay=0`,
			"-set", `addressSettings."#".maxDeliveryAttempts=-1`) // the consumer counts
	}}, nil
}

// newTidegate returns the node that runs this program with -serve.
func newTidegate(dir string) *node {
	return &node{name: "tidegate", command: func(ctx context.Context, address string) *exec.Cmd {
		if address == "" {
			address = "127.0.0.1:0"
		}
		program, err := os.Executable()
		if err != nil {
			program = os.Args[0]
		}
		return exec.CommandContext(ctx, program, "-serve", filepath.Join(dir, "secondary"), "-address", address)
	}}
}

// start starts the server and waits until it accepts connections. The end of ctx ends it.
func (n *node) start(ctx context.Context) error {
	cmd := n.command(ctx, n.address)
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
	var pid int
	if err == nil {
		_, err = fmt.Sscanf(line, "%s pid %d\n", &n.address, &pid)
	}
	if err == nil {
		n.server, err = os.FindProcess(pid)
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
