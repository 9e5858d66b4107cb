package consume

import (
	"os"
	"slices"
	"strings"
	"testing"
)

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

	text, err := os.ReadFile("../../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "//	from          event         to            condition\n")
	if !ok {
		t.Fatal("doc.go has no table")
	}
	table, _, _ = strings.Cut(table, "\n//\n")
	var doc []string
	rank := map[string]int{"exhausted:": 0, "push": 1, "-": 2}
	before := []string{"", "", "", "-"}
	for line := range strings.Lines(table) {
		words := strings.Fields(strings.TrimPrefix(line, "//"))
		doc = append(doc, strings.Join(words, " "))
		if words[0] == before[0] && words[1] == before[1] && rank[words[3]] < rank[before[3]] {
			t.Errorf("%q stands below a row that holds before it", line)
		}
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
		if got := s.String(); got != want {
			t.Errorf("state %d is %q, want %q", uint8(s), got, want)
		}
	}
	for e, want := range map[Event]string{
		EventDeliver: "deliver", EventAck: "ack", EventFail: "fail", EventTimeout: "timeout", EventChange: "change", EventRelease: "release",
		EventDue: "due", EventDeadLetter: "dead-letter", EventNegativeAck: "negative-ack",
		EventReconsume: "reconsume", EventPromote: "promote", EventRedrive: "redrive",
	} {
		if got := e.String(); got != want {
			t.Errorf("event %d is %q, want %q", uint8(e), got, want)
		}
	}
}
