package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A survey counts the messages of each state, and has ages, rates and counts of the operations.
func TestSurvey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		opened := time.Now()
		putTopic(t, b, "orders", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 12}})
		putTopic(t, b, "quiet", settings.Topic{Type: settings.TopicDelay, Queues: 3})
		putGroup(t, b, "billing", settings.Group{})
		putGroup(t, b, "unused", settings.Group{})
		serve(b).Survey() // the first sample of the rates
		for i := range 12 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("12345")})
		}
		mustSend(t, b, &tidegate.Message{ID: "late", Topic: "quiet", Body: []byte("1"), DeliverAt: time.Now().Add(time.Hour)})
		if err := send(t, b, &tidegate.Message{ID: "13", Topic: "orders", Body: []byte("1")})[0].Err; codeOf(err) != tidegate.CodeTooManyRequests {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		ds := receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 5, InvisibleDuration: time.Hour})
		if len(ds) != 5 {
			t.Fatalf("received %d", len(ds))
		}
		received := time.Now()
		if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"}); err != nil {
			t.Fatal(err)
		}
		ackDeliveries(t, b, ds[2:3])
		time.Sleep(time.Second)

		s := serve(b).Survey()
		if !s.Opened.Equal(opened) || !s.At.Equal(time.Now()) {
			t.Errorf("opened %v, at %v; want %v, %v", s.Opened, s.At, opened, time.Now())
		}
		var names []string
		for _, row := range s.Topics {
			names = append(names, row.Name)
		}
		if got, want := fmt.Sprint(names), "[%DLQ%billing orders quiet]"; got != want {
			t.Errorf("topics %s, want %s", got, want)
		}
		orders := s.Topics[1]
		if th := orders.Throttle; th == nil || th.Limit != "topic backlog messages" {
			t.Errorf("throttle %+v, want that of the backlog", th)
		}
		orders.Throttle = nil
		if want := (status.TopicSummary{
			Name: "orders", Type: settings.TopicNormal, Queues: 1, Stored: status.Backlog{Messages: 12, Bytes: 60}, Backlog: status.Backlog{Messages: 10, Bytes: 50},
			OldestMS: 4000, InRate: 3, OutRate: orders.OutRate, Accepted: 12, Acked: 1, Groups: 1,
		}); orders != want || orders.OutRate <= 0 {
			t.Errorf("topic\n%+v, want\n%+v and a rate", orders, want)
		}
		if want := (status.TopicSummary{Name: "quiet", Type: settings.TopicDelay, Queues: 3, Delayed: status.Backlog{Messages: 1, Bytes: 1}}); s.Topics[2] != want {
			t.Errorf("topic\n%+v, want\n%+v", s.Topics[2], want)
		}
		if len(s.Groups) != 2 || s.Groups[1] != (status.GroupSummary{Group: "unused"}) {
			t.Fatalf("groups %+v", s.Groups)
		}
		if h := s.Groups[0].Held; h == nil || *h != (status.Holding{Messages: 2, Since: received, Until: received.Add(time.Hour)}) {
			t.Errorf("held %+v, want both messages in flight", h)
		}
		s.Groups[0].Held = nil
		if got, want := s.Groups[0], (status.GroupSummary{
			Group: "billing", Topic: "orders", Ready: 7, Inflight: 2, WaitingRetry: 1, Backlog: status.Backlog{Messages: 10, Bytes: 50},
			OldestMS: 4000, UndeliveredMS: 4000, InRate: 3, OutRate: s.Groups[0].OutRate, Acked: 1, DeadLetters: 1, DeadLettersHour: 1, DeadLettersStored: 1, Why: "working",
		}); got != want {
			t.Errorf("group\n%+v, want\n%+v", got, want)
		}
		if got, want := s.Totals, (status.Totals{
			Topics: 3, Groups: 2, Subscriptions: 1, Stored: status.Backlog{Messages: 13, Bytes: 65}, Delayed: status.Backlog{Messages: 1, Bytes: 1},
			Backlog: status.Backlog{Messages: 10, Bytes: 50}, Ready: 7, Inflight: 2, WaitingRetry: 1, OldestMS: 4000, UndeliveredMS: 4000,
			InRate: 3, OutRate: s.Groups[0].OutRate, DeadLettersHour: 1, DeadLettersStored: 1,
		}); got != want {
			t.Errorf("totals\n%+v, want\n%+v", got, want)
		}
		if c := s.Counters; c.Accepted != (status.Backlog{Messages: 13, Bytes: 65}) || c.Delivered != 5 || c.Acked != 1 || c.DeadLetters != 1 || c.Rejected["throttled"] != 1 || c.Throttled["topic backlog messages"] != 1 {
			t.Errorf("counters %+v", c)
		}
		if len(s.Throttles) != 1 || s.Throttles[0].Subject != "orders" || !s.Throttles[0].On {
			t.Errorf("throttles %+v, want that of orders", s.Throttles)
		}

		time.Sleep(66 * time.Minute)
		if g := serve(b).Survey().Groups[0]; g.DeadLettersHour != 0 || g.DeadLetters != 1 || g.DeadLettersStored != 1 {
			t.Errorf("an hour later %+v: want no dead letter of the last hour, and one stored", g)
		}
		if _, err := b.PurgeDeadLetters(t.Context(), "billing", status.DeadLetterSelection{}); err != nil {
			t.Fatal(err)
		}
		if s := serve(b).Survey(); s.Groups[0].DeadLettersStored != 0 || s.Totals.DeadLettersStored != 0 || s.Groups[0].DeadLetters != 1 {
			t.Errorf("after the purge %+v: want no stored dead letter", s.Groups[0])
		}
		if err := b.DeleteGroup(t.Context(), "billing"); err != nil {
			t.Fatal(err)
		}
		if err := b.DeleteTopic(t.Context(), "quiet"); err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "a", settings.Topic{Queues: 1})
		s = serve(b).Survey()
		if len(s.Topics) != 3 || s.Topics[1].Name != "a" || len(s.Groups) != 1 || s.Groups[0].Group != "unused" {
			t.Errorf("after changes, topics %+v, groups %+v", s.Topics, s.Groups)
		}
	})
}

// A closed broker has the counts, and reads nothing.
func TestSurveyOfClosedBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if s := serve(b).Survey(); s.Totals.Backlog.Messages != 1 || s.Storage.DiskBytes != 0 || s.Groups[0].OldestMS != 0 {
			t.Errorf("%+v", s)
		}
	})
}
