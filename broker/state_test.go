package broker

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
	exhaustions := []exhaustion{attemptsLeft, thenDeadLetter, thenPark, thenBlock}
	type results [4]State // by exhaustion, in that order
	always := func(to State) results { return results{to, to, to, to} }
	type pair struct {
		from State
		e    event
	}
	// What is not in it cannot happen, whatever the consumer and the attempts.
	want := map[pair]results{
		{StateReady, eventDeliver}:           always(StateInflight),
		{StateReady, eventDeadLetter}:        {StateDeadLetter, StateDeadLetter, StateParked, StateReady},
		{StateInflight, eventAck}:            always(StateCommit),
		{StateInflight, eventReconsume}:      always(StateCommit),
		{StateInflight, eventSnooze}:         always(StateWaitingRetry),
		{StateInflight, eventFail}:           {StateWaitingRetry, StateDeadLetter, StateParked, StateWaitingRetry},
		{StateInflight, eventNegativeAck}:    {StateWaitingRetry, StateDeadLetter, StateParked, StateWaitingRetry},
		{StateInflight, eventTimeout}:        {StateReady, StateDeadLetter, StateParked, StateReady},
		{StateInflight, eventChange}:         always(StateInflight),
		{StateInflight, eventRelease}:        always(StateReady),
		{StateInflight, eventDeadLetter}:     {StateDeadLetter, StateDeadLetter, StateParked, StateWaitingRetry},
		{StateWaitingRetry, eventDue}:        {StateReady, StateDeadLetter, StateParked, StateReady},
		{StateWaitingRetry, eventDeadLetter}: {StateDeadLetter, StateDeadLetter, StateParked, StateWaitingRetry},
		{StateParked, eventRedrive}:          always(StateReady),
		{StateParked, eventDeadLetter}:       always(StateDeadLetter),
		{stateHeld, eventTurn}:               always(StateReady),
	}
	// What is otherwise for push consumers: a timeout waits as a failure does.
	wantPush := map[pair]results{
		{StateInflight, eventTimeout}: {StateWaitingRetry, StateDeadLetter, StateParked, StateWaitingRetry},
	}
	for from := StateReady; from <= stateHeld; from++ {
		for e := eventDeliver; e <= eventRedrive; e++ {
			for i, x := range exhaustions {
				for _, push := range []bool{false, true} {
					to, can := want[pair{from, e}]
					if other, ok := wantPush[pair{from, e}]; ok && push {
						to = other
					}
					if got, ok := from.next(e, x, push); ok != can || ok && got != to[i] {
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
	add := func(m map[State]map[event]State, condition string) {
		for from, events := range m {
			for e, to := range events {
				code = append(code, strings.Join([]string{from.String(), e.String(), to.String(), condition}, " "))
			}
		}
	}
	add(transitions, "-")
	add(pushTransitions, "push consumer")
	add(exhaustedTransitions[thenDeadLetter], "exhausted: "+string(OnExhaustedDeadLetter))
	add(exhaustedTransitions[thenPark], "exhausted: "+string(OnExhaustedPark))
	add(exhaustedTransitions[thenBlock], "exhausted: "+string(OnExhaustedBlock))
	slices.Sort(code)

	text, err := os.ReadFile("doc.go")
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
		t.Errorf("the doc says\n%s\nthe code\n%s", strings.Join(doc, "\n"), strings.Join(code, "\n"))
	}
}
