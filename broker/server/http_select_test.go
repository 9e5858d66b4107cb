package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
)

// The pages of a list have the rows of a sort of all wanted rows, once and in order. This holds for
// each order, condition and size of a page.
func TestSelectPages(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		rows := make([]status.GroupSummary, r.IntN(60))
		for i := range rows {
			rows[i] = status.GroupSummary{Group: fmt.Sprintf("g-%02d", i/3), Topic: fmt.Sprintf("t.%d", i%3), Ready: r.Int64N(5)}
		}
		q := summaryQuery{Limit: 1 + r.IntN(20), Descending: r.IntN(2) == 0}
		var wanted func(*status.GroupSummary) bool
		var value func(*status.GroupSummary) float64
		if r.IntN(3) > 0 {
			value = groupValues["ready"]
		}
		if r.IntN(2) == 0 {
			wanted = func(g *status.GroupSummary) bool { return g.Ready != 2 }
		}
		want := slices.Clone(rows)
		if wanted != nil {
			want = slices.DeleteFunc(want, func(g status.GroupSummary) bool { return g.Ready == 2 })
		}
		switch {
		case value != nil && q.Descending:
			slices.SortStableFunc(want, func(x, y status.GroupSummary) int { return int(y.Ready - x.Ready) })
		case value != nil:
			slices.SortStableFunc(want, func(x, y status.GroupSummary) int { return int(x.Ready - y.Ready) })
		case q.Descending:
			slices.SortFunc(want, func(x, y status.GroupSummary) int {
				return strings.Compare(y.Group+"/"+y.Topic, x.Group+"/"+x.Topic)
			})
		}
		got := []status.GroupSummary{}
		for more := true; more; more = q.After != "" {
			page, ok := selectPage(rows, wanted, value, q)
			if !ok || page.Total != int64(len(want)) || len(page.Rows) > q.Limit {
				t.Fatalf("a page of %d: %+v, %v", q.Limit, page, ok)
			}
			got, q.After = append(got, page.Rows...), page.Next
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v\nhas the pages\n%+v, want\n%+v", q, got, want)
		}
	}
	if _, ok := selectPage([]status.TopicSummary{{}}, nil, nil, summaryQuery{Limit: 1, After: "no cursor"}); ok {
		t.Error("an invalid cursor was accepted")
	}
}

// Each state selects the rows of its name.
func TestStates(t *testing.T) {
	t.Parallel()
	busy := status.Backlog{Messages: 1}
	topics := map[string][2]status.TopicSummary{ // one that has the state, and one that has not
		"throttled": {{Throttle: &status.Throttle{}}, {Backlog: busy}},
		"backlog":   {{Backlog: busy}, {Stored: busy}},
		"delayed":   {{Delayed: busy}, {Stored: busy}},
		"empty":     {{Name: "t"}, {Half: 1}},
	}
	for state, f := range topicStates {
		if c := topics[state]; !f(&c[0]) || f(&c[1]) {
			t.Errorf("topics of state %s: %v, %v", state, f(&c[0]), f(&c[1]))
		}
	}
	groups := map[string][2]status.GroupSummary{
		"backlog": {{Backlog: busy}, {Parked: 1}},
		"behind":  {{UndeliveredMS: 60_000}, {UndeliveredMS: 59_999, OldestMS: 1e9}},
		"retry":   {{WaitingRetry: 1}, {Inflight: 1}},
		"parked":  {{Parked: 1}, {Backlog: busy}},
		"blocked": {{BlockedGroups: 1}, {Backlog: busy, Parked: 1}},
		"held":    {{Held: &status.Holding{Since: time.Now().Add(-time.Minute)}}, {Inflight: 1, Held: &status.Holding{Since: time.Now()}}},
		"dead":    {{DeadLettersStored: 1}, {DeadLetters: 1, DeadLettersHour: 1}},
		"idle":    {{Backlog: busy}, {Backlog: busy, Waiting: 1}},
	}
	for state, f := range groupStates {
		if c := groups[state]; !f(&c[0]) || f(&c[1]) {
			t.Errorf("groups of state %s: %v, %v", state, f(&c[0]), f(&c[1]))
		}
	}
}
