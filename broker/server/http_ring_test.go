package server

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
func filled(n int) *auditRing {
	g := &auditRing{}
	for i := 1; i <= n; i++ {
		g.Add(&status.AuditRecord{
			Time: epoch.Add(time.Duration(i) * time.Second), Key: fmt.Sprint("key-", i%2), Operation: fmt.Sprint("op-", i%3), Subject: fmt.Sprint(i),
		})
	}
	return g
}

// all returns the subjects of all pages of a query.
func all(t *testing.T, g *auditRing, q status.AuditQuery) (subjects []string) {
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
	for _, n := range []int{0, 1, 9, auditCapacity - 1, auditCapacity, auditCapacity + 1, 2*auditCapacity + 7} {
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
	for i := range 2 * auditCapacity {
		g.Add(&status.AuditRecord{Key: fmt.Sprint("key-", i%2), Subject: "new"})
	}
	if got := all(t, g, status.AuditQuery{After: page.Next}); got != nil {
		t.Errorf("the ring still has %v", got)
	}
}

// A key with many records removes its own ones only, the oldest first.
func TestKeysHaveShares(t *testing.T) {
	g := &auditRing{}
	add := func(key string, n int) {
		for range n {
			g.Add(&status.AuditRecord{Key: key, Subject: fmt.Sprint(g.added + 1)})
		}
	}
	count := func(key string) int { return len(all(t, g, status.AuditQuery{Key: key, Limit: 1000})) }
	expect := func(step string, want map[string]int) {
		t.Helper()
		sum := 0
		for key, n := range want {
			if got := count(key); got != n {
				t.Errorf("%s: %s has %d records, want %d", step, key, got, n)
			}
			sum += n
		}
		if n := len(all(t, g, status.AuditQuery{Limit: 1000})); n != sum || n > 10_000 {
			t.Errorf("%s: %d records, want %d", step, n, sum)
		}
	}
	add("admin", 30)
	add("attacker", 25_000)
	expect("an attack", map[string]int{"admin": 30, "attacker": 9970})
	if got := all(t, g, status.AuditQuery{Key: "attacker", Limit: 1000}); got[0] != "25030" || got[len(got)-1] != "15061" {
		t.Errorf("the records of the attacker are %s to %s, want the newest", got[0], got[len(got)-1])
	}
	if got := all(t, g, status.AuditQuery{Key: "admin"}); !slices.Equal(got, numbers(30, 1, 1)) {
		t.Errorf("the administrator has %v", got)
	}
	add("admin", 6000)
	expect("work after it", map[string]int{"admin": 5000, "attacker": 5000})
	add("third", 100)
	if n := count("third"); n != 100 {
		t.Errorf("a third key has %d records, want all 100", n)
	}
	if n := len(g.byKey); n != 3 {
		t.Errorf("%d keys", n)
	}
}

func TestBounds(t *testing.T) {
	g := &auditRing{}
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
