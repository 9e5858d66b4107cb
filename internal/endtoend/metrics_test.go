package endtoend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
)

// scrape returns the series of GET /metrics with their values.
func scrape(t *testing.T, b *brokertest.Broker) map[string]string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, addr string) (net.Conn, error) { return b.DialHTTP(ctx, addr) },
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.HTTPAddress()+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	series := map[string]string{}
	for lines := bufio.NewScanner(io.LimitReader(resp.Body, 16<<20)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && !strings.HasPrefix(name, "#") {
			series[name] = value
		}
	}
	return series
}

// The messages that a group cannot consume are counted by the reason, each in a number of
// its own, and the series have these numbers. Alerts depend on them.
func TestMetricsCountByReason(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		ctx := t.Context()
		send := func(topic string, n int, group func(n int) string) {
			for i := range n {
				b.Send(&tidegate.Message{Topic: topic, MessageGroup: group(i), Body: []byte("x")})
			}
		}
		none := func(int) string { return "" }
		var stops []func()
		fail := func(context.Context, *tidegate.Delivery) error { return errors.New("no") }
		setAddress := func(topic string, s settings.Address) {
			t.Helper()
			if _, err := b.PutAddressSettings(ctx, topic, s); err != nil {
				t.Fatal(err)
			}
		}

		// 2 message groups are parked, with 4 and 5 messages.
		b.CreateTopic("parking", settings.Topic{Type: settings.TopicFIFO})
		b.CreateGroup("parker", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
		send("parking", 4, func(int) string { return "a" })
		send("parking", 5, func(int) string { return "b" })
		stops = append(stops, b.Consume("parker", "parking", fail))

		// 3 message groups are blocked, with a message each.
		b.CreateTopic("blocking", settings.Topic{Type: settings.TopicFIFO})
		b.CreateGroup("blocker", settings.Group{
			FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock, FIFORetryInterval: settings.Duration(10 * time.Minute),
		})
		send("blocking", 3, func(i int) string { return fmt.Sprint("group", i) })
		stops = append(stops, b.Consume("blocker", "blocking", fail))

		// 6 messages are discarded after their only attempt, 7 become dead letters, 8 expire.
		b.CreateTopic("discarding", settings.Topic{})
		setAddress("discarding", settings.Address{MaxDeliveryAttempts: new(1)})
		send("discarding", 6, none)
		stops = append(stops, b.Consume("discarder", "discarding", fail))
		b.CreateTopic("dying", settings.Topic{})
		b.CreateGroup("dier", settings.Group{MaxAttempts: 1})
		send("dying", 7, none)
		stops = append(stops, b.Consume("dier", "dying", fail))
		b.CreateTopic("expiring", settings.Topic{})
		setAddress("expiring", settings.Address{ExpiryDelay: new(settings.Milliseconds(1000))})
		send("expiring", 8, none)

		// 10 messages are removed before their group receives again, and 1 is acknowledged.
		b.CreateTopic("fleeting", settings.Topic{
			DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(10 * time.Minute)},
		})
		b.CreateGroup("late", settings.Group{})
		stop := b.Consume("late", "fleeting", func(context.Context, *tidegate.Delivery) error { return nil })
		send("fleeting", 1, none)
		b.WaitIdle("late", "fleeting")
		stop()
		send("fleeting", 10, none)

		time.Sleep(time.Minute)
		for _, stop := range stops { // idle consumers poll for nothing
			stop()
		}
		time.Sleep(time.Hour)
		b.Consume("expirer", "expiring", fail)
		time.Sleep(time.Minute)

		got := scrape(t, b)
		for series, want := range map[string]string{
			`tidegate_group_parked_messages{group="parker",topic="parking"}`:                                            "9",
			`tidegate_group_parked_message_groups{group="parker",topic="parking"}`:                                      "2",
			`tidegate_group_blocked_message_groups{group="parker",topic="parking"}`:                                     "0",
			`tidegate_group_blocked_message_groups{group="blocker",topic="blocking"}`:                                   "3",
			`tidegate_group_parked_messages{group="blocker",topic="blocking"}`:                                          "0",
			`tidegate_group_discarded_messages_total{group="discarder",reason="attempts_exhausted",topic="discarding"}`: "6",
			`tidegate_group_discarded_messages_total{group="discarder",reason="expired",topic="discarding"}`:            "0",
			`tidegate_group_discarded_messages_total{group="expirer",reason="expired",topic="expiring"}`:                "8",
			`tidegate_group_discarded_messages_total{group="expirer",reason="attempts_exhausted",topic="expiring"}`:     "0",
			`tidegate_group_dead_letters_total{group="dier",reason="attempts_exhausted",topic="dying"}`:                 "7",
			`tidegate_group_dead_letters_total{group="discarder",reason="attempts_exhausted",topic="discarding"}`:       "0",
			`tidegate_group_overtaken_messages_total{group="late",topic="fleeting"}`:                                    "10",
			`tidegate_group_acknowledged_messages_total{group="late",topic="fleeting"}`:                                 "1",
			`tidegate_group_deliveries_total{attempt="1",group="dier",topic="dying"}`:                                   "7",
			`tidegate_group_deliveries_total{attempt="1",group="expirer",topic="expiring"}`:                             "0", // no handler had one
			`tidegate_group_overtaken_messages_total{group="expirer",topic="expiring"}`:                                 "0",
		} {
			if got[series] != want {
				t.Errorf("%s is %q, want %s", series, got[series], want)
			}
		}
		if t.Failed() {
			for s, v := range got {
				if strings.Contains(s, "_group_") {
					t.Log(s, v)
				}
			}
		}
	})
}
