package broker

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The state machine of seed 000, written out a second time, as a list.
// Seed 000: "Retry process state machine: controls the state and the change logic of messages in the retry process"
func TestStateMachine(t *testing.T) {
	t.Parallel()
	type row struct {
		from State
		e    event
		x    exhaustion
		push bool
		to   State
	}
	const (
		left = attemptsLeft
		dead = thenDeadLetter
	)
	rows := []row{
		{StateReady, eventDeliver, left, false, StateInflight},
		{StateReady, eventDeliver, dead, true, StateInflight},
		{StateReady, eventDeliver, thenPark, true, StateInflight},
		{StateReady, eventDeadLetter, left, false, StateDeadLetter},
		{StateReady, eventDeadLetter, thenPark, false, StateParked},
		{StateReady, eventDeadLetter, thenBlock, false, StateReady},
		{StateInflight, eventAck, left, false, StateCommit},
		{StateInflight, eventAck, dead, true, StateCommit},
		{StateInflight, eventAck, thenPark, true, StateCommit},
		{StateInflight, eventFail, left, false, StateWaitingRetry},
		{StateInflight, eventFail, left, true, StateWaitingRetry},
		{StateInflight, eventFail, dead, false, StateDeadLetter},
		{StateInflight, eventFail, dead, true, StateDeadLetter},
		{StateInflight, eventFail, thenPark, true, StateParked},
		{StateInflight, eventFail, thenBlock, true, StateWaitingRetry},
		{StateInflight, eventTimeout, left, false, StateReady},
		{StateInflight, eventTimeout, left, true, StateWaitingRetry},
		{StateInflight, eventTimeout, dead, false, StateDeadLetter},
		{StateInflight, eventTimeout, dead, true, StateDeadLetter},
		{StateInflight, eventTimeout, thenPark, false, StateParked},
		{StateInflight, eventTimeout, thenBlock, false, StateReady},
		{StateInflight, eventTimeout, thenBlock, true, StateWaitingRetry},
		{StateInflight, eventChange, dead, true, StateInflight},
		{StateInflight, eventRelease, dead, true, StateReady},
		{StateInflight, eventDeadLetter, left, false, StateDeadLetter},
		{StateInflight, eventDeadLetter, dead, false, StateDeadLetter},
		{StateInflight, eventDeadLetter, thenPark, true, StateParked},
		{StateInflight, eventDeadLetter, thenBlock, true, StateWaitingRetry},
		{StateInflight, eventNegativeAck, left, false, StateWaitingRetry},
		{StateInflight, eventNegativeAck, dead, true, StateDeadLetter},
		{StateInflight, eventNegativeAck, thenPark, false, StateParked},
		{StateInflight, eventNegativeAck, thenBlock, false, StateWaitingRetry},
		{StateInflight, eventReconsume, left, false, StateCommit},
		{StateInflight, eventReconsume, dead, true, StateCommit},
		{StateWaitingRetry, eventDue, left, true, StateReady},
		{StateWaitingRetry, eventDue, dead, true, StateDeadLetter},
		{StateWaitingRetry, eventDue, thenPark, true, StateParked},
		{StateWaitingRetry, eventDue, thenBlock, true, StateReady},
		{StateWaitingRetry, eventDeadLetter, left, true, StateDeadLetter},
		{StateWaitingRetry, eventDeadLetter, thenPark, true, StateParked},
		{StateWaitingRetry, eventDeadLetter, thenBlock, true, StateWaitingRetry},
		{StateParked, eventRedrive, left, false, StateReady},
		{StateParked, eventDeadLetter, left, false, StateDeadLetter},
		{stateHeld, eventTurn, left, false, StateReady},
	}
	possible := map[State]map[event]bool{}
	for _, r := range rows {
		if to, ok := r.from.next(r.e, r.x, r.push); !ok || to != r.to {
			t.Errorf("%v, event %v, exhaustion %d, push %v: %v, %v; want %v", r.from, r.e, r.x, r.push, to, ok, r.to)
		}
		if possible[r.from] == nil {
			possible[r.from] = map[event]bool{}
		}
		possible[r.from][r.e] = true
	}
	for from := StateReady; from <= stateHeld; from++ {
		for e := eventDeliver; e <= eventRedrive; e++ {
			for x := attemptsLeft; x <= thenBlock; x++ {
				if to, ok := from.next(e, x, true); ok && !possible[from][e] {
					t.Errorf("%v, event %v leads to %v, but cannot happen", from, e, to)
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
