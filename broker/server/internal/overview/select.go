package overview

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/status"
)

// A Row is a row of a survey.
type Row interface {
	status.TopicSummary | status.GroupSummary
}

// A Query selects a page of rows.
type Query struct {
	Descending bool
	After      string // Next of the page before
	Limit      int
}

// A Page is a page of rows. Total counts the rows of all pages. Next is empty in the last page.
type Page[T Row] struct {
	Rows  []T
	Total int64
	Next  string
}

// A cursor is the last row of a page. Between two pages values change, so a row can be on both
// pages, or on none of them.
type cursor struct {
	Value float64   `json:"v"`
	Name  [2]string `json:"n"`
}

// ok is false if the text is not a Next.
func parseCursor(text string) (c cursor, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	return c, err == nil && json.Unmarshal(raw, &c) == nil
}

func (c cursor) String() string {
	raw, _ := json.Marshal(c) // rates and counts are numbers
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Select returns a page of the wanted rows, in the order of a value; nil means all rows, and the
// order of their names. Rows with the same value are in the order of their names, in which the
// caller passes them. ok is false if After is not a Next.
func Select[T Row](rows []T, wanted func(*T) bool, value func(*T) float64, q Query) (page Page[T], ok bool) {
	var after cursor
	if q.After != "" {
		if after, ok = parseCursor(q.After); !ok {
			return page, false
		}
	}
	type place struct {
		row   int
		value float64
	}
	order := func(x, y float64) int {
		if q.Descending {
			return cmp.Compare(y, x)
		}
		return cmp.Compare(x, y)
	}
	byName := 1 // rows with the same value are in the order of names, and reversed if only names count
	if value == nil && q.Descending {
		byName = -1
	}
	compare := func(x, y place) int { return cmp.Or(order(x.value, y.value), byName*cmp.Compare(x.row, y.row)) }
	var first []place
	left, full := 0, false // full: the first Limit of first are sorted
	for i := range rows {
		row := &rows[i]
		if wanted != nil && !wanted(row) {
			continue
		}
		page.Total++
		p := place{row: i}
		if value != nil {
			p.value = value(row)
		}
		if name := nameOf(row); q.After != "" && cmp.Or(order(p.value, after.Value), byName*slices.Compare(name[:], after.Name[:])) <= 0 {
			continue
		}
		left++
		if full && compare(p, first[q.Limit-1]) > 0 {
			continue
		}
		if first = append(first, p); len(first) >= 2*q.Limit { // the rest cannot be on the page
			slices.SortFunc(first, compare)
			first, full = first[:q.Limit], true
		}
	}
	slices.SortFunc(first, compare)
	first = first[:min(len(first), q.Limit)]
	page.Rows = make([]T, len(first))
	for i, p := range first {
		page.Rows[i] = rows[p.row]
	}
	if n := len(first); left > n {
		page.Next = cursor{first[n-1].value, nameOf(&page.Rows[n-1])}.String()
	}
	return page, true
}

// nameOf returns the name of a row, in the order of a survey.
func nameOf[T Row](row *T) (name [2]string) {
	switch r := any(row).(type) {
	case *status.TopicSummary:
		name = [2]string{r.Name}
	case *status.GroupSummary:
		name = [2]string{r.Group, r.Topic}
	}
	return name
}

// TopicValues are the orders of topics besides their names.
var TopicValues = map[string]func(*status.TopicSummary) float64{
	"backlog": func(t *status.TopicSummary) float64 { return float64(t.Backlog.Messages) },
	"bytes":   func(t *status.TopicSummary) float64 { return float64(t.Backlog.Bytes) },
	"stored":  func(t *status.TopicSummary) float64 { return float64(t.Stored.Messages) },
	"age":     func(t *status.TopicSummary) float64 { return float64(t.OldestMS) },
	"in":      func(t *status.TopicSummary) float64 { return t.InRate },
	"out":     func(t *status.TopicSummary) float64 { return t.OutRate },
}

// GroupValues are the orders of groups besides their names.
var GroupValues = map[string]func(*status.GroupSummary) float64{
	"backlog":  func(g *status.GroupSummary) float64 { return float64(g.Backlog.Messages) },
	"bytes":    func(g *status.GroupSummary) float64 { return float64(g.Backlog.Bytes) },
	"age":      func(g *status.GroupSummary) float64 { return float64(g.OldestMS) },
	"in":       func(g *status.GroupSummary) float64 { return g.InRate },
	"out":      func(g *status.GroupSummary) float64 { return g.OutRate },
	"ready":    func(g *status.GroupSummary) float64 { return float64(g.Ready) },
	"inflight": func(g *status.GroupSummary) float64 { return float64(g.Inflight) },
	"retry":    func(g *status.GroupSummary) float64 { return float64(g.WaitingRetry) },
	"parked":   func(g *status.GroupSummary) float64 { return float64(g.Parked) },
	"blocked":  func(g *status.GroupSummary) float64 { return float64(g.Blocked) },
	"dead":     func(g *status.GroupSummary) float64 { return float64(g.DeadLettersStored) },
	"waiting":  func(g *status.GroupSummary) float64 { return float64(g.Waiting) },
	"clients":  func(g *status.GroupSummary) float64 { return float64(g.Clients) },
}

// TopicStates are the conditions of topics that a list can select.
var TopicStates = map[string]func(*status.TopicSummary) bool{
	"throttled": func(t *status.TopicSummary) bool { return t.Throttle != nil },
	"backlog":   func(t *status.TopicSummary) bool { return t.Backlog.Messages > 0 },
	"delayed":   func(t *status.TopicSummary) bool { return t.Delayed.Messages > 0 },
	"empty": func(t *status.TopicSummary) bool {
		return t.Stored.Messages+t.Delayed.Messages+t.Half == 0
	},
}

// GroupStates are the conditions of groups that a list can select.
var GroupStates = map[string]func(*status.GroupSummary) bool{
	"backlog": func(g *status.GroupSummary) bool { return g.Backlog.Messages > 0 },
	"behind":  func(g *status.GroupSummary) bool { return behindFor(g) > 0 },
	"retry":   func(g *status.GroupSummary) bool { return g.WaitingRetry > 0 },
	"parked":  func(g *status.GroupSummary) bool { return g.Parked > 0 },
	"blocked": func(g *status.GroupSummary) bool { return g.BlockedGroups > 0 },
	"held":    func(g *status.GroupSummary) bool { return heldFor(g, time.Now()) > 0 },
	"dead":    func(g *status.GroupSummary) bool { return g.DeadLettersStored > 0 },
	"idle": func(g *status.GroupSummary) bool { // it has messages and no consumer takes them
		return g.Backlog.Messages > 0 && g.Waiting+g.Inflight == 0
	},
}
