package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// An observer may observe some names, or all.
type observer struct {
	whole bool
	names []string
}

func (o observer) Broker() bool           { return o.whole }
func (o observer) Topic(name string) bool { return o.whole || slices.Contains(o.names, name) }
func (o observer) Group(name string) bool { return o.Topic(name) }

// historyOf returns the history of everything, or of names that begin with group or topic.
func historyOf(t *testing.T, b *broker.Broker, day bool, names ...string) *engine.HistoryResult {
	t.Helper()
	q := engine.HistoryQuery{Day: day, Observer: observer{whole: true}}
	for _, name := range names {
		if group, ok := strings.CutPrefix(name, "group "); ok {
			q.Groups = append(q.Groups, group)
		} else {
			q.Topics = append(q.Topics, name)
		}
	}
	h, err := serve(b).History(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// wantSeries compares the lists of a series with texts such as "accepted [4 1]".
func wantSeries(t *testing.T, s *engine.HistorySeries, want ...string) {
	t.Helper()
	var got []string
	for _, list := range []struct {
		name   string
		values []int64
	}{
		{"accepted", s.Accepted}, {"delivered", s.Delivered}, {"acked", s.Acked}, {"redelivered", s.Redelivered},
		{"dead", s.DeadLetters}, {"backlog", s.Backlog}, {"retry", s.WaitingRetry},
	} {
		if list.values != nil {
			got = append(got, fmt.Sprint(list.name, " ", list.values))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has\n%s\nwant\n%s", s.Name, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The history has the messages and the backlogs of each 10 s, of topics, groups and in total.
// While nothing changes the broker samples nothing, and the history goes on.
func TestHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		opened := time.Now()
		b := open(t, broker.Options{MinInvisibleDuration: 1})
		putTopic(t, b, "orders", settings.Topic{Queues: 1, DuplicateWindow: -1})
		putTopic(t, b, "quiet", settings.Topic{Queues: 1})
		putGroup(t, b, "billing", settings.Group{})
		time.Sleep(3 * time.Second)
		for i := range 4 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")})
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 3, InvisibleDuration: time.Hour})
		ackDeliveries(t, b, ds[:1])
		if _, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.Retry, Delay: 30 * time.Second}); err != nil { // due after 33 s, in slot 3
			t.Fatal(err)
		}
		if _, err := b.Settle(t.Context(), ds[2], transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		mustSend(t, b, &tidegate.Message{ID: "5", Topic: "orders", Body: []byte("x")})
		time.Sleep(53 * time.Second) // after 65 s, in slot 6

		h := historyOf(t, b, false, "orders", "quiet", "none", "group billing", "group none")
		if !h.AsOf.Equal(time.Now()) || !h.Started.Equal(opened) || h.StepMS != 10_000 || len(h.Topics) != 2 || len(h.Groups) != 1 || h.Total != nil {
			t.Fatalf("%+v", h)
		}
		orders, billing := h.Topics[0], h.Groups[0]
		wantSeries(t, &orders, "accepted [4 1 0 0 0 0 0]", "acked [1 0 0 0 0 0 0]", "backlog [2 3 3 3 3 3 3]")
		wantSeries(t, &h.Topics[1], "accepted [0 0 0 0 0 0 0]", "acked [0 0 0 0 0 0 0]", "backlog [0 0 0 0 0 0 0]")
		wantSeries(t, &billing, "delivered [3 0 0 0 0 0 0]", "acked [1 0 0 0 0 0 0]", "redelivered [0 0 0 0 0 0 0]",
			"dead [1 0 0 0 0 0 0]", "backlog [2 3 3 3 3 3 3]", "retry [1 1 1 0 0 0 0]")
		if !orders.From.Equal(opened) || orders.Counters != (engine.HistoryCounters{Accepted: 5, Acked: 1}) ||
			billing.Counters != (engine.HistoryCounters{Delivered: 3, Acked: 1, DeadLetters: 1}) || orders.LeftOut || billing.LeftOut {
			t.Errorf("orders %+v, billing %+v", orders, billing)
		}
		total := historyOf(t, b, false)
		wantSeries(t, total.Total, "accepted [5 1 0 0 0 0 0]", "delivered [3 0 0 0 0 0 0]", "acked [1 0 0 0 0 0 0]", "redelivered [0 0 0 0 0 0 0]",
			"dead [1 0 0 0 0 0 0]", "backlog [2 3 3 3 3 3 3]", "retry [1 1 1 0 0 0 0]") // a dead letter is stored, too
		if total.Total.Counters.Accepted != 6 || *total.LeftOut != (engine.HistoryLeftOut{}) {
			t.Errorf("%+v", total)
		}

		time.Sleep(time.Minute) // the last note of a change is sampled
		before, _ := b.Engine().Parts().HistoryUse(t.Context())
		time.Sleep(26 * time.Hour)
		if rounds, _ := b.Engine().Parts().HistoryUse(t.Context()); rounds != before {
			t.Errorf("%d rounds in a day without a change", rounds-before)
		}
		h = historyOf(t, b, true, "orders")
		zeros := fmt.Sprint(make([]int64, 289))
		wantSeries(t, &h.Topics[0], "accepted "+zeros, "acked "+zeros, "backlog "+strings.ReplaceAll(zeros, "0", "3"))
		if from := h.Topics[0].From; from.After(time.Now().Add(-24*time.Hour)) || from.Before(time.Now().Add(-24*time.Hour-5*time.Minute)) {
			t.Errorf("the day begins at %v, now is %v", from, time.Now())
		}
		mustSend(t, b, &tidegate.Message{ID: "6", Topic: "orders", Body: []byte("x")})
		time.Sleep(time.Second)
		s := historyOf(t, b, false, "orders").Topics[0]
		if n := len(s.Accepted); n != 361 || s.Accepted[n-1] != 1 || slices.Max(s.Accepted[:n-1]) != 0 || s.Backlog[n-1] != 4 || s.Backlog[n-2] != 3 {
			t.Errorf("after a day without a change: %v, backlogs %v", s.Accepted, s.Backlog)
		}
	})
}

// The messages of a deleted topic stay in the totals, and its place in the history is free. A topic
// of the same name begins anew.
func TestHistoryOfADeletedTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "orders", settings.Topic{Queues: 1, DuplicateWindow: -1})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")}, &tidegate.Message{ID: "2", Topic: "orders", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 1, InvisibleDuration: time.Hour})
		time.Sleep(15 * time.Second)
		_, used := b.Engine().Parts().HistoryUse(t.Context())
		if err := b.DeleteTopic(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, now := b.Engine().Parts().HistoryUse(t.Context()); now >= used {
			t.Errorf("%d bytes after the deletion, %d before it", now, used)
		}
		putTopic(t, b, "orders", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")})
		time.Sleep(5 * time.Second) // after 30 s
		h := historyOf(t, b, false, "orders", "group billing")
		wantSeries(t, &h.Topics[0], "accepted [1 0]", "acked [0 0]", "backlog [1 1]")
		if !h.Topics[0].From.Equal(h.Started.Add(20 * time.Second)) {
			t.Errorf("the new topic begins at %v", h.Topics[0].From.Sub(h.Started))
		}
		wantSeries(t, &h.Groups[0], "delivered [1 0 0 0]", "acked [0 0 0 0]", "redelivered [0 0 0 0]", "dead [0 0 0 0]", "backlog [2 0 0 0]", "retry [0 0 0 0]")
		wantSeries(t, historyOf(t, b, false).Total, "accepted [2 0 1 0]", "delivered [1 0 0 0]", "acked [0 0 0 0]", "redelivered [0 0 0 0]", "dead [0 0 0 0]",
			"backlog [2 0 0 0]", "retry [0 0 0 0]")
	})
}

// A restart begins a new history, with the backlogs of the first sample.
func TestHistoryAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := broker.NewMemory()
		b := open(t, broker.Options{Memory: memory})
		putTopic(t, b, "orders", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")})
		time.Sleep(25 * time.Second)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		restarted := time.Now()
		b = open(t, broker.Options{Memory: memory})
		time.Sleep(12 * time.Second)
		h := historyOf(t, b, false, "orders")
		wantSeries(t, &h.Topics[0], "accepted [0 0]", "acked [0 0]", "backlog [1 1]")
		if !h.Started.Equal(restarted) || !h.Topics[0].From.Equal(restarted) {
			t.Errorf("started %v, from %v; want %v", h.Started, h.Topics[0].From, restarted)
		}
	})
}

// The sums of a caller are those of the names that it may observe, and so are the counts of what
// the history left out. The total of the broker has all messages, however small the memory is.
func TestHistoryOfACaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const memory, topics = 16 << 10, 40
		b := open(t, broker.Options{MaxAutoGroups: 2 * topics}.HistoryMemory(memory))
		for i := range topics {
			putTopic(t, b, fmt.Sprintf("t%02d", i), settings.Topic{Queues: 1, DuplicateWindow: -1})
		}
		id := 0
		sendTo := func(topic string, n int) {
			for range n {
				id++
				mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(id), Topic: topic, Body: []byte("x")})
			}
		}
		time.Sleep(time.Second) // away from the ends of slots
		for range 6 {
			for i := range topics {
				sendTo(fmt.Sprintf("t%02d", i), 1+i/10)
				ds := receive(t, b, transport.ReceiveRequest{Group: fmt.Sprintf("g%02d", i), Topic: fmt.Sprintf("t%02d", i), Max: 1, InvisibleDuration: time.Hour})
				ackDeliveries(t, b, ds)
			}
			time.Sleep(10 * time.Second)
			if _, used := b.Engine().Parts().HistoryUse(t.Context()); used > memory {
				t.Fatalf("the history uses %d bytes of %d", used, memory)
			}
		}
		all := historyOf(t, b, false)
		wantSeries(t, all.Total, "accepted [100 100 100 100 100 100 0]", "delivered [40 40 40 40 40 40 0]", "acked [40 40 40 40 40 40 0]",
			"redelivered [0 0 0 0 0 0 0]", "dead [0 0 0 0 0 0 0]", "backlog [60 120 180 240 300 360 360]", "retry [0 0 0 0 0 0 0]")
		if all.LeftOut.Topics == 0 || all.LeftOut.Groups == 0 || all.LeftOut.Topics+all.LeftOut.Groups == 2*topics {
			t.Fatalf("%+v is left out of %d topics and groups", *all.LeftOut, topics)
		}
		kept, lost := "", ""
		for i := range topics {
			name := fmt.Sprintf("t%02d", i)
			if s := historyOf(t, b, false, name).Topics[0]; s.LeftOut {
				lost = name
			} else {
				kept = name
				want := int64(1 + i/10)
				if s.Accepted[0] != want || s.Accepted[5] != want || s.Counters.Accepted != 6*want {
					t.Errorf("%s: %+v", name, s)
				}
			}
		}
		some := func(names ...string) *engine.HistoryResult {
			h, err := serve(b).History(t.Context(), engine.HistoryQuery{Observer: observer{names: names}})
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		n := historyOf(t, b, false, kept).Topics[0]
		of := some(kept)
		if *of.LeftOut != (engine.HistoryLeftOut{}) || !slices.Equal(of.Total.Accepted, n.Accepted) || of.Total.Counters != (engine.HistoryCounters{Accepted: n.Counters.Accepted}) {
			t.Errorf("the total of %s alone is %+v, left out %+v", kept, of.Total, of.LeftOut)
		}
		if slices.Max(of.Total.Backlog)+slices.Max(of.Total.Delivered)+slices.Max(of.Total.Acked) != 0 {
			t.Errorf("the total of a caller without groups has %+v", of.Total)
		}
		if of := some(kept, lost); *of.LeftOut != (engine.HistoryLeftOut{Topics: 1}) {
			t.Errorf("left out of two topics: %+v", *of.LeftOut)
		}
		if of := some(); *of.LeftOut != (engine.HistoryLeftOut{}) || of.Total.Counters != (engine.HistoryCounters{}) || len(of.Total.Accepted) != 0 {
			t.Errorf("a caller without a name gets %+v", of.Total)
		}
		h, err := serve(b).History(t.Context(), engine.HistoryQuery{
			Topics: []string{"t00", "t01"}, Groups: []string{"g00"}, Observer: observer{names: []string{"t01"}},
		})
		if err != nil || len(h.Topics) != 1 || h.Topics[0].Name != "t01" || h.Groups != nil {
			t.Errorf("%+v, %v", h, err)
		}
	})
}
