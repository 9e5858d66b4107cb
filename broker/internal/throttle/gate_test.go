package throttle

import "testing"

func TestHysteresis(t *testing.T) {
	for _, c := range []struct {
		before bool
		value  int64
		want   bool
	}{
		{false, 0, false}, {false, 999, false}, {false, 1000, true}, {false, 5000, true},
		{true, 1000, true}, {true, 801, true}, {true, 800, false}, {true, 0, false},
	} {
		if got := refuses(c.before, c.value, 1000, 800); got != c.want {
			t.Errorf("refuses(%v, %d) = %v, want %v", c.before, c.value, got, c.want)
		}
	}
	if refuses(true, 1<<60, 0, 0) {
		t.Error("no limit throttles")
	}
}

func TestResumeMarkIsBelowTheLimit(t *testing.T) {
	for _, mark := range []int64{1, 2, 3, 99, 100, 101, 1000, 1<<63 - 1} {
		r := resumeMark(mark)
		if r < 0 || r >= mark || mark >= 100 && (r < mark/100*79 || r > mark/100*81+80) {
			t.Errorf("resumeMark(%d) = %d", mark, r)
		}
	}
	if resumeMark(1000) != 800 {
		t.Errorf("resumeMark(1000) = %d, want 800", resumeMark(1000))
	}
}
