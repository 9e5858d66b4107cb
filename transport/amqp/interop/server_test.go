// Package interop tests the transport on a real Apache ActiveMQ Artemis, which it starts. Without
// -artemis it tests nothing, because the server needs a JDK and Maven.
//
//	go test ./interop -parallel 100 -v -artemis
package interop

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
	"github.com/tidegate/tidegate/transport/transporttest"
)

var (
	artemisFlag = flag.Bool("artemis", false, "start a real Artemis; it needs a JDK of version 17 or later and Maven")
	figures     = flag.Bool("figures", false, "run also the tests that only report figures")
)

// run makes the names of this run unique.
var run = strconv.FormatInt(time.Now().UnixNano(), 36)

// properties are the address settings of the servers of the tests: addresses are created
// explicitly, queues on demand.
var properties = map[string]string{
	"journalDatasync":                             "false", // the machine of the tests is shared; the test of a crash sets it
	`addressSettings."#".autoCreateAddresses`:     "false",
	`addressSettings."#".autoDeleteQueues`:        "false",
	`addressSettings."#".autoDeleteAddresses`:     "false",
	`addressSettings."#".redeliveryDelay`:         "0",
	`addressSettings."#".maxDeliveryAttempts`:     "-1",
	`addressSettings."#".enableIngressTimestamp`:  "true",
	`addressSettings."*.DLQ".autoCreateAddresses`: "true",
	`addressSettings."*.DLQ".autoDeleteQueues`:    "false",
	`addressSettings."*.DLQ".autoDeleteAddresses`: "false",
	`addressSettings."*.DLQ".redeliveryDelay`:     "0",
	`addressSettings."*.DLQ".maxDeliveryAttempts`: "-1",
}

// limited are the settings of the addresses below a word, in addition to properties: at most 100
// KiB with a policy.
func limited(word, policy string, more map[string]string) map[string]string {
	s := map[string]string{"addressFullMessagePolicy": policy, "maxSizeBytes": "102400", "autoCreateAddresses": "true", "autoDeleteQueues": "false"}
	maps.Copy(s, more)
	all := map[string]string{}
	for k, v := range s {
		all[`addressSettings."`+word+`.#".`+k] = v
	}
	return all
}

var shared struct {
	once   sync.Once
	server *artemis.Server
	admin  *admin
	err    error
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !*artemisFlag {
		fmt.Println("without -artemis there is no server: nothing is tested")
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
func server(t testing.TB) (*artemis.Server, *admin) {
	t.Helper()
	shared.once.Do(func() {
		p := maps.Clone(properties)
		maps.Copy(p, limited("fail", "FAIL", nil))
		maps.Copy(p, limited("block", "BLOCK", nil))
		maps.Copy(p, limited("reject", "BLOCK", map[string]string{"maxSizeBytesRejectThreshold": "204800"}))
		maps.Copy(p, limited("drop", "DROP", nil))
		maps.Copy(p, limited("page", "PAGE", nil))
		p[`addressSettings."late.#".redeliveryDelay`] = "1000"
		p[`addressSettings."never.#".redeliveryDelay`] = "3600000"
		p[`addressSettings."void.#".maxDeliveryAttempts`] = "1"
		p[`addressSettings."void.#".deadLetterAddress`] = "void-letters"
		if shared.server, shared.err = artemis.Start(context.Background(), artemis.Options{Properties: p}); shared.err == nil {
			shared.admin, shared.err = connect(context.Background(), shared.server.Address())
		}
	})
	assert.Must(t, shared.err)
	return shared.server, shared.admin
}

// start starts a server of the test's own.
func start(t testing.TB, o artemis.Options) *artemis.Server {
	t.Helper()
	p := maps.Clone(properties)
	maps.Copy(p, o.Properties)
	o.Properties = p
	s := assert.Value(artemis.Start(t.Context(), o))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// client returns a transport to a server, which ends with the test.
func client(t testing.TB, address string, o amqp.Options) *amqp.Client {
	t.Helper()
	c := assert.Value(amqp.New(address, o))(t)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// dial opens a session of go-amqp alone, and returns the function that ends its connection.
func dial(t testing.TB, address string) (*goamqp.Session, func()) {
	t.Helper()
	conn := assert.Value(goamqp.Dial(t.Context(), "amqp://"+address, nil))(t)
	session := assert.Value(conn.NewSession(t.Context(), nil))(t)
	return session, func() { conn.Close() }
}

// An admin manages a server by messages to its management address.
type admin struct {
	conn    *goamqp.Conn
	mu      sync.Mutex // one operation at a time
	send    *goamqp.Sender
	replies *goamqp.Receiver
}

func connect(ctx context.Context, address string) (*admin, error) {
	return connectAs(ctx, address, goamqp.SASLTypeAnonymous())
}

func connectAs(ctx context.Context, address string, credentials goamqp.SASLType) (*admin, error) {
	conn, err := goamqp.Dial(ctx, "amqp://"+address, &goamqp.ConnOptions{SASLType: credentials})
	if err != nil {
		return nil, err
	}
	a := &admin{conn: conn}
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return nil, err
	}
	if a.send, err = session.NewSender(ctx, "activemq.management", nil); err != nil {
		return nil, err
	}
	a.replies, err = session.NewReceiver(ctx, "", &goamqp.ReceiverOptions{DynamicAddress: true, Credit: 10})
	return a, err
}

// do runs an operation of a resource, "broker" or "queue.NAME", and returns its result in JSON.
func (a *admin) do(ctx context.Context, resource, operation string, args ...any) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, err := json.Marshal(append([]any{}, args...))
	if err != nil {
		return "", err
	}
	reply := a.replies.Address()
	m := &goamqp.Message{
		Value:                 string(body),
		Properties:            &goamqp.MessageProperties{ReplyTo: &reply},
		ApplicationProperties: map[string]any{"_AMQ_ResourceName": resource, "_AMQ_OperationName": operation},
	}
	if err := a.send.Send(ctx, m, nil); err != nil {
		return "", err
	}
	r, err := a.replies.Receive(ctx, nil)
	if err != nil {
		return "", err
	}
	if err := a.replies.AcceptMessage(ctx, r); err != nil {
		return "", err
	}
	result, _ := r.Value.(string)
	if ok, _ := r.ApplicationProperties["_AMQ_OperationSucceeded"].(bool); !ok {
		return "", errors.New(result)
	}
	return result, nil
}

// createTopic creates an address of the routing type MULTICAST.
func (a *admin) createTopic(ctx context.Context, name string) error {
	_, err := a.do(ctx, "broker", "createAddress", name, "MULTICAST")
	return err
}

// createGroup creates the queue of a group.
func (a *admin) createGroup(ctx context.Context, topic, group string) error {
	return a.createQueue(ctx, topic, topic+"."+group, "MULTICAST")
}

func (a *admin) createQueue(ctx context.Context, address, name, routing string) error {
	config, err := json.Marshal(map[string]any{
		"name": name, "address": address, "routing-type": routing, "durable": true, "auto-delete": false, "auto-create-address": true,
	})
	if err != nil {
		return err
	}
	_, err = a.do(ctx, "broker", "createQueue", string(config))
	return err
}

// clientOf returns a client with the default options.
func clientOf(t testing.TB, address string) *amqp.Client {
	t.Helper()
	return client(t, address, amqp.Options{})
}

func itoa(n int) string { return strconv.Itoa(n) }

var unit = flag.Duration("suite.unit", 2*time.Second, "the unit of times in the suite; a busy machine needs a longer one")

// realArtemis describes an Artemis. The transport has no recall and no throttle backoff of the
// server, ended leases have no retry schedule, and a receive does not wait long for the messages
// that follow the first.
func realArtemis() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.Unit, s.Slack = *unit, soon // the server shares the machine with the tests
	s.PushesThrottleBackoff, s.TimeoutsTakeTheSchedule, s.Recall = false, false, false
	s.FullReceives, s.Priorities, s.LiteTopics = false, false, false
	s.LacksPositions, s.LacksTopicTypes = true, true
	s.Capabilities = transport.Capabilities{
		Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, Verdicts: transport.Snooze,
	}
	return s
}

// fixture returns a fixture whose transport has the settings of the groups that it creates.
func fixture(o amqp.Options) func(t *testing.T) transporttest.Fixture {
	return func(t *testing.T) transporttest.Fixture {
		s, a := server(t)
		var mu sync.Mutex
		groups := map[string]transport.ConsumerSettings{}
		var topics []string
		o := o
		o.Groups = func(group, _ string) transport.ConsumerSettings {
			mu.Lock()
			defer mu.Unlock()
			return groups[group]
		}
		n := &network{}
		o.Dialer = n.dial
		c, err := amqp.New(s.Address(), o) // the suite closes it
		assert.Must(t, err)
		return transporttest.Fixture{
			Transport:  c,
			Disconnect: func() { n.cut(true) },
			CreateTopic: func(ctx context.Context, name string, _ settings.TopicType) error {
				mu.Lock()
				topics = append(topics, name)
				mu.Unlock()
				return a.createTopic(ctx, name)
			},
			CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
				mu.Lock()
				groups[name] = s
				all := topics
				mu.Unlock()
				for _, topic := range all {
					if err := a.createGroup(ctx, topic, name); err != nil {
						return err
					}
				}
				return nil
			},
		}
	}
}

func TestSuiteWithCopies(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, fixture(amqp.Options{CopyRetries: true, RequestTimeout: requestTimeout}), realArtemis())
}

func TestSuite(t *testing.T) {
	t.Parallel()
	s := realArtemis()
	s.LacksExactRetries = true // the delays are those of the address settings
	transporttest.Run(t, fixture(amqp.Options{RequestTimeout: requestTimeout}), s)
}
