// Package interop tests the transport on a real Apache Pulsar, which it starts. Without -pulsar it
// tests nothing, because the server needs a JDK and Maven.
//
//	go test ./interop -parallel 8 -v -pulsar
package interop

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
	"github.com/tidegate/tidegate/transport/transporttest"
)

var (
	pulsarFlag = flag.Bool("pulsar", false, "start a real Pulsar; it needs a JDK of version 17 or later and Maven")
	away       = flag.Duration("pulsar.away", 5*time.Second, "the time for which a server is away")
	unit       = flag.Duration("suite.unit", 2*time.Second, "the unit of times in the suite; a busy machine needs a longer one")
)

// soon bounds waits for something that a server does in milliseconds, and requestTimeout requests,
// on a machine that other work keeps busy.
const (
	soon           = 2 * time.Minute
	requestTimeout = 30 * time.Second
)

var names atomic.Int64

// unique makes a name unique in a server, also if a test runs several times.
func unique() string { return strconv.FormatInt(names.Add(1), 10) }

// properties are the settings of the servers of the tests.
var properties = map[string]string{
	"backlogQuotaCheckIntervalInSeconds": "1",
	"brokerDeleteInactiveTopicsEnabled":  "false", // a topic can be without a subscription for a minute
}

var shared struct {
	once   sync.Once
	server *standalone.Server
	err    error
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !*pulsarFlag {
		fmt.Println("without -pulsar there is no server: nothing is tested")
		os.Exit(0)
	}
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Println(err)
		}
	}
	os.Exit(code)
}

// server returns the server that most tests share.
func server(t testing.TB) (*standalone.Server, *standalone.Admin) {
	t.Helper()
	shared.once.Do(func() {
		shared.server, shared.err = standalone.Start(context.Background(), standalone.Options{Properties: properties})
	})
	assert.Must(t, shared.err)
	return shared.server, shared.server.Admin()
}

// start starts a server of the test's own.
func start(t testing.TB, o standalone.Options) *standalone.Server {
	t.Helper()
	p := maps.Clone(properties)
	maps.Copy(p, o.Properties)
	o.Properties = p
	s := assert.Value(standalone.Start(t.Context(), o))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// namespace creates a namespace of the shared server.
func namespace(t testing.TB, name string) string {
	t.Helper()
	_, a := server(t)
	ns := "public/" + name + "-" + unique()
	assert.Must(t, a.CreateNamespace(t.Context(), ns))
	return ns
}

// full returns the full name of a topic.
func full(ns, topic string) string { return "persistent://" + ns + "/" + topic }

// connect returns a transport to the server, which ends with the test.
func connect(t testing.TB, s *standalone.Server, o pulsar.Options) *pulsar.Client {
	t.Helper()
	return connectTo(t, s.URL(), o)
}

func connectTo(t testing.TB, url string, o pulsar.Options) *pulsar.Client {
	t.Helper()
	if o.RequestTimeout == 0 {
		o.RequestTimeout = requestTimeout
	}
	c := assert.Value(pulsar.New(url, o))(t)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// bare returns the client of Apache, which ends with the test.
func bare(t testing.TB, s *standalone.Server) client.Client {
	t.Helper()
	c := assert.Value(client.NewClient(client.ClientOptions{URL: s.URL(), Logger: log.DefaultNopLogger()}))(t)
	t.Cleanup(c.Close)
	return c
}

// message returns a message with a body of size bytes.
func message(topic string, size int) *tidegate.Message {
	return &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: bytes.Repeat([]byte("x"), size)}
}

func send(ctx context.Context, c *pulsar.Client, m *tidegate.Message) error {
	return c.Send(ctx, []*tidegate.Message{m})[0].Err
}

// request is a receive of one message for the group billing.
func request(topic string) transport.ReceiveRequest {
	return transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, Max: 1, InvisibleDuration: 10 * time.Minute, Wait: time.Second}
}

// receive receives one message.
func receive(t testing.TB, c *pulsar.Client, r transport.ReceiveRequest) *tidegate.Delivery {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < soon; {
		ds, err := c.Receive(t.Context(), r)
		if err == nil && len(ds) == 1 {
			return ds[0]
		}
		assert.MustThat(t, err == nil || tidegate.Classify(err) == tidegate.ClassTransient, "%v", err)
	}
	t.Fatalf("received nothing for %v", soon)
	return nil
}

// nothing checks that a group gets no message within a second.
func nothing(t testing.TB, c *pulsar.Client, r transport.ReceiveRequest) {
	t.Helper()
	if ds, err := c.Receive(t.Context(), r); err != nil || len(ds) > 0 {
		t.Errorf("received %d messages, %v; want none", len(ds), err)
	}
}

// codeOf returns the code of an error.
func codeOf(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

func wait(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// realPulsar describes a Pulsar. It has no settings for clients and no recall, ended leases have no
// retry schedule, and a receive does not wait long for the messages that follow the first.
func realPulsar() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.Unit, s.Slack = *unit, soon // the server shares the machine with the tests
	s.PushesThrottleBackoff, s.TimeoutsTakeTheSchedule, s.Recall = false, false, false
	s.FullReceives, s.Priorities, s.LiteTopics = false, false, false
	s.LacksPositions, s.LacksTopicTypes, s.LacksStoreTimes = true, true, true
	s.Capabilities = transport.Capabilities{
		Suspend: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
	return s
}

// fixture returns a fixture in a namespace. Without auto-creation it also creates the topics of the
// groups.
func fixture(ns string, auto bool, o pulsar.Options) func(t *testing.T) transporttest.Fixture {
	return func(t *testing.T) transporttest.Fixture {
		s, a := server(t)
		var mu sync.Mutex
		groups := map[string]transport.ConsumerSettings{}
		var topics []string
		o := o
		o.Namespace, o.RequestTimeout = ns, requestTimeout
		o.Groups = func(group, _ string) transport.ConsumerSettings {
			mu.Lock()
			defer mu.Unlock()
			return groups[group]
		}
		c, err := pulsar.New(s.URL(), o) // the suite closes it
		assert.Must(t, err)
		return transporttest.Fixture{
			Transport: c,
			CreateTopic: func(ctx context.Context, name string, _ settings.TopicType) error {
				mu.Lock()
				topics = append(topics, name)
				mu.Unlock()
				return a.CreatePartitionedTopic(ctx, full(ns, name), 2)
			},
			CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
				mu.Lock()
				groups[name] = s
				all := topics
				mu.Unlock()
				for _, topic := range all {
					if err := a.CreateSubscription(ctx, full(ns, topic), name); err != nil {
						return err
					}
					if auto {
						continue
					}
					for _, end := range []string{"-RETRY", "-DLQ"} {
						if err := a.CreateTopic(ctx, full(ns, topic+"-"+name+end)); err != nil {
							return err
						}
					}
				}
				return nil
			},
		}
	}
}

// The names, and so the topics that are created, differ between the runs.
func TestSuite(t *testing.T) {
	for _, c := range []struct {
		name string
		auto bool
		o    pulsar.Options
	}{
		{"topics are created by their first use", true, pulsar.Options{}},
		{"missing topics are not created", false, pulsar.Options{}},
		{"names of version 2.7.2", true, pulsar.Options{Naming: pulsar.ByGroup}},
		{"batching", true, pulsar.Options{Batching: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := namespace(t, "suite-"+strconv.Itoa(len(c.name)))
			_, a := server(t)
			assert.Must(t, a.SetAutoTopicCreation(t.Context(), ns, c.auto))
			s := realPulsar()
			s.LacksMissingTopics = c.auto
			transporttest.Run(t, fixture(ns, c.auto, c.o), s)
		})
	}
}
