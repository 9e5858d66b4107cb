package gate

import (
	"testing"
	"time"
)

func TestRefusalCount(t *testing.T) {
	now := time.Unix(1000, 0)
	var c refusalCount
	logged, told := 0, 0
	for i := range 100 { // one each second
		next, unlogged, log := c.next(now.Add(time.Duration(i) * time.Second))
		if c = next; log {
			logged++
			told += unlogged
		}
	}
	if logged != 50 || told+c.other != 50 {
		t.Errorf("%d logged, %d told of, %d not yet; want 5 in each 10 s", logged, told, c.other)
	}
}
