package consume

import "github.com/tidegate/tidegate/broker/internal/store"

// checkFate compares the fate of a message with its state in the model.
func (m *model) checkFate(msg *message) {
	want := msg.state
	switch {
	case msg.state != Ready || !msg.passed || m.isHead(msg):
	case m.stands(msg) == Parked:
		want = Parked
	default:
		want = Held
	}
	f := m.p.Fate(msg.queue, msg.offset, msg.group)
	if f.Spilled {
		if _, ok := m.disk.spilled[store.Place{Topic: m.p.config.Topic, Queue: uint16(msg.queue), Offset: msg.offset}]; !ok {
			f = Fate{State: Commit}
		}
	}
	if f.State != want {
		m.failf("the fate of %d/%d is %v, want %v", msg.queue, msg.offset, f.State, want)
	}
	if isNew := msg.state == Ready && !msg.passed; f.New != isNew {
		m.failf("the fate of %d/%d is new: %v, want %v", msg.queue, msg.offset, f.New, isNew)
	}
	switch msg.state {
	case Inflight, WaitingRetry, Parked:
		if f.Attempt != msg.attempt || !f.Due.Equal(msg.due) || f.Blocked != msg.blocked {
			m.failf("the fate of %d/%d has attempt %d, due %v, blocked %v; want %d, %v, %v", msg.queue, msg.offset, f.Attempt, f.Due, f.Blocked, msg.attempt, msg.due, msg.blocked)
		}
	}
	if f.State == Parked && f.Reason == "" {
		m.failf("the fate of %d/%d is parked without a reason", msg.queue, msg.offset)
	}
	if f.Head == nil {
		return
	}
	head := m.messages[f.Head.Queue][f.Head.Offset]
	if head.group != msg.group || !m.isHead(head) || !head.undone() || head == msg || m.isHead(msg) {
		m.failf("%d/%d waits for %d/%d, which is not the head of its message group", msg.queue, msg.offset, head.queue, head.offset)
	}
}
