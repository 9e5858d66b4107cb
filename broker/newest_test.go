package broker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/fingerprint"
	"github.com/tidegate/tidegate/transport"
)

// With the newest letters first, the letters of each queue come in descending order: for any size
// of pages and bodies, and with gaps between the letters.
func TestNewestDeadLetters(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(3), readNewest)
}

func readNewest(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 8))
	b := open(t, broker.Options{})
	queues := 1 + rnd.IntN(3)
	putTopic(t, b, "%DLQ%g", settings.Topic{Queues: queues})
	size := []int{1, 1, 300 << 10}[rnd.IntN(3)]
	for range 1 + rnd.IntN(800*100/(100+size/1000)) {
		mustSend(t, b, &tidegate.Message{Topic: "%DLQ%g", Tag: fmt.Sprint(rnd.IntN(20)), Body: make([]byte, 1+rnd.IntN(size))})
	}
	all := func(q status.DeadLetterQuery) (ids []string) {
		t.Helper()
		for {
			page, err := b.DeadLetters("g", q)
			if err != nil || len(page.DeadLetters) > q.Limit {
				t.Fatalf("%d letters, %v", len(page.DeadLetters), err)
			}
			for _, l := range page.DeadLetters {
				ids = append(ids, l.MessageID)
			}
			if q.After = page.Next; q.After == "" {
				return ids
			}
		}
	}
	limit := func() int { return 1 + rnd.IntN(1000) }
	check := func() {
		t.Helper()
		want := all(status.DeadLetterQuery{Limit: 1000})
		slices.Reverse(want)
		if got := all(status.DeadLetterQuery{Limit: limit(), Newest: true}); !slices.Equal(got, want) {
			t.Errorf("%d letters, want %d: %v, want %v", len(got), len(want), got, want)
		}
		for _, newest := range []bool{false, true} {
			count := int64(0)
			for q := (status.DeadLetterQuery{Newest: newest}); ; {
				c, err := serve(b).CountDeadLetters("g", q)
				if err != nil {
					t.Fatal(err)
				}
				if count, q.After = count+c.Count, c.Next; q.After == "" {
					break
				}
			}
			if count != int64(len(want)) {
				t.Errorf("newest %t: %d are counted, want %d", newest, count, len(want))
			}
		}
	}
	check()
	for range 4 {
		sel := status.DeadLetterSelection{Limit: limit(), Newest: rnd.IntN(2) == 0}
		before := all(status.DeadLetterQuery{Limit: 1000, Newest: sel.Newest})
		dry := sel
		dry.DryRun = true
		would, err := b.PurgeDeadLetters(t.Context(), "g", dry)
		if err != nil || !slices.Equal(all(status.DeadLetterQuery{Limit: 1000, Newest: sel.Newest}), before) {
			t.Fatalf("a dry run changed the letters: %v", err)
		}
		done, err := b.PurgeDeadLetters(t.Context(), "g", sel)
		if err != nil || done != would {
			t.Fatalf("%+v, %v; the dry run was %+v", done, err, would)
		}
		if left := all(status.DeadLetterQuery{Limit: 1000, Newest: sel.Newest}); !slices.Equal(left, before[done.Purged:]) {
			t.Errorf("%d of %d letters are left after %d", len(left), len(before), done.Purged)
		}
		check()
	}
}

// A redrive of one class sends its letters back and no others; its dry run has the same counts and
// changes nothing.
func TestRedriveOfAClass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		for _, topic := range []string{"t", "gone"} {
			putTopic(t, b, topic, settings.Topic{Queues: 1})
			for i := range 6 {
				mustSend(t, b, &tidegate.Message{Topic: topic, ID: fmt.Sprint(topic, i), Body: []byte("x")})
				reason := fmt.Sprintf("%s %d", []string{"no account", "no order"}[i%2], i)
				if _, err := b.Settle(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.DeadLetter, Reason: reason}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := b.DeleteTopic(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			sel  status.DeadLetterSelection
			want status.DeadLetterRedrive
			left string
		}{
			{status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: fingerprint.Of("gone", "no order 1")}}, status.DeadLetterRedrive{NoTarget: 3}, "t0 t1 t2 t3 t4 t5 gone0 gone1 gone2 gone3 gone4 gone5"},
			{status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: fingerprint.Of("t", "no order 1")}, Newest: true}, status.DeadLetterRedrive{Redriven: 3}, "t0 t2 t4 gone0 gone1 gone2 gone3 gone4 gone5"},
			{status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: "x"}}, status.DeadLetterRedrive{}, "t0 t2 t4 gone0 gone1 gone2 gone3 gone4 gone5"},
		} {
			before := listLetters(t, b, status.DeadLetterFilter{})
			dry := c.sel
			dry.DryRun = true
			if got, err := b.RedriveDeadLetters(t.Context(), "g", dry); err != nil || got != c.want || !slices.Equal(listLetters(t, b, status.DeadLetterFilter{}), before) {
				t.Errorf("dry run of %+v: %+v, %v, want %+v", c.sel, got, err, c.want)
			}
			if got, err := b.RedriveDeadLetters(t.Context(), "g", c.sel); err != nil || got != c.want {
				t.Errorf("%+v: %+v, %v, want %+v", c.sel, got, err, c.want)
			}
			if left := strings.Join(listLetters(t, b, status.DeadLetterFilter{}), " "); left != c.left {
				t.Errorf("%+v: %s are left, want %s", c.sel, left, c.left)
			}
		}
	})
}
