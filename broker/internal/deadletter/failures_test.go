package deadletter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/internal/store"
)

func numbers(page []Failure) (n []uint64) {
	for i := range page {
		n = append(n, page[i].Number)
	}
	return n
}

func TestPages(t *testing.T) {
	t.Parallel()
	var l FailureLog
	for i := range 6 {
		l.Add([]string{"g", "h"}[i%2], Failure{Topic: []string{"t", "u"}[i/2%2], Place: store.Place{Offset: int64(i / 4)}})
	}
	for _, c := range []struct {
		group, topic string
		before       uint64
		limit        int
		want         []uint64
		more         bool
	}{
		{"g", "", 0, 9, []uint64{5, 3, 1}, false},
		{"g", "", 0, 3, []uint64{5, 3, 1}, false},
		{"g", "", 0, 2, []uint64{5, 3}, true},
		{"g", "", 3, 2, []uint64{1}, false},
		{"g", "t", 0, 1, []uint64{5}, true},
		{"h", "u", 0, 9, []uint64{4}, false},
		{"x", "", 0, 9, nil, false},
	} {
		page, dropped, more := l.Page(c.group, c.topic, c.before, c.limit)
		got := numbers(page)
		assert.That(t, slices.Equal(got, c.want) && more == c.more && dropped == 0, "%+v: %v, %v, %d dropped", c, got, more, dropped)
	}
	assert.Slices(t, "the message has the failures", numbers(l.Of("g", store.Place{})), []uint64{1, 3})
	l.Forget("g")
	l.Forget("x")
	page, _, _ := l.Page("g", "", 0, 9)
	assert.That(t, len(page) == 0, "forgotten are not %v", numbers(page))
}

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
