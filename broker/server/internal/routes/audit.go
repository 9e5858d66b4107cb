package routes

import (
	"container/list"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
)

const (
	// capacity is the number of records that a Ring keeps.
	capacity = 10_000

	// maxText bounds each text of a record, in bytes, so that a full ring takes a few MiB.
	maxText = 256

	defaultPage = 100
	maxPage     = 1000
)

// A Ring keeps the newest records. When it is full, a new record replaces the oldest one of the key
// that has the most, so a key with many requests cannot remove the records of the others. The zero
// value is empty. Several goroutines may share it.
type Ring struct {
	mu    sync.Mutex
	all   list.List             // guarded by mu: *record, the oldest first
	byKey map[string]*list.List // guarded by mu: the elements of all with each key that has any, the oldest first
	added int64                 // guarded by mu: the number of the newest record, from 1
}

// A record has a number that counts all records.
type record struct {
	status.AuditRecord
	number int64
}

// Add adds a record. Its texts are cut to 256 bytes and copied, because they can be parts of the
// memory of a request.
func (g *Ring) Add(r *status.AuditRecord) {
	c := &record{AuditRecord: *r}
	for _, text := range []*string{&c.Key, &c.Peer, &c.Operation, &c.Subject, &c.Query, &c.Result} {
		*text = cut(*text)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all.Len() == capacity {
		g.dropLocked(c.Key)
	}
	if g.byKey == nil {
		g.byKey = map[string]*list.List{}
	}
	own := g.byKey[c.Key]
	if own == nil {
		own = list.New()
		g.byKey[c.Key] = own
	}
	g.added++
	c.number = g.added
	own.PushBack(g.all.PushBack(c))
}

// dropLocked removes the oldest record of the key with the most records, which is key if no other
// one has more. There are at most as many keys as records.
func (g *Ring) dropLocked(key string) {
	most := g.byKey[key]
	for k, own := range g.byKey {
		if most == nil || own.Len() > most.Len() {
			key, most = k, own
		}
	}
	if e, ok := most.Remove(most.Front()).(*list.Element); ok {
		g.all.Remove(e)
	}
	if most.Len() == 0 {
		delete(g.byKey, key)
	}
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
	var after int64 // 0: no limit
	if q.After != "" {
		var err error
		if after, err = strconv.ParseInt(q.After, 10, 64); err != nil || after < 1 {
			return page, refusal.New(tidegate.CodeBadRequest, "after", fmt.Sprintf("after is %.100q; give next of the page before", q.After))
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var last int64 // the number of the last record of the page
	for e := g.all.Back(); e != nil; e = e.Prev() {
		r, ok := e.Value.(*record)
		if !ok || after > 0 && r.number >= after || !wanted(q, &r.AuditRecord) {
			continue
		}
		if len(page.Records) == limit {
			page.Next = strconv.FormatInt(last, 10)
			break
		}
		page.Records, last = append(page.Records, r.AuditRecord), r.number
	}
	return page, nil
}

// wanted reports whether a query selects a record.
func wanted(q *status.AuditQuery, r *status.AuditRecord) bool {
	is := func(text, want string) bool { return want == "" || text == want }
	return !r.Time.Before(q.Since) && is(r.Key, q.Key) && is(r.Subject, q.Subject) && is(r.Operation, q.Operation)
}
