package audit

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
)

const (
	// Capacity is the number of records that a Ring keeps.
	Capacity = 10_000

	// maxText bounds each text of a record, in bytes, so that a full ring takes a few MiB.
	maxText = 256

	defaultPage = 100
	maxPage     = 1000
)

// A Ring keeps the newest records. The zero value is empty. Several goroutines may share it.
type Ring struct {
	mu      sync.Mutex
	records []status.AuditRecord // guarded by mu: record number n at (n-1) % Capacity
	added   int64                // guarded by mu: the number of the newest record, from 1
}

// Add adds a record. Its texts are cut to 256 bytes and copied, because they can be parts of the
// memory of a request.
func (g *Ring) Add(r *status.AuditRecord) {
	c := *r
	for _, text := range []*string{&c.Key, &c.Peer, &c.Operation, &c.Subject, &c.Query, &c.Result} {
		*text = cut(*text)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.added++; len(g.records) < Capacity {
		g.records = append(g.records, c)
		return
	}
	g.records[(g.added-1)%Capacity] = c
}

func cut(text string) string {
	if len(text) <= maxText {
		return strings.Clone(text)
	}
	const more = "..."
	return strings.ToValidUTF8(text[:maxText-len(more)], "") + more
}

// Page returns the records that a query selects, the newest first. It looks at Capacity records at
// most. The error is 40000 for a wrong Limit or After.
func (g *Ring) Page(q *status.AuditQuery) (status.AuditPage, error) {
	page := status.AuditPage{Records: []status.AuditRecord{}}
	limit := q.Limit
	if limit < 0 || limit > maxPage {
		return page, refusal.New(tidegate.CodeBadRequest, "limit", fmt.Sprintf("limit is %d; give 1 to %d, or leave it out for %d", limit, maxPage, defaultPage))
	}
	if limit == 0 {
		limit = defaultPage
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.added
	if q.After != "" {
		after, err := strconv.ParseInt(q.After, 10, 64)
		if err != nil || after < 1 {
			return page, refusal.New(tidegate.CodeBadRequest, "after", fmt.Sprintf("after is %.100q; give next of the page before", q.After))
		}
		next = min(next, after-1)
	}
	var last int64 // the number of the last record of the page
	for n := next; n > g.added-int64(len(g.records)); n-- {
		r := &g.records[(n-1)%Capacity]
		if !wanted(q, r) {
			continue
		}
		if len(page.Records) == limit {
			page.Next = strconv.FormatInt(last, 10)
			break
		}
		page.Records, last = append(page.Records, *r), n
	}
	return page, nil
}

// wanted reports whether a query selects a record.
func wanted(q *status.AuditQuery, r *status.AuditRecord) bool {
	is := func(text, want string) bool { return want == "" || text == want }
	return !r.Time.Before(q.Since) && is(r.Key, q.Key) && is(r.Subject, q.Subject) && is(r.Operation, q.Operation)
}
