package browsertest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A site is a broker with its HTTP address.
type site struct {
	*broker.Broker
	t      testing.TB
	server *server.Server
	web    *http.Server
	url    string // http://127.0.0.1:PORT
	addr   string
}

// siteOptions are the options of a site. The zero value is a broker in memory without keys.
type siteOptions struct {
	broker broker.Options
	server server.Options
	addr   string // Empty: a free port.
	wrap   func(http.Handler) http.Handler
}

// start starts a broker, which ends with the test.
func start(t testing.TB, o siteOptions) *site {
	t.Helper()
	s := launch(t, o)
	t.Cleanup(s.kill)
	return s
}

// launch is start for a broker that the test itself kills.
func launch(t testing.TB, o siteOptions) *site {
	t.Helper()
	o.broker.MinInvisibleDuration = 1
	b := assert.Value(broker.Open(o.broker))(t)
	srv := assert.Value(server.New(b, o.server))(t)
	if o.addr == "" {
		o.addr = "127.0.0.1:0"
	}
	lis := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", o.addr))(t)
	h := srv.Handler()
	if o.wrap != nil {
		h = o.wrap(h)
	}
	s := &site{Broker: b, t: t, server: srv, web: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ConnContext: srv.ConnContext}, url: "http://" + lis.Addr().String(), addr: lis.Addr().String()}
	go s.web.Serve(lis) // it ends with kill
	return s
}

// kill ends the broker at once. A second call does nothing.
func (s *site) kill() {
	_ = s.web.Close()
	_ = s.server.Close()
	_ = s.Close()
}

// topic creates a topic, and group a group.
func (s *site) topic(name string, c settings.Topic) {
	s.t.Helper()
	assert.Must(s.t, assert.Err(s.PutTopic(context.Background(), name, c)))
}

func (s *site) group(name string, c settings.Group) {
	s.t.Helper()
	assert.Must(s.t, assert.Err(s.PutGroup(context.Background(), name, c)))
}

// sent numbers the messages of all sites.
var sent atomic.Int64

// send stores messages, and gives IDs to those without one.
func (s *site) send(msgs ...*tidegate.Message) {
	s.t.Helper()
	for _, m := range msgs {
		if m.ID == "" {
			m.ID = fmt.Sprintf("%032X", sent.Add(1))
		}
	}
	for len(msgs) > 0 {
		n := min(len(msgs), 500)
		for _, r := range s.Send(context.Background(), msgs[:n]) {
			assert.Must(s.t, r.Err)
		}
		msgs = msgs[n:]
	}
}

// take receives up to n messages without waiting long.
func (s *site) take(group, topic string, n int) []*tidegate.Delivery {
	s.t.Helper()
	var all []*tidegate.Delivery
	for len(all) < n {
		ds, err := s.Receive(context.Background(), transport.ReceiveRequest{
			Group: group, Topic: topic, Max: min(n-len(all), 32), InvisibleDuration: time.Hour, Wait: 50 * time.Millisecond, Queue: transport.AnyQueue,
		})
		assert.Must(s.t, err)
		if len(ds) == 0 {
			break
		}
		all = append(all, ds...)
	}
	return all
}

// bury sends n messages to the topic and makes them dead letters of the group.
func (s *site) bury(group, topic string, n int, reason func(i int) string, message func(i int) *tidegate.Message) {
	s.t.Helper()
	msgs := make([]*tidegate.Message, n)
	for i := range msgs {
		msgs[i] = message(i)
	}
	s.send(msgs...)
	for i, d := range s.take(group, topic, n) {
		if _, err := s.Settle(context.Background(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: reason(i)}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// letter creates the topic of a message and the group g, of which the message is the only dead
// letter.
func (s *site) letter(m *tidegate.Message) {
	s.t.Helper()
	s.topic(m.Topic, settings.Topic{Queues: 1})
	s.group("g", settings.Group{})
	s.bury("g", m.Topic, 1, func(int) string { return "no such account" }, func(int) *tidegate.Message { return m })
}

// populate creates n topics and a tenth as many groups, at least one of each if n > 0, with
// messages, retries, parked message groups and dead letters in the first ones.
func (s *site) populate(n int) {
	s.t.Helper()
	if n == 0 {
		return
	}
	s.topic("normal", settings.Topic{Queues: 4})
	s.group("g", settings.Group{MaxAttempts: 3})
	for i := 1; i < n; i++ {
		s.topic(fmt.Sprintf("orders-%05d", i), settings.Topic{Queues: 1})
	}
	for i := range n / 10 {
		s.group(fmt.Sprintf("billing-%04d", i), settings.Group{})
	}
	s.bury("g", "normal", 5, func(i int) string { return fmt.Sprintf("no such account %d", 1000+i) },
		func(i int) *tidegate.Message {
			return &tidegate.Message{Topic: "normal", Body: fmt.Appendf(nil, `{"account":%d,"total":12345678901234567890.10}`, 1000+i), Keys: []string{fmt.Sprint("key-", i)}, Tag: "paid", Properties: map[string]string{"region": "eu-central"}}
		})
	var more []*tidegate.Message
	for i := range 40 {
		more = append(more, &tidegate.Message{Topic: "normal", Body: []byte(strings.Repeat("x", 100+i)), Properties: map[string]string{"n": fmt.Sprint(i)}})
	}
	s.send(more...)
	for i, d := range s.take("g", "normal", 10) {
		if i%2 == 0 {
			if _, err := s.Settle(context.Background(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "connection refused"}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}
