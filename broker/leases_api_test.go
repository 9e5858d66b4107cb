package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// The pages of leases have each lease once, in order, for any size of a page.
func TestLeasePages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		begin := time.Now()
		want := map[string][]string{}
		var released []*tidegate.Delivery
		for i := range 20 {
			id := fmt.Sprint(i)
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: id, Body: []byte("body")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Duration(40-i) * time.Minute})
			if len(ds) != 1 {
				t.Fatalf("%d deliveries", len(ds))
			}
			state := "inflight"
			switch i % 4 {
			case 0:
				state = "waiting_retry"
				if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Duration(40-i) * time.Minute}); err != nil {
					t.Fatal(err)
				}
			case 1:
				state = "ready" // without a due time
				released = append(released, ds...)
			}
			want[state] = append(want[state], id)
		}
		serve(b).Return(t.Context(), released)
		for _, ids := range want {
			slices.Reverse(ids) // later ones are due earlier
		}
		read := func(state string, byDue bool, limit int) (ids []string) {
			t.Helper()
			var before status.Lease
			for after := ""; ; {
				page, err := serve(b).Leases("g", "t", status.LeaseQuery{State: state, ByDue: byDue, After: after, Limit: limit})
				if err != nil || len(page.Leases) > limit {
					t.Fatalf("%+v, %v", page, err)
				}
				for _, l := range page.Leases {
					ids = append(ids, l.MessageID)
					ordered := before.Queue < l.Queue || before.Queue == l.Queue && before.Offset < l.Offset
					if byDue {
						ordered = l.Due.IsZero() || !l.Due.Before(before.Due)
					}
					if before.State != "" && !ordered {
						t.Errorf("%+v follows %+v", l, before)
					}
					if before = l; l.BodySize != 4 || l.Due.IsZero() != (l.State == "ready") || l.Since.Equal(begin) != (l.State == "inflight") || l.Holder != "" {
						t.Errorf("%+v", l)
					}
				}
				if after = page.Next; after == "" {
					return ids
				}
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 20, 1000} {
			for _, byDue := range []bool{false, true} {
				all := read("", byDue, limit)
				if slices.Sort(all); len(slices.Compact(all)) != 20 {
					t.Errorf("pages of %d have %v", limit, all)
				}
				for state, ids := range want {
					got, sorted := read(state, byDue, limit), slices.Clone(ids)
					if !byDue || state == "ready" {
						slices.Sort(got)
						slices.Sort(sorted)
					}
					if !slices.Equal(got, sorted) {
						t.Errorf("pages of %d have the %s leases %v, want %v", limit, state, got, sorted)
					}
				}
			}
		}
		s, err := serve(b).Schedule("g", "t")
		if err != nil {
			t.Fatal(err)
		}
		var retries, flights int64
		for i, d := range s.Buckets {
			if (d.Until == nil) != (i == len(s.Buckets)-1) {
				t.Errorf("bucket %d is %+v", i, d)
			}
			retries += d.WaitingRetry
			flights += d.Inflight
			// Of 24, 28, 32, 36 and 40 minutes, two are within half an hour.
			if d.Until != nil && time.Duration(*d.Until) == 30*time.Minute && d.WaitingRetry != 2 {
				t.Errorf("%d retries come within 10 to 30 minutes", d.WaitingRetry)
			}
		}
		if retries != 5 || flights != 10 || !s.Now.Equal(begin) || !s.NextRetry.Equal(begin.Add(24*time.Minute)) || !s.NextLeaseEnd.Equal(begin.Add(21*time.Minute)) {
			t.Errorf("%d retries and %d leases: %+v", retries, flights, s)
		}
		for _, c := range []struct {
			group, topic string
			query        status.LeaseQuery
			want         tidegate.Code
		}{
			{"x", "t", status.LeaseQuery{}, tidegate.CodeConsumerGroupNotFound},
			{"g", "x", status.LeaseQuery{}, tidegate.CodeTopicNotFound},
			{"g", "other", status.LeaseQuery{}, tidegate.CodeConsumerGroupNotFound},
			{"g", "t", status.LeaseQuery{Limit: 1001}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{State: "done"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{State: "x"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{After: "1-2"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{After: "1-x-2"}, tidegate.CodeBadRequest},
		} {
			putTopic(t, b, "other", settings.Topic{Queues: 1})
			_, err := serve(b).Leases(c.group, c.topic, c.query)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != c.want {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}
