// Command officialclient shows that Apache RocketMQ's own Go client works with
// a tidegate broker, unchanged and with its defaults (TLS included). It is a
// module of its own, so that tidegate does not depend on the client. Of tidegate
// it imports the client of the administration, broker/admin: all messages go through
// the official client. Start a broker and run it from this directory:
//
//	tidegate serve
//	go run .
//
// Six scenes run side by side. In each a producer sends; then
//
//   - normal: a push consumer fails on a message once and gets it again by the
//     group's retry schedule; it fails on another one until that is a dead
//     letter, which a simple consumer then reads;
//   - simple: a simple consumer receives, changes invisible durations, has a
//     stale receipt handle rejected, and acknowledges;
//   - fifo: a push consumer sees every message group in order, also while one
//     of its messages waits for a retry or ends as a dead letter, and the other
//     message groups do not wait for it;
//   - priority: a simple consumer receives the messages of higher priorities first;
//   - lite: a lite push consumer subscribes to lite topics and unsubscribes while it runs,
//     suspends a message, and fails on another one until that is a dead letter;
//   - transaction: of three half messages one is committed, one rolled back, and
//     one left alone, which the broker asks about until it is committed.
//
// It asserts every step, and exits with 1 if a step failed. It creates topics and consumer groups
// through broker/admin, with names of this run, and deletes them at the end.
//
// TLS is on by default. The flag --tls=false turns it off, and so does the client's own environment
// variable rocketmq.client.enableSsl=false. The client's log goes to the directory in
// rocketmq.client.logRoot, by default to a temporary directory that is kept only if the run fails.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"go.uber.org/zap"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
)

// timeLimit ends a run that hangs. A run takes about 12 s, and 23 s more if
// stopping a push consumer takes the client's longest time.
const timeLimit = 80 * time.Second

// secretVariable is the environment variable with the secret: arguments of a
// program are there for all users of a machine to read.
const secretVariable = "OFFICIALCLIENT_SECRET"

// keys are shown to the broker with every request, if there are any.
var keys credentials.SessionCredentials

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:8081", "`address` of the broker for clients (gRPC)")
	http := flag.String("http", "127.0.0.1:8082", "`address` of the broker for administration (HTTP); with https:// before it, the certificate is not verified either")
	flag.BoolVar(&rmq.EnableSsl, "tls", rmq.EnableSsl, "connect with TLS; the certificate is not verified")
	flag.StringVar(&keys.AccessKey, "access-key", "", "access `key`, for a broker with keys; its secret is in "+secretVariable)
	flag.Parse()
	keys.AccessSecret = os.Getenv(secretVariable)
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "officialclient: it takes no arguments, only flags; it got %q\n", flag.Args())
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), timeLimit,
		fmt.Errorf("it took longer than %v", timeLimit))
	err := logged(func() error { return run(ctx, *endpoint, *http, os.Stdout) })
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "officialclient:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoint, http string, out io.Writer) error {
	client, err := newAdmin(http)
	if err != nil {
		return err
	}
	defer client.Close()
	s := &story{
		endpoint: endpoint, admin: client, out: out, start: time.Now(),
		prefix: "officialclient-" + strconv.FormatInt(time.Now().UnixMicro(), 36) + "-",
	}
	s.say("all", "the official client meets the broker on %s, TLS %s", endpoint, onOff(rmq.EnableSsl))
	scenes := map[string]func(scene, context.Context) error{
		"normal": scene.normal, "simple": scene.simple, "fifo": scene.fifo, "priority": scene.priority, "lite": scene.lite,
		"transaction": scene.transaction,
	}
	var wg sync.WaitGroup
	for name, play := range scenes {
		sc := scene{s, name}
		wg.Go(func() {
			if err := play(sc, ctx); err != nil {
				s.fault(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	wg.Wait()
	s.tidy(ctx)
	if err := errors.Join(s.faults...); err != nil {
		return err
	}
	s.say("all", "all expected steps happened")
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// newAdmin returns a client for host:port or, for a broker with TLS on its HTTP port, for an https
// URL.
func newAdmin(at string) (*admin.Client, error) {
	o := admin.Options{Credentials: tidegate.Credentials{AccessKey: keys.AccessKey, SecretKey: keys.AccessSecret}}
	if strings.HasPrefix(at, "https://") {
		// As the official client does over gRPC. A program of yours verifies.
		o.TLS = &tls.Config{InsecureSkipVerify: true}
	}
	return admin.New(at, o)
}

// A message is the input of send.
type message struct {
	topic, body, tag, group string
	lite                    string
	priority                *int32
	keys                    []string
	properties              map[string]string
}

// send sends a message and returns its ID.
func send(ctx context.Context, p rmq.Producer, m message) (string, error) {
	out := &rmq.Message{Topic: m.topic, Body: []byte(m.body)}
	if m.tag != "" {
		out.SetTag(m.tag)
	}
	if m.group != "" {
		out.SetMessageGroup(m.group)
	}
	if m.lite != "" {
		out.SetLiteTopic(m.lite)
	}
	if m.priority != nil {
		if err := out.SetPriority(*m.priority); err != nil {
			return "", err
		}
	}
	if len(m.keys) > 0 {
		out.SetKeys(m.keys...)
	}
	for k, v := range m.properties {
		out.AddProperty(k, v)
	}
	receipts, err := p.Send(ctx, out)
	if err != nil {
		return "", fmt.Errorf("sending %q to %s: %w", m.body, m.topic, err)
	}
	if len(receipts) != 1 || receipts[0].MessageID == "" {
		return "", fmt.Errorf("sending %q to %s: want one receipt with a message ID, got %+v", m.body, m.topic, receipts)
	}
	return receipts[0].MessageID, nil
}

// A delivery holds the fields of a received message.
type delivery struct {
	id, body, tag, group string
	lite                 string
	keys                 []string
	properties           map[string]string
	attempt              int32
	at                   time.Time
}

func deliveryOf(mv *rmq.MessageView) delivery {
	return delivery{
		id: mv.GetMessageId(), body: string(mv.GetBody()), tag: orEmpty(mv.GetTag()), group: orEmpty(mv.GetMessageGroup()),
		lite: mv.GetLiteTopic(),
		keys: mv.GetKeys(), properties: mv.GetProperties(), attempt: mv.GetDeliveryAttempt(), at: time.Now(),
	}
}

func (d delivery) String() string { return fmt.Sprintf("%s (attempt %d)", d.body, d.attempt) }

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// next returns the next delivery.
func next(ctx context.Context, deliveries <-chan delivery) (delivery, error) {
	select {
	case d := <-deliveries:
		return d, nil
	case <-ctx.Done():
		return delivery{}, fmt.Errorf("waiting for a delivery: %w", context.Cause(ctx))
	}
}

// logged runs f while the client logs to a directory that is removed unless f
// fails. By default it would log to $HOME/logs, and each request to a file in /tmp.
func logged(f func() error) error {
	const logRoot = "rocketmq.client.logRoot"
	dir, own := os.Getenv(logRoot), false
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "officialclient-log-"); err != nil {
			return err
		}
		if err := os.Setenv(logRoot, dir); err != nil {
			return err
		}
		own = true
		rmq.ResetLogger()
	}
	dial := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, opts ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return dial(target, append(opts, rmq.WithRpcClientConnOption(rmq.WithZapLogger(zap.NewNop())))...)
	}
	err := f()
	if err != nil {
		return fmt.Errorf("%w\nthe client's log is in %s", err, dir)
	}
	if own {
		return os.RemoveAll(dir)
	}
	return nil
}

func (s scene) config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: s.endpoint, ConsumerGroup: group, Credentials: &keys}
}

// starting starts a client. Start takes at least a second, and never returns if the server is
// silent. So the end of ctx leaves it behind.
func starting(ctx context.Context, who string, start func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- start() }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("starting the %s: %w", who, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("starting the %s: %w", who, context.Cause(ctx))
	}
}

// producer returns a producer of the topic. The client needs to know a topic
// at its start: without one it hangs there.
func (s scene) producer(ctx context.Context, topic string) (rmq.Producer, error) {
	p, err := rmq.NewProducer(s.config(""), rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	return p, starting(ctx, "producer of "+topic, p.Start)
}

// simpleConsumer returns a simple consumer. Its await duration is 5 s because
// that is the least that a broker with default settings takes.
func (s scene) simpleConsumer(ctx context.Context, group, topic string) (rmq.SimpleConsumer, error) {
	c, err := rmq.NewSimpleConsumer(s.config(group),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	if err != nil {
		return nil, err
	}
	return c, starting(ctx, "simple consumer of "+topic, c.Start)
}

// receive returns n messages, which may take several receives.
func receive(ctx context.Context, c rmq.SimpleConsumer, n int) ([]*rmq.MessageView, error) {
	var all []*rmq.MessageView
	for len(all) < n {
		mvs, err := c.Receive(ctx, int32(n-len(all)), invisible)
		switch {
		case ctx.Err() != nil:
			return all, context.Cause(ctx)
		case err != nil && codeOf(err) != codeMessageNotFound:
			return all, err
		}
		all = append(all, mvs...)
	}
	return all, nil
}

// Codes of the protocol.
const (
	codeMessageNotFound = 40401 // the client's error for a receive without messages
	codeInvalidHandle   = 40013
	codeNoTransaction   = 50001
)

func codeOf(err error) int32 {
	if e, ok := errors.AsType[*rmq.ErrRpcStatus](err); ok {
		return e.GetCode()
	}
	return 0
}

// wakeUp is the body of messages that are not part of the story.
const wakeUp = "wake up"

// pushConsumer starts a push consumer. Its handler returns a failure if fails returns true for the
// delivery. The channel gets all deliveries.
func (s scene) pushConsumer(ctx context.Context, group, topic string, fails func(delivery) bool) (rmq.PushConsumer, <-chan delivery, error) {
	deliveries := make(chan delivery, 1000)
	handler := func(mv *rmq.MessageView) rmq.ConsumerResult {
		d := deliveryOf(mv)
		if d.body == wakeUp {
			return rmq.SUCCESS
		}
		deliveries <- d
		if fails(d) {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	c, err := rmq.NewPushConsumer(s.config(group),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: handler}))
	if err != nil {
		return nil, nil, err
	}
	return c, deliveries, starting(ctx, "push consumer of "+topic, c.Start)
}

// stop stops a push consumer. The client's GracefulStop waits up to 23 s for the receives that wait
// at the server. stop sends these messages, which together should reach every queue, to end these
// receives early.
func (s scene) stop(ctx context.Context, c rmq.PushConsumer, p rmq.Producer, wakes ...message) error {
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- c.GracefulStop() }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-stopped:
			s.say("the push consumer stopped in %.1fs", time.Since(began).Seconds())
			return err
		case <-ctx.Done():
			return fmt.Errorf("stopping the push consumer: %w", context.Cause(ctx))
		case <-tick.C:
			for _, m := range wakes {
				m.body = wakeUp
				if _, err := send(ctx, p, m); err != nil {
					return err
				}
			}
		}
	}
}
