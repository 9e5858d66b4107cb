package browsertest

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// orders sends n messages of a message group to the topic orders.
func (s *site) orders(n int, messageGroup string) {
	s.t.Helper()
	for range n {
		s.send(&tidegate.Message{Topic: "orders", Tag: "open", MessageGroup: messageGroup, Body: []byte(`{"account":17}`)})
	}
}

// If a group consumes nothing, these clicks lead from the first page to the sentence with the
// cause.
func TestWhyNothingIsConsumed(t *testing.T) {
	const group = `#bar a[href="#/groups"]`
	billing := []string{group, `main a[href="#/groups/billing"]`}
	for name, c := range map[string]struct {
		topic   settings.Topic
		group   settings.Group
		prepare func(s *site)
		clicks  []string // links, in this order
		want    []string
	}{
		"no consumer": {
			prepare: func(s *site) {
				s.take("billing", "orders", 1) // the group has received once
				s.orders(5, "")
			},
			clicks: billing,
			want:   []string{"Ready: 5, in flight: none. No consumer receives them: start a consumer of this group."},
		},
		"all parked": {
			topic: settings.Topic{Type: settings.TopicFIFO},
			group: settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark},
			prepare: func(s *site) {
				s.orders(5, "customer-1")
				for _, d := range s.take("billing", "orders", 1) {
					if _, err := s.Settle(s.t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "no such account 17"}); err != nil {
						s.t.Fatal(err)
					}
				}
			},
			clicks: []string{`main a[href="#/parked"]`, `main a[href^="#/parked/billing"]`},
			want:   []string{"customer-1", "no such account 17"},
		},
		"throttled elsewhere": {
			topic: settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}},
			prepare: func(s *site) {
				s.group("ledger", settings.Group{})
				s.take("ledger", "orders", 1)
				s.take("billing", "orders", 1)
				s.orders(10, "")
				for _, err := range s.Ack(s.t.Context(), s.take("billing", "orders", 10)) {
					assert.Must(s.t, err)
				}
				s.Send(s.t.Context(), []*tidegate.Message{{Topic: "orders", ID: "rejected", Body: []byte("x")}})
			},
			clicks: billing,
			want:   []string{"New messages are rejected, for all groups of the topic:", "backlog of the topic 10 of 10"},
		},
		"throttled topic": { // by the slowest of its groups
			topic: settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}},
			prepare: func(s *site) {
				s.orders(10, "")
				s.take("billing", "orders", 1)
				for _, err := range s.Ack(s.t.Context(), s.take("fast", "orders", 10)) {
					assert.Must(s.t, err)
				}
			},
			clicks: []string{`#bar a[href="#/topics"]`, `main a[href="#/topics/orders"]`},
			want:   []string{"sends are rejected now (530) until it is at", "billing"},
		},
		"nothing left": {
			prepare: func(s *site) { s.take("billing", "orders", 1) },
			clicks:  billing,
			want:    []string{"Nothing is left for the group: it has acknowledged, skipped by a filter or passed everything."},
		},
		"lease held by a client": {
			prepare: func(s *site) {
				s.orders(1, "")
				s.receiveAs("worker-3", "billing", "orders")
			},
			clicks: billing,
			want:   []string{"Client worker-3 holds 1 message, the first for "},
		},
		"filter excludes everything": {
			prepare: func(s *site) {
				s.orders(5, "")
				_, err := s.Receive(s.t.Context(), transport.ReceiveRequest{
					Group: "billing", Topic: "orders", Max: 32, InvisibleDuration: time.Hour, Wait: 50 * time.Millisecond, Queue: transport.AnyQueue,
					Filter: tidegate.Filter{Expression: "paid"},
				})
				assert.Must(s.t, err)
			},
			clicks: billing,
			want:   []string{"No message has matched the filter of the consumer: it skipped all 5 since "},
		},
		"poison message": {
			prepare: func(s *site) {
				s.bury("billing", "orders", 1, func(int) string { return "no such account 17" },
					func(int) *tidegate.Message {
						return &tidegate.Message{Topic: "orders", ID: "POISON", Body: []byte(`{"account":17}`)}
					})
			},
			clicks: []string{`main a[href="#/dead-letters/billing"]`, `main a[href^="#/dead-letters/billing/POISON"]`},
			want:   []string{"no such account 17", `"account"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, siteOptions{})
			s.topic("orders", c.topic)
			s.group("billing", c.group)
			c.prepare(s)
			b := open(t, s.url)
			b.load("")
			for _, link := range c.clicks {
				b.wait(`document.querySelector(` + "`" + link + "`" + `)`)
				b.eval(`document.querySelector(`+"`"+link+"`"+`).click(); null`, nil)
				b.ready()
			}
			for _, want := range c.want {
				if !b.becomes(`document.querySelector('main').innerText.replaceAll('\u202f', ' ').includes(`+"`"+want+"`"+`)`, 20*time.Second) {
					t.Errorf("the page does not contain %q:\n%s", want, b.text())
				}
			}
			b.pictures("why-" + strings.ReplaceAll(name, " ", "-"))
			b.clean()
		})
	}
}

// The page of one message follows its state: a delivery in flight, then the acknowledgement.
func TestTraceFollowsTheMessage(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.group("billing", settings.Group{})
	s.send(&tidegate.Message{Topic: "orders", ID: "watched", Body: []byte("x")})
	held := s.take("billing", "orders", 1)
	b := open(t, s.url)
	b.load("#/trace?topic=orders&id=watched")
	contains := func(text string) string {
		return `document.querySelector('main').innerText.includes(` + "`" + text + "`" + `)`
	}
	if !b.becomes(contains("In flight"), 20*time.Second) {
		t.Fatalf("the page of a message in flight is\n%s", b.text())
	}
	for _, err := range s.Ack(t.Context(), held) {
		assert.Must(t, err)
	}
	assert.That(t, b.becomes(contains("Done"), 20*time.Second), "after the acknowledgement the page is\n%s", b.text())
	b.clean()
}

// pictures makes screenshots in the widths of the specification, dark and in Chinese.
func (b *tab) pictures(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	for _, width := range []int64{320, 1280, 2560} {
		b.size(width, 900)
		b.shoot(name + "-" + map[int64]string{320: "320", 1280: "1280", 2560: "2560"}[width])
	}
	b.size(1280, 900)
	b.dark(true)
	b.shoot(name + "-dark")
	b.dark(false)
	b.speak("zh")
	b.ready()
	b.shoot(name + "-zh")
}

// The first page names a client that has held messages for longer than a minute.
func TestOverviewNamesClientThatHolds(t *testing.T) {
	since := time.Now().Add(-5 * time.Minute).UTC().Format(time.RFC3339)
	now := time.Now().UTC().Format(time.RFC3339)
	found := func(first string, n string) string { return `{"count":` + n + `,"first":[` + first + `]}` }
	held := `{"group":"billing","topic":"orders","inflight":16,"held":{"client":"worker-3","messages":16,"since":"` + since + `","until":"` + now + `"}}`
	s := start(t, answer("/v1/overview", `{"version":"v1","started":"`+since+`","now":"`+now+`","as_of":"`+now+`","ready":true,"storage":{},"memory":[],"totals":{},`+
		`"counters":{"accepted":{"messages":0,"bytes":0},"rejected":{},"throttled":{}},"top":{},"wrong":{"throttles":`+found("", "0")+`,"parked":`+found("", "0")+
		`,"behind":`+found("", "0")+`,"held":`+found(held, "1")+`,"dead_letters":`+found("", "0")+`}}`))
	b := open(t, s.url)
	b.load("")
	for _, want := range []string{"billing ← orders", "Client worker-3 holds 16 messages, the first for ", "If its handler hangs, restart it."} {
		if !b.becomes(`document.querySelector('main').innerText.replaceAll('\u202f', ' ').includes(`+"`"+want+"`"+`)`, 20*time.Second) {
			t.Errorf("the overview does not contain %q:\n%s", want, b.text())
		}
	}
	b.pictures("why-held-overview")
	b.clean()
}
