package pulsar

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// newFakeTransport returns a transport to a fake. The caller closes it.
func newFakeTransport(t testing.TB, s *fakeServer, o Options) *Client {
	t.Helper()
	o, err := o.withDefaults()
	assert.Must(t, err)
	f := newFaults(o.Logger, "fake:6650")
	l := clientLogger{faults: f}.SubLogger(log.Fields{"remote_addr": &url.URL{Scheme: "pulsar", Host: "fake:6650"}})
	return newClient(&fakeClient{server: s, timeout: o.RequestTimeout, log: l}, "fake:6650", o, f)
}

// pulsarServer describes Pulsar to the suite of package transporttest, as a real server showed.
func pulsarServer() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.Virtual = true
	s.PushesThrottleBackoff, s.TimeoutsTakeTheSchedule, s.Recall = false, false, false
	s.FullReceives, s.Priorities, s.LiteTopics = false, false, false
	s.LacksPositions, s.LacksTopicTypes, s.LacksStoreTimes, s.LacksMissingTopics = true, true, true, true
	s.Capabilities = transport.Capabilities{
		Suspend: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
	s.Slack = 200 * time.Millisecond // a nack takes 150 ms to 200 ms, in steps of 50 ms
	return s
}

// fakeFixture creates the topics of the suite in a fake, and, if the server does not create topics
// by itself, the retry topics and dead letter topics of its groups.
func fakeFixture(o Options, partitions int, manual bool) func(t *testing.T) transporttest.Fixture {
	return func(t *testing.T) transporttest.Fixture {
		s := newFakeServer(t)
		s.manual = manual
		var mu sync.Mutex
		groups, topics := map[string]transport.ConsumerSettings{}, map[string]bool{}
		connect := func(topic, group string) {
			s.subscribe(topic, group)
			if manual {
				retry, letters := o.Naming.Topics(topic, group)
				s.create(retry, 0)
				s.create(letters, 0)
			}
		}
		o := o
		o.Groups = func(group, _ string) transport.ConsumerSettings {
			mu.Lock()
			defer mu.Unlock()
			return groups[group]
		}
		c := newFakeTransport(t, s, o) // the suite closes it
		t.Cleanup(func() { s.mustBeIdle() })
		return transporttest.Fixture{
			Transport: c,
			CreateTopic: func(_ context.Context, name string, _ settings.TopicType) error {
				mu.Lock()
				defer mu.Unlock()
				topics[name] = true
				s.create(name, partitions)
				for group := range groups {
					connect(name, group)
				}
				return nil
			},
			CreateGroup: func(_ context.Context, name string, settings transport.ConsumerSettings) error {
				mu.Lock()
				defer mu.Unlock()
				groups[name] = settings
				for _, topic := range slices.Sorted(maps.Keys(topics)) {
					connect(topic, name)
				}
				return nil
			},
			Disconnect: func() { s.disconnect(true) },
		}
	}
}

// mustBeIdle checks that the transport has closed all producers and consumers of the client.
func (s *fakeServer) mustBeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.That(s.t, len(s.producers)+len(s.consumers) == 0, "%d producers and %d consumers are open after Close", len(s.producers), len(s.consumers))
}

func TestSuite(t *testing.T) {
	transporttest.Run(t, fakeFixture(Options{}, 0, false), pulsarServer())
}

// A topic with partitions has the same promises.
func TestSuitePartitions(t *testing.T) {
	transporttest.Run(t, fakeFixture(Options{Batching: true}, 3, false), pulsarServer())
}

// Without automatic creation of topics, missing ones are reported.
func TestSuiteManualTopics(t *testing.T) {
	s := pulsarServer()
	s.LacksMissingTopics = false
	transporttest.Run(t, fakeFixture(Options{}, 0, true), s)
}
