package simulation

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

// redriven reports whether a dead letter job of the plan sends the dead letters of a group back.
func (p *plan) redriven(group string) bool {
	return newDice(p.seed, "redrive "+group).chance(0.3)
}

// redrives reports whether the plan has a dead letter job.
func (p *plan) redrives() bool {
	return slices.ContainsFunc(p.groups, func(g groupPlan) bool { return p.redriven(g.name) })
}

// redrive runs the dead letter jobs. The first run of a job ends early, and the second one
// continues it. A message that is sent back is handled, or becomes a dead letter again.
func (w *world) redrive() {
	for _, g := range w.plan.groups {
		if !w.plan.redriven(g.name) {
			continue
		}
		for _, s := range w.sites {
			s.redrive(g.name, newDice(w.plan.seed, fmt.Sprint("redrive ", g.name, s.number)))
		}
	}
}

func (s *site) redrive(group string, d dice) {
	w := s.w
	c, err := admin.New(s.HTTPAddress(), admin.Options{Dialer: s.DialHTTP})
	assert.Must(w.t, err)
	defer func() { _ = c.Close() }()
	letters := w.letters(group)
	for name := range letters {
		w.sentBack[name] = true
	}
	o := deadletter.Options{Journal: filepath.Join(w.t.TempDir(), "journal"), MaxFailureShare: 1}
	ctx, cancel := context.WithTimeout(w.t.Context(), d.span(time.Millisecond, time.Second))
	r, err := deadletter.Redrive(ctx, deadletter.Broker{Client: c, Group: group}, o)
	cancel()
	w.book.note("broker %d: %d dead letters of %s are sent back, before the job is interrupted (%v)", s.number, r.Redriven, group, err)
	if r, err = deadletter.Redrive(w.t.Context(), deadletter.Broker{Client: c, Group: group}, o); err != nil || r.Failed+r.Unresolved > 0 {
		w.book.fail("broker %d: the dead letters of %s, %d before: %+v, %v", s.number, group, len(letters), r, err)
	}
	w.book.note("broker %d: %d further dead letters of %s are sent back", s.number, r.Redriven, group)
}
