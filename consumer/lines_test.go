package consumer

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

func inGroup(g string, n int) []*tidegate.Delivery {
	ds := make([]*tidegate.Delivery, n)
	for i := range ds {
		ds[i] = &tidegate.Delivery{Message: tidegate.Message{MessageGroup: g}}
	}
	return ds
}

func ready(t *turn) bool {
	if t.before() == nil {
		return true
	}
	select {
	case <-t.before():
		return true
	default:
		return false
	}
}

func TestLinesGoOneByOne(t *testing.T) {
	var l lines
	turns := l.join(append(inGroup("a", 3), inGroup("b", 1)...))
	if !ready(turns[0]) || ready(turns[1]) || ready(turns[2]) || !ready(turns[3]) {
		t.Fatal("only the first of each group may go")
	}
	l.finish(turns[0])
	if !ready(turns[1]) || turns[1].passedOver() || ready(turns[2]) {
		t.Error("after the first the second may go, and no other")
	}
	// One that comes later stands behind those that are still there.
	late := l.join(inGroup("a", 1))[0]
	l.finish(turns[1])
	l.finish(turns[2])
	if !ready(late) || late.passedOver() {
		t.Error("after all the others the late one may go")
	}
	l.finish(late)
	l.finish(turns[3])
	if len(l.heads) != 0 {
		t.Errorf("%d lines are left of nobody", len(l.heads))
	}
}

// M1 fails, M2 was received with it. Before M2's owner has noticed, the server
// has the failure and delivers M1 again: it must not be passed over with M2.
func TestLinesFailureThenRedelivery(t *testing.T) {
	var l lines
	turns := l.join(inGroup("a", 2))
	l.fail(turns[0])
	again := l.join(inGroup("a", 2))
	if !ready(again[0]) {
		t.Error("what comes after the failure waits for what was before it")
	}
	l.finish(turns[0])
	if !ready(turns[1]) || !turns[1].passedOver() {
		t.Error("the one behind the failed one is not passed over")
	}
	l.fail(turns[1])
	l.finish(turns[1])
	if ready(again[1]) {
		t.Error("the old line's end opened the new one")
	}
	l.finish(again[0])
	if !ready(again[1]) || again[1].passedOver() {
		t.Error("the new line does not go on")
	}
	l.finish(again[1])
	if len(l.heads) != 0 {
		t.Errorf("%d lines are left of nobody", len(l.heads))
	}
}

func TestLinesWithoutAGroup(t *testing.T) {
	var l lines
	for _, turn := range l.join(inGroup("", 3)) {
		if turn != nil || !ready(turn) || turn.passedOver() {
			t.Error("a message without a group stands in a line")
		}
		l.fail(turn)
		l.finish(turn)
	}
}

// Where a slot and the stop are there at the same time, the stop counts.
func TestNothingStartsAfterTheStop(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	r := &run{Push: &Push{opts: PushOptions{}.withDefaults()}, stop: stop, slots: make(chan struct{}, 1)}
	r.slots <- struct{}{}
	for range 100 {
		h := r.hold(&tidegate.Delivery{}, nil, time.Now())
		if e := r.awaitTurn(h); e != stopped {
			t.Fatalf("got %v, want stopped", e)
		}
		if len(r.slots) != 1 {
			t.Fatal("the slot was not put back")
		}
	}
}
