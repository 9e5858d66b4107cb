// Package interop runs the same programs against a tidegate broker and against a real RocketMQ.
// They use the public API of producer and consumer; where servers differ, they assert how the
// SDK reports the difference. Without flags the server is a tidegate broker in the same
// process, and time is virtual. With -rocketmq it is a RocketMQ that the program rocketmq has
// started, by the port of its first proxy:
//
//	go run ./transport/rocketmq/interop/rocketmq up --port 8081
//	go test ./transport/rocketmq/interop -parallel 100 -timeout 30m -v -rocketmq 8081
//	go run ./transport/rocketmq/interop/rocketmq down --port 8081
package interop

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
	"github.com/tidegate/tidegate/transport/transporttest"
)

var port = flag.Int("rocketmq", 0, "the `port` of a real RocketMQ that transport/rocketmq/interop/rocketmq started; 0 for a tidegate broker in this process")

// rocketMQ returns that RocketMQ.
var rocketMQ = sync.OnceValues(func() (*runner.Setup, error) { return runner.Open(*port) })

// patience bounds every wait of a program, so that a test that hangs fails. A real server on a busy
// machine needs minutes for work of seconds.
const patience = 10 * time.Minute

// attemptTimeout bounds one request. A RocketMQ shares the machine with the tests: with a shorter
// time a slow response makes the producer send the message again, and the server stores it twice.
const attemptTimeout = time.Minute

// run makes the names of this run unique: a RocketMQ keeps those of earlier ones.
var run = strconv.FormatInt(time.Now().UnixNano(), 36)

// tidegateBroker describes a tidegate broker.
func tidegateBroker() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.Capabilities = transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, RepeatChange: true, Watch: true,
		Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
	return s
}

// realRocketMQ describes a RocketMQ by its version and its settings.
func realRocketMQ(o runner.Options) transporttest.Server {
	return transporttest.Server{
		Unit: 5 * time.Second, Slack: patience, // its shortest wait is 5 s, its shortest invisible duration 10 s
		Recall:               knowsRecall(o) && o.Broker["recallMessageEnable"] == "true",
		LacksCountedReleases: o.Version == "5.5.0",
		LacksLiteDeadLetters: o.Version == "5.5.0",
		Priorities:           o.Version >= "5.4.0",
		LiteTopics:           hasLite(o),
	}
}

// hasLite reports whether a RocketMQ has lite topics. A proxy with the broker in its process has none.
func hasLite(o runner.Options) bool {
	return o.Version >= "5.5.0" && o.Cluster && o.Broker["enableLmq"] == "true" && o.Broker["enableMultiDispatch"] == "true"
}

// knowsRecall reports whether a RocketMQ returns recall handles. Without recallMessageEnable it
// forbids their use.
func knowsRecall(o runner.Options) bool { return o.Version != "5.2.0" }

// A target is a server and a client of it.
type target struct {
	t      *testing.T
	ctx    context.Context    // of the test
	broker *brokertest.Broker // nil for a RocketMQ
	real   *runner.Setup      // nil for a tidegate broker
	client *rocketmq.Client
	suffix string

	server transporttest.Server
}

// on runs a program against the server that the flags name.
func on(t *testing.T, program func(x *target)) {
	t.Helper()
	if *port == 0 {
		synctest.Test(t, func(t *testing.T) { program(open(t)) })
		return
	}
	t.Parallel() // most of the time programs wait
	program(open(t))
}

// open connects to the server, which for a tidegate broker is a new one.
func open(t *testing.T) *target {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	x := &target{t: t, ctx: ctx, suffix: "-" + strings.ReplaceAll(t.Name(), "/", "-") + "-" + run}
	var at string
	o := rocketmq.Options{RequestTimeout: attemptTimeout}
	var err error
	if *port == 0 {
		x.broker, x.server = brokertest.New(t), tidegateBroker()
		at, o.Dialer = x.broker.Address(), x.broker.Dial
	} else {
		if x.real, err = rocketMQ(); err != nil {
			t.Fatal(err)
		}
		at, x.server = strings.Join(x.real.Endpoints(), ";"), realRocketMQ(x.real.Options())
	}
	if x.client, err = rocketmq.New(at, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.client.Close() })
	return x
}

func (x *target) name(base string) string { return base + x.suffix }

// topic creates a topic and returns its name.
func (x *target) topic(base string, kind settings.TopicType) string {
	x.t.Helper()
	name := x.name(base)
	assert.Must(x.t, x.createTopic(x.ctx, name, kind))
	return name
}

func (x *target) createTopic(ctx context.Context, name string, kind settings.TopicType) error {
	if x.broker != nil {
		_, err := x.broker.PutTopic(ctx, name, settings.Topic{Type: kind})
		return err
	}
	return x.real.Topic(ctx, name, string(kind), 0)
}

// group creates a consumer group and returns its name. Its retry delays are 1 s.
func (x *target) group(base string, fifo bool, attempts int) string {
	x.t.Helper()
	name := x.name(base)
	s := transport.ConsumerSettings{FIFO: fifo, MaxAttempts: attempts, Retry: backoff.Steps{time.Second}}
	assert.Must(x.t, x.createGroup(x.ctx, name, s))
	return name
}

func (x *target) createGroup(ctx context.Context, name string, s transport.ConsumerSettings) error {
	return x.createLiteGroup(ctx, name, "", s)
}

// createLiteGroup creates a group that receives from the lite topics of a parent; empty for none.
func (x *target) createLiteGroup(ctx context.Context, name, parent string, s transport.ConsumerSettings) error {
	if x.broker != nil {
		g := settings.Group{FIFO: s.FIFO, MaxAttempts: s.MaxAttempts, Retry: s.Retry.(backoff.Steps), Lite: settings.LiteGroup{Topic: parent}}
		if s.FIFO {
			g.FIFORetryInterval = settings.Duration(s.Retry.Delay(0))
		}
		_, err := x.broker.PutGroup(ctx, name, g)
		return err
	}
	return x.real.Group(ctx, name, runner.Group{FIFO: s.FIFO, MaxRetries: s.MaxAttempts - 1, Retry: s.Retry.(backoff.Steps), LiteTopic: parent})
}

func (x *target) producer(o producer.Options) *producer.Producer {
	x.t.Helper()
	if x.real != nil && o.AttemptTimeout == 0 {
		o.AttemptTimeout = attemptTimeout
	}
	p := assert.Value(producer.New(x.client, o))(x.t)
	x.t.Cleanup(func() { p.Close() })
	return p
}

// send sends a message that has to be accepted.
func (x *target) send(p *producer.Producer, m *tidegate.Message) tidegate.Receipt {
	x.t.Helper()
	return assert.Value(p.Send(x.ctx, m))(x.t)
}

func (x *target) simple(sub consumer.Subscription) *consumer.Simple {
	x.t.Helper()
	return assert.Value(consumer.NewSimple(x.client, sub, consumer.SimpleOptions{InvisibleDuration: 10 * time.Second, LongPolling: 5 * time.Second}))(x.t)
}

// take receives and acknowledges n messages. A topic of dead letters need not exist yet.
func (x *target) take(sub consumer.Subscription, n int) []*tidegate.Delivery {
	x.t.Helper()
	c := x.simple(sub)
	var all []*tidegate.Delivery
	for d, err := range c.All(x.ctx) {
		if err != nil {
			if x.ctx.Err() == nil {
				x.t.Logf("%v", err)
			}
			continue
		}
		assert.NoError(x.t, c.Ack(x.ctx, d))
		if all = append(all, d); len(all) == n {
			return all
		}
	}
	x.t.Fatalf("received %d of %d messages", len(all), n)
	return nil
}

// A delivered is one call of a handler.
type delivered struct {
	*tidegate.Delivery
	at time.Time
}

// A push is a running push consumer.
type push struct {
	x          *target
	consumer   *consumer.Push
	deliveries chan delivered
	outcomes   chan consumer.Outcome
	stopped    chan consumer.StopReport
	done       chan struct{} // closed when Run has returned
	err        error         // of Run
	cancel     context.CancelFunc
}

// consume starts a push consumer, which ends with the test.
func (x *target) consume(sub consumer.Subscription, handler consumer.Handler, o consumer.PushOptions) *push {
	x.t.Helper()
	p := x.newPush(&o)
	return p.run(consumer.NewPush(x.client, sub, func(ctx context.Context, d *tidegate.Delivery) error {
		p.deliveries <- delivered{d, time.Now()}
		return handler(ctx, d)
	}, o))
}

// consumeBatches starts a push consumer with batches, which ends with the test.
func (x *target) consumeBatches(sub consumer.Subscription, handler consumer.BatchHandler, o consumer.PushOptions) *push {
	x.t.Helper()
	p := x.newPush(&o)
	return p.run(consumer.NewBatch(x.client, sub, func(ctx context.Context, ds []*tidegate.Delivery) error {
		for _, d := range ds {
			p.deliveries <- delivered{d, time.Now()}
		}
		return handler(ctx, ds)
	}, o))
}

// newPush returns a push consumer that does not run yet, and sets the hooks that it needs.
func (x *target) newPush(o *consumer.PushOptions) *push {
	const room = 1000 // more than any program has deliveries
	p := &push{x: x, deliveries: make(chan delivered, room), outcomes: make(chan consumer.Outcome, room),
		stopped: make(chan consumer.StopReport, 1), done: make(chan struct{})}
	o.OnDelivery = func(out consumer.Outcome) { p.outcomes <- out }
	o.OnStop = func(r consumer.StopReport) { p.stopped <- r }
	return p
}

// run starts the consumer, which ends with the test.
func (p *push) run(c *consumer.Push, err error) *push {
	p.x.t.Helper()
	assert.Must(p.x.t, err)
	p.consumer = c
	ctx, cancel := context.WithCancel(p.x.ctx)
	p.cancel = cancel
	go func() {
		defer close(p.done)
		p.err = c.Run(ctx)
	}()
	p.x.t.Cleanup(func() {
		cancel()
		<-p.done
	})
	return p
}

// stop ends the consumer and returns its report.
func (p *push) stop() consumer.StopReport {
	p.x.t.Helper()
	p.cancel()
	<-p.done
	assert.That(p.x.t, p.err == nil, "Run: %v", p.err)
	return <-p.stopped
}

// next returns the next delivery.
func (p *push) next() delivered {
	p.x.t.Helper()
	select {
	case d := <-p.deliveries:
		return d
	case <-p.x.ctx.Done():
		p.x.t.Fatal("no delivery came")
		panic("unreachable")
	}
}

// outcome returns the next outcome.
func (p *push) outcome() consumer.Outcome {
	p.x.t.Helper()
	select {
	case o := <-p.outcomes:
		return o
	case <-p.x.ctx.Done():
		p.x.t.Fatal("no outcome came")
		panic("unreachable")
	}
}

// The suite that every transport passes holds on a RocketMQ without any capability or guarantee,
// and through gRPC on a tidegate broker with all of them.
func TestSuite(t *testing.T) {
	fixture := func(t *testing.T) transporttest.Fixture {
		x := open(t)
		return transporttest.Fixture{Transport: x.client, CreateTopic: x.createTopic, CreateGroup: x.createGroup, CreateLiteGroup: x.createLiteGroup}
	}
	if *port != 0 {
		t.Parallel()
		s := assert.Value(rocketMQ())(t)
		transporttest.Run(t, fixture, realRocketMQ(s.Options()))
		return
	}
	s := tidegateBroker()
	s.Virtual = true
	transporttest.Run(t, fixture, s)
}

var (
	testName = regexp.MustCompile("`(Test[A-Za-z]+|Suite/[A-Za-z]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z]+)\(`)
	caseName = regexp.MustCompile(`\{name: "([A-Za-z]+)"`)
)

// Every difference that WIRE.md lists names tests that exist.
func TestDifferencesAreTested(t *testing.T) {
	known := map[string]bool{}
	note := func(pattern, prefix string, names *regexp.Regexp) {
		files, err := filepath.Glob(pattern)
		assert.MustThat(t, err == nil && len(files) != 0, "%s: %v, %v", pattern, files, err)
		for _, f := range files {
			for _, m := range names.FindAllStringSubmatch(read(t, f), -1) {
				known[prefix+m[1]] = true
			}
		}
	}
	note("*_test.go", "", testFunc)
	note("../../transporttest/*.go", "Suite/", caseName)

	_, section, _ := strings.Cut(read(t, "../WIRE.md"), "\n## Differences on a real RocketMQ\n")
	rows := 0
	for _, columns := range []int{3, 6} { // the differences of 5.2.0, and those of the later versions
		_, table, ok := strings.Cut(section, "\n|"+strings.Repeat("---|", columns)+"\n")
		assert.MustThat(t, ok, "WIRE.md has no table of differences with %d columns", columns)
		for row := range strings.Lines(table) {
			if !strings.HasPrefix(row, "|") {
				break
			}
			rows++
			cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
			tests := testName.FindAllStringSubmatch(cells[len(cells)-1], -1)
			assert.That(t, len(cells) == columns && len(tests) != 0,
				"row %d has %d cells and %d tests: %s", rows, len(cells), len(tests), row)
			for _, m := range tests {
				if !known[m[1]] {
					t.Errorf("row %d names the test %s, which does not exist", rows, m[1])
				}
			}
		}
	}
	assert.That(t, rows >= 15, "the tables have %d rows", rows)
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := assert.Value(os.ReadFile(name))(t)
	return string(b)
}
