package deadletter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The failures of all groups together have a bound, and a group with many failures displaces only
// its own.
func TestBound(t *testing.T) {
	t.Parallel()
	var l FailureLog
	for i := range 10 {
		l.Add(fmt.Sprint("quiet", i), Failure{Reason: "r"})
	}
	const added = 20_000
	reason := strings.Repeat("x", 1<<10)
	for range added {
		l.Add("noisy", Failure{Reason: reason})
	}
	assert.That(t, l.bytes <= maxBytes && l.bytes >= maxBytes-2<<10, "the failures have %d bytes", l.bytes)
	page, dropped, _ := l.Page("noisy", "", 0, added)
	if int64(len(page))+dropped != added || page[0].Number != added+10 || page[0].Number-page[len(page)-1].Number != uint64(len(page)-1) {
		t.Errorf("%d are kept and %d dropped", len(page), dropped)
	}
	for i := range 10 {
		page, dropped, _ := l.Page(fmt.Sprint("quiet", i), "", 0, 2)
		assert.That(t, len(page) == 1 && dropped == 0, "quiet group %d has %d failures, %d dropped", i, len(page), dropped)
	}
}
