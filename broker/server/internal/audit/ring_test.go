package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// filled returns a ring to which n records were added, one a second; the subject is its number,
// from 1.
func filled(n int) *Ring {
	g := &Ring{}
	for i := 1; i <= n; i++ {
		g.Add(&status.AuditRecord{
			Time: epoch.Add(time.Duration(i) * time.Second), Key: fmt.Sprint("key-", i%2), Operation: fmt.Sprint("op-", i%3), Subject: fmt.Sprint(i),
		})
	}
	return g
}

// all returns the subjects of all pages of a query.
func all(t *testing.T, g *Ring, q status.AuditQuery) (subjects []string) {
	t.Helper()
	for {
		page, err := g.Page(&q)
		if err != nil {
			t.Fatal(err)
		}
		if q.Limit > 0 && len(page.Records) > q.Limit {
			t.Fatalf("a page of %d has %d records", q.Limit, len(page.Records))
		}
		for _, r := range page.Records {
			subjects = append(subjects, r.Subject)
		}
		if q.After = page.Next; q.After == "" {
			return subjects
		}
	}
}

func numbers(from, down, step int) (out []string) {
	for i := from; i >= down; i -= step {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// Pages of any size have each record that is kept once, the newest first.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, 9, Capacity - 1, Capacity, Capacity + 1, 2*Capacity + 7} {
		want := numbers(n, max(1, n-9_999), 1) // 10 000 records are kept
		g := filled(n)
		for _, limit := range []int{0, 1000, 7} {
			if got := all(t, g, status.AuditQuery{Limit: limit}); !slices.Equal(got, want) {
				t.Errorf("%d records in pages of %d: %d came, want %d", n, limit, len(got), len(want))
			}
		}
	}
}

func TestFilters(t *testing.T) {
	g := filled(60)
	for name, c := range map[string]struct {
		q    status.AuditQuery
		want []string
	}{
		"since":       {status.AuditQuery{Since: epoch.Add(58 * time.Second)}, numbers(60, 58, 1)},
		"later":       {status.AuditQuery{Since: epoch.Add(time.Hour)}, nil},
		"key":         {status.AuditQuery{Key: "key-0"}, numbers(60, 1, 2)},
		"operation":   {status.AuditQuery{Operation: "op-0"}, numbers(60, 1, 3)},
		"subject":     {status.AuditQuery{Subject: "17"}, []string{"17"}},
		"together":    {status.AuditQuery{Key: "key-0", Operation: "op-0"}, numbers(60, 1, 6)},
		"a part":      {status.AuditQuery{Key: "key"}, nil},
		"a last page": {status.AuditQuery{After: "3"}, []string{"2", "1"}},
		"newer":       {status.AuditQuery{After: "1000", Since: epoch.Add(59 * time.Second)}, []string{"60", "59"}},
	} {
		for _, limit := range []int{0, 1, 3} {
			c.q.Limit = limit
			if got := all(t, g, c.q); !slices.Equal(got, c.want) {
				t.Errorf("%s, pages of %d: %v, want %v", name, limit, got, c.want)
			}
		}
	}
}

// A record that is added between two pages does not move the other records. A record that leaves
// the ring is missing.
func TestPagesWhileRecordsArrive(t *testing.T) {
	g := filled(10)
	page, err := g.Page(&status.AuditQuery{Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	g.Add(&status.AuditRecord{Subject: "new"})
	if got, want := all(t, g, status.AuditQuery{After: page.Next}), numbers(6, 1, 1); !slices.Equal(got, want) {
		t.Errorf("after a new record the second page has %v, want %v", got, want)
	}
	for range Capacity {
		g.Add(&status.AuditRecord{Subject: "new"})
	}
	if got := all(t, g, status.AuditQuery{After: page.Next}); got != nil {
		t.Errorf("the ring still has %v", got)
	}
}

func TestBounds(t *testing.T) {
	g := &Ring{}
	g.Add(&status.AuditRecord{Result: strings.Repeat("\u00e9", 1000), Query: strings.Repeat("x", 256)})
	page, err := g.Page(&status.AuditQuery{})
	if err != nil {
		t.Fatal(err)
	}
	r := page.Records[0]
	if len(r.Result) > 256 || len(r.Result) < 250 || !utf8.ValidString(r.Result) || !strings.HasSuffix(r.Result, "\u00e9...") || len(r.Query) != 256 {
		t.Errorf("a result of %d bytes: %q; a query of %d", len(r.Result), r.Result, len(r.Query))
	}
	for _, q := range []status.AuditQuery{{Limit: -1}, {Limit: 1001}, {After: "x"}, {After: "0"}, {After: "-1"}} {
		if _, err := g.Page(&q); err == nil || refusal.CodeOf(err) != 40000 {
			t.Errorf("%+v: %v, want code 40000", q, err)
		}
	}
}
