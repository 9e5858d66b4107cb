package consume

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
)

// The package's doc has the state machine as a table for people: row by row
// the one of the code.
func TestStateMachineIsDocumented(t *testing.T) {
	t.Parallel()
	var code []string
	add := func(m map[State]map[Event]State, condition string) {
		for from, events := range m {
			for e, to := range events {
				code = append(code, strings.Join([]string{from.String(), e.String(), to.String(), condition}, " "))
			}
		}
	}
	add(transitions, "-")
	add(pushTransitions, "push consumer")
	add(exhaustedTransitions[ThenDeadLetter], "exhausted: "+"dead-letter")
	add(exhaustedTransitions[ThenPark], "exhausted: "+"park")
	add(exhaustedTransitions[ThenBlock], "exhausted: "+"block")
	slices.Sort(code)

	text := assert.Value(os.ReadFile("../../doc.go"))(t)
	_, table, ok := strings.Cut(string(text), "//	from          event         to            condition\n")
	assert.MustThat(t, ok, "doc.go has no table")
	table, _, _ = strings.Cut(table, "\n//\n")
	var doc []string
	rank := map[string]int{"exhausted:": 0, "push": 1, "-": 2}
	before := []string{"", "", "", "-"}
	for line := range strings.Lines(table) {
		words := strings.Fields(strings.TrimPrefix(line, "//"))
		doc = append(doc, strings.Join(words, " "))
		assert.That(t, words[0] != before[0] || words[1] != before[1] || rank[words[3]] >= rank[before[3]],
			"%q stands below a row that holds before it", line)
		before = words
	}
	slices.Sort(doc)
	if !slices.Equal(doc, code) {
		t.Errorf("the doc has\n%s\nthe code\n%s", strings.Join(doc, "\n"), strings.Join(code, "\n"))
	}
}

// The names are in logs, errors and the table in the documentation of package broker.
func TestNamesOfStatesAndEvents(t *testing.T) {
	for s, want := range map[State]string{
		Ready: "Ready", Inflight: "Inflight", WaitingRetry: "WaitingRetry", Commit: "Commit",
		DeadLetter: "DeadLetter", Parked: "Parked", Held: "Held", 99: "unknown",
	} {
		got := s.String()
		assert.That(t, got == want, "state %d is %q, want %q", uint8(s), got, want)
	}
	for e, want := range map[Event]string{
		EventDeliver: "deliver", EventAck: "ack", EventFail: "fail", EventTimeout: "timeout", EventChange: "change", EventRelease: "release",
		EventDue: "due", EventDeadLetter: "dead-letter", EventNegativeAck: "negative-ack",
		EventReconsume: "reconsume", EventPromote: "promote", EventRedrive: "redrive",
	} {
		got := e.String()
		assert.That(t, got == want, "event %d is %q, want %q", uint8(e), got, want)
	}
}

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

// The state machine, written out a second time, as a list.
// RocketMQ: consumption retry: "Retry process state machine: controls the state and the change
// logic of messages in the retry process"
func TestStateMachine(t *testing.T) {
	t.Parallel()
	exhaustions := []Exhaustion{AttemptsLeft, ThenDeadLetter, ThenPark, ThenBlock}
	type results [4]State // by Exhaustion, in that order
	always := func(to State) results { return results{to, to, to, to} }
	type pair struct {
		from State
		e    Event
	}
	// A pair that is not in want cannot happen, for any consumer and any number of attempts.
	want := map[pair]results{
		{Ready, EventDeliver}:           always(Inflight),
		{Ready, EventDeadLetter}:        {DeadLetter, DeadLetter, Parked, Ready},
		{Inflight, EventAck}:            always(Commit),
		{Inflight, EventReconsume}:      always(Commit),
		{Inflight, EventSnooze}:         always(WaitingRetry),
		{Inflight, EventFail}:           {WaitingRetry, DeadLetter, Parked, WaitingRetry},
		{Inflight, EventNegativeAck}:    {WaitingRetry, DeadLetter, Parked, WaitingRetry},
		{Inflight, EventTimeout}:        {Ready, DeadLetter, Parked, Ready},
		{Inflight, EventChange}:         always(Inflight),
		{Inflight, EventRelease}:        always(Ready),
		{Inflight, EventDeadLetter}:     {DeadLetter, DeadLetter, Parked, WaitingRetry},
		{WaitingRetry, EventDue}:        {Ready, DeadLetter, Parked, Ready},
		{WaitingRetry, EventDeadLetter}: {DeadLetter, DeadLetter, Parked, WaitingRetry},
		{Parked, EventRedrive}:          always(Ready),
		{Parked, EventDeadLetter}:       always(DeadLetter),
		{Held, EventPromote}:            always(Ready),
	}
	// The differences for push consumers: a timeout schedules a retry, as a failure does.
	wantPush := map[pair]results{
		{Inflight, EventTimeout}: {WaitingRetry, DeadLetter, Parked, WaitingRetry},
	}
	for from := Ready; from <= Held; from++ {
		for e := EventDeliver; e <= EventRedrive; e++ {
			for i, x := range exhaustions {
				for _, push := range []bool{false, true} {
					to, can := want[pair{from, e}]
					if other, ok := wantPush[pair{from, e}]; ok && push {
						to = other
					}
					if got, ok := from.Next(e, x, push); ok != can || ok && got != to[i] {
						t.Errorf("%v, event %v, exhaustion %d, push %v: %v, %v; want %v, %v", from, e, x, push, got, ok, to[i], can)
					}
				}
			}
		}
	}
}
