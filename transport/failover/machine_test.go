package failover

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return epoch.Add(-d) }

func TestDecide(t *testing.T) {
	r := rules{failures: 3, grace: 30 * time.Second, switchBack: time.Minute}
	well := func(d time.Duration) health { return health{wellSince: ago(d)} }
	failing := health{down: true}
	throttled := func(d time.Duration) health { return health{throttledSince: ago(d), throttledLast: epoch} }
	for name, tt := range map[string]struct {
		active int
		all    []health
		r      rules
		next   int
		why    Reason
	}{
		"all work":                         {0, []health{{}, {}}, r, 0, noSwitch},
		"the primary fails":                {0, []health{failing, {}}, r, 1, Failing},
		"all fail":                         {0, []health{failing, failing}, r, 0, noSwitch},
		"the first that works":             {0, []health{failing, failing, {}}, r, 2, Failing},
		"throttled for a while":            {0, []health{throttled(29 * time.Second), {}}, r, 0, noSwitch},
		"throttled for too long":           {0, []health{throttled(30 * time.Second), {}}, r, 1, Throttling},
		"throttling is no reason":          {0, []health{throttled(time.Hour), {}}, rules{3, -1, time.Minute}, 0, noSwitch},
		"throttled once, long ago":         {0, []health{{throttledSince: ago(time.Hour), throttledLast: ago(time.Hour)}, {}}, r, 0, noSwitch},
		"well, but not for long":           {1, []health{well(59 * time.Second), {}}, r, 1, noSwitch},
		"well for long enough":             {1, []health{well(time.Minute), {}}, r, 0, Recovered},
		"never probed":                     {1, []health{{}, {}}, r, 1, noSwitch},
		"well, with a relapse":             {1, []health{{wellSince: ago(119 * time.Second), relapses: 1}, {}}, r, 1, noSwitch},
		"well after a relapse":             {1, []health{{wellSince: ago(120 * time.Second), relapses: 1}, {}}, r, 0, Recovered},
		"relapses are bounded":             {1, []health{{wellSince: ago(32 * time.Minute), relapses: 1000}, {}}, r, 0, Recovered},
		"the secondary fails":              {1, []health{well(time.Second), failing}, r, 0, Failing},
		"the secondary fails, no other":    {1, []health{{}, failing}, r, 1, noSwitch}, // the primary's last probe failed
		"the second before the third":      {2, []health{failing, well(time.Minute), {}}, r, 1, Recovered},
		"the secondary throttles":          {1, []health{well(59 * time.Second), throttled(time.Minute)}, r, 1, noSwitch}, // the primary may throttle too
		"the secondary throttles, later":   {1, []health{well(60 * time.Second), throttled(time.Minute)}, r, 0, Throttling},
		"the third, not the first":         {1, []health{well(59 * time.Second), throttled(time.Minute), {}}, r, 2, Throttling},
		"well, for a very long SwitchBack": {1, []health{{wellSince: ago(time.Hour), relapses: 2}, {}}, rules{3, 30 * time.Second, math.MaxInt64 / 3}, 1, noSwitch},
		"never forward without a reason":   {0, []health{{}, well(time.Hour)}, r, 0, noSwitch},
		"failures in a row":                {0, []health{{failures: 3}, {}}, r, 1, Failing},
		"too few failures":                 {0, []health{{failures: 2}, {}}, r, 0, noSwitch},
	} {
		next, why := decide(epoch, tt.active, tt.all, tt.r)
		assert.That(t, next == tt.next && why == tt.why, "%s: %d, %s; want %d, %s", name, next, why, tt.next, tt.why)
	}
}

// An accepted send ends the throttling: the grace begins with the next throttle.
func TestAcceptedSendEndsThrottling(t *testing.T) {
	r := rules{failures: 3, grace: 30 * time.Second}
	h := health{}.throttled(ago(time.Minute)).accepted().throttled(epoch)
	assert.That(t, !r.throttling(h), "the throttle before the accepted send counts")
	if h = h.throttled(epoch.Add(30 * time.Second)); !r.throttling(h) {
		t.Error("the throttles after the accepted send do not count")
	}
}

func TestSwitched(t *testing.T) {
	r := rules{failures: 3, grace: 30 * time.Second, switchBack: time.Minute}
	for name, tt := range map[string]struct {
		from, to int
		left     health
		relapses int
	}{
		"the first time":             {0, 1, health{}, 0},
		"soon after it came back":    {0, 1, health{activeSince: ago(9 * time.Minute)}, 1},
		"and once more":              {0, 1, health{activeSince: ago(time.Minute), relapses: 3}, 4},
		"after a good while":         {0, 1, health{activeSince: ago(time.Hour), relapses: 2, proven: true}, 0},
		"without an accepted send":   {0, 1, health{activeSince: ago(time.Hour), relapses: 2}, 3},
		"the secondary is left":      {1, 0, health{activeSince: ago(time.Minute)}, 0},
		"a throttle does not linger": {0, 1, health{throttledSince: ago(time.Minute), wellSince: ago(time.Hour)}, 0},
	} {
		all := make([]health, 2)
		all[tt.from] = tt.left
		all = switched(epoch, tt.from, tt.to, all, r)
		if h := all[tt.from]; h.relapses != tt.relapses || !h.throttledSince.IsZero() || !h.wellSince.IsZero() {
			t.Errorf("%s: %+v, want %d relapses", name, h, tt.relapses)
		}
		if !all[tt.to].activeSince.Equal(epoch) {
			t.Errorf("%s: %+v", name, all[tt.to])
		}
	}
}

func TestQueueNumbers(t *testing.T) {
	for n := 2; n <= 4; n++ {
		seen := map[int]bool{-1: true} // any queue
		for q := -5; q < 50; q++ {
			for i := range n {
				number := queueNumber(q, i, n)
				if gotQ, gotI := queueOf(number, n); gotQ != q || gotI != i || seen[number] {
					t.Errorf("queue %d of endpoint %d of %d is %d, which is queue %d of %d", q, i, n, number, gotQ, gotI)
				}
				seen[number] = true
			}
		}
	}
}

// An endpoint is left between the choice of it and the start of the attempt.
func TestAttemptAfterASwitchDoesNotWait(t *testing.T) {
	x := assert.Value(New([]Endpoint{{"a", pinged{}}, {"b", pinged{}}}, Options{}))(t)
	chosen := x.now()
	x.mu.Lock()
	x.health[0].down = true
	x.reconsider(epoch)
	x.mu.Unlock()
	ctx, end := x.sending(transport.AwaitConnection(t.Context()), chosen)
	defer end()
	assert.Is(t, "the attempt waits for an endpoint without sends", context.Cause(ctx), errLeft)
	ctx, end = x.sending(transport.AwaitConnection(t.Context()), x.now())
	defer end()
	assert.That(t, ctx.Err() == nil, "%v", ctx.Err())
	assert.NoError(t, x.Close())
}

type pinged struct{ transport.Transport }

func (pinged) Ping(context.Context, ...string) error { return nil }
func (pinged) Close() error                          { return nil }

func TestVisitPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		x         visit
		active, n int
		down      []int
		want      []int
	}{
		"first":                       {visit{}, 0, 2, nil, []int{1}},
		"the secondary is active":     {visit{}, 1, 2, nil, []int{0}},
		"three":                       {visit{}, 1, 3, nil, []int{2, 0}},
		"one is down":                 {visit{}, 1, 3, []int{2}, []int{0}},
		"all are down":                {visit{}, 0, 3, []int{1, 2}, nil},
		"after a message of 1":        {visit{from: 2}, 0, 2, nil, []int{0, 1}},
		"after a message of 1 of 3":   {visit{from: 2}, 0, 3, nil, []int{2, 0, 1}},
		"after a message of 2 of 3":   {visit{from: 3}, 0, 3, nil, []int{0, 1, 2}},
		"the active one comes last":   {visit{from: 2}, 0, 3, []int{1}, []int{2}},
		"the active one is alone":     {visit{from: 2}, 0, 2, []int{1}, nil},
		"was empty a moment ago":      {visit{emptyAt: []time.Time{1: ago(4999 * time.Millisecond)}}, 0, 2, nil, nil},
		"was empty 5 s ago":           {visit{emptyAt: []time.Time{1: ago(5 * time.Second)}}, 0, 2, nil, []int{1}},
		"another was empty":           {visit{emptyAt: []time.Time{1: ago(time.Second)}}, 0, 3, nil, []int{2}},
		"the active one was empty":    {visit{from: 2, emptyAt: []time.Time{ago(time.Second)}}, 0, 2, nil, []int{0, 1}},
		"became active after it gave": {visit{from: 2}, 1, 2, nil, []int{0}},
	} {
		down := func(i int) bool { return slices.Contains(tt.down, i) }
		got := tt.x.plan(tt.active, tt.n, epoch, down)
		assert.That(t, slices.Equal(got, tt.want), "%s: %v, want %v", name, got, tt.want)
	}
}

func TestVisitsAreBounded(t *testing.T) {
	var v visits
	now := epoch
	for i := range 100_000 {
		now = now.Add(10 * time.Millisecond) // 500 in 5 s
		v.note(visitKey{group: fmt.Sprint(i)}, 1, false, now)
		assert.MustThat(t, len(v.byKey) <= 2*500+minVisits+1, "%d entries, of which 500 are of the last 5 s", len(v.byKey))
	}
}
