package consume

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// A lease has the mark of a changed handle only while its handle is that of a change. A dump and a
// repetition then see the same.
func TestMarkOfAChangeEndsWithItsHandle(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	policy := &Policy{MaxAttempts: 1, OnExhausted: ThenPark}
	for name, end := range map[string]func(*Progress, Handle){
		"release": func(p *Progress, h Handle) { p.Release(h, now) },
		"redrive": func(p *Progress, h Handle) {
			if out, err := p.Settle(h, transport.Verdict{Kind: transport.Retry}, 0, policy, now); err != nil || out.To != Parked {
				t.Fatal(out, err)
			}
			if groups, _, _ := p.Redrive("a", false, now); groups != 1 {
				t.Fatalf("%d message groups are redriven", groups)
			}
		},
	} {
		p := New(Config{MaxInvisible: time.Hour})
		p.AddQueue(store.Mark{})
		p.Extend(0, 1)
		r := Receive{Queue: -1, Max: 1, MaxBytes: 1 << 20, Invisible: time.Minute, Filter: anyMessage{}}
		p.Begin(&r, now)
		c, _ := p.Claim(&r)
		p.Unclaim(&r, 0)
		p.Admit(&r, c, true, []store.Message{{Message: tidegate.Message{MessageGroup: "a"}, StoredAt: now}}, []int64{c.From}, now)
		p.End(&r, now)
		h := r.Grants[0].Receipt
		if _, err := p.ChangeInvisible(h, time.Minute, h.Serial+1, policy, now); err != nil {
			t.Fatal(err)
		}
		h.Serial++
		l := p.Lease(0, 0)
		if !l.Changed || l.Serial != h.Serial {
			t.Fatalf("after the change the lease is %+v", l.Lease)
		}
		if end(p, h); l.Changed || l.Serial == h.Serial {
			t.Errorf("after the %s the lease is %+v", name, l.Lease)
		}
	}
}
