package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

// A loop over pages ends with the last page, for any number of pages. If the server repeats its
// cursors it ends with an error, within three rounds of the cycle.
func TestCursor(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 100, 10_000} {
		c, pages := Cursor{}, 0
		for more := true; more; pages++ {
			next := fmt.Sprint(pages + 1)
			if pages+1 == n {
				next = ""
			}
			var err error
			if more, err = c.Advance(next); err != nil {
				t.Fatalf("page %d of %d: %v", pages, n, err)
			}
		}
		if pages != n {
			t.Errorf("%d of %d pages", pages, n)
		}
	}
	for _, begin := range []int{0, 1, 5, 1000} {
		for _, cycle := range []int{1, 2, 3, 7, 100} {
			c, pages := Cursor{After: "from"}, 0
			next := func() string {
				if pages <= begin {
					return fmt.Sprint(pages)
				}
				return fmt.Sprint(begin + (pages-begin)%cycle)
			}
			for {
				more, err := c.Advance(next())
				if pages++; err != nil {
					if more || !strings.Contains(err.Error(), "again") {
						t.Errorf("%v, %v", more, err)
					}
					break
				}
				if !more || pages > 3*(begin+cycle)+3 {
					t.Fatalf("%d pages of a cycle of %d after %d", pages, cycle, begin)
				}
			}
		}
	}
	c := Cursor{After: "from"}
	if _, err := c.Advance("from"); err == nil {
		t.Error("the cursor that the loop began with is accepted")
	}
}
