package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// An accepted message is missing until its first delivery, which can precede the response to the
// send. A message whose send failed is never missing.
func TestLedgerOfAcceptedMessages(t *testing.T) {
	l := newLedger()
	l.begin("all run", false, time.Unix(0, 0))
	lacks := func(want int, when string) {
		t.Helper()
		if n, _ := l.lacks(); n != want {
			t.Errorf("%s: %d messages are missing, want %d", when, n, want)
		}
	}
	l.sent("a", 0, nil)
	l.sent("b", 0, nil)
	lacks(2, "two accepted messages")
	l.arrived("a", "", 0)
	l.arrived("a", "", 0)
	lacks(1, "one delivered twice")
	if _, id := l.lacks(); id != "b" {
		t.Errorf("the example is %q, want b", id)
	}
	l.arrived("c", "", 0)
	l.sent("c", 0, nil)
	lacks(1, "a delivery before the response")
	l.sent("", 0, errors.New("timeout"))
	l.arrived("d", "", 0)
	lacks(1, "a delivery of a failed send")
	l.arrived("b", "", 0)
	lacks(0, "all delivered")
	if _, stored := l.total(); stored != 1 {
		t.Errorf("%d messages were stored although their sends failed, want 1", stored)
	}
}

// Disorder is the first delivery of a message after that of a later message of its message group. A
// redelivery is a duplicate and no disorder, and message groups do not affect each other.
func TestLedgerOfOrder(t *testing.T) {
	for _, c := range []struct {
		name       string
		deliveries string // message group and number
		duplicates int
		disorder   int
	}{
		{"in order", "a1 a2 b1 a3 b2", 0, 0},
		{"a gap", "a1 a3", 0, 0},
		{"a late message", "a1 a3 a2", 0, 1},
		{"two late messages", "a4 a2 a3", 0, 2},
		{"a redelivery", "a1 a2 a1 a3", 1, 0},
		{"a redelivered late message", "a2 a1 a3 a1", 1, 1},
		{"another message group", "a2 b1", 0, 0},
	} {
		l := newLedger()
		l.begin("all run", false, time.Unix(0, 0))
		for id := range strings.FieldsSeq(c.deliveries) {
			l.arrived(id, id[:1], int(id[1]-'0'))
		}
		p, _ := l.total()
		assert.That(t, p.duplicates == c.duplicates && p.disorder == c.disorder,
			"%s: %d duplicates and %d out of order, want %d and %d", c.name, p.duplicates, p.disorder, c.duplicates, c.disorder)
	}
}

// A send counts in the phase in which it ended, a delivery in the phase in which it arrived. The
// rate of all phases leaves out the drain.
func TestPhases(t *testing.T) {
	l := newLedger()
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	assert.That(t, l.begin("all run", false, at(0)) == phase{}, "a phase ended before the first one")
	l.sent("a", 20*time.Millisecond, nil)
	l.sent("b", 10*time.Millisecond, nil)
	l.arrived("a", "", 0)
	ended := l.begin("broker-b is killed", false, at(10))
	l.sent("", 3*time.Second, errors.New("timeout"))
	l.sent("c", time.Second, nil)
	l.arrived("b", "g", 2)
	l.arrived("b", "g", 2)
	killed := l.begin("drain", true, at(30))
	l.arrived("c", "g", 1)
	l.begin("", false, at(90))
	all, _ := l.total()
	for _, c := range []struct{ got, want string }{
		{heading, "phase                seconds  accepted  sends/s  longest send  failed  duplicates  disorder"},
		{ended.row(), "all run                 10.0         2      0.2       0.020 s       0           0         0"},
		{killed.row(), "broker-b is killed      20.0         1      0.1       3.000 s       1           1         0"},
		{all.row(), "in all                  30.0         3      0.1       3.000 s       1           1         1"},
		{phase{name: "drain", drain: true}.row(), "drain                    0.0         0      0.0       0.000 s       0           0         0"},
	} {
		assert.That(t, c.got == c.want, "the row is\n%s, want\n%s", c.got, c.want)
	}
}
