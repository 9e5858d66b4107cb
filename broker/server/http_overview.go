package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

const (
	// topLength is the length of the lists of an overview.
	topLength = 10

	// behindAfter is the wait for a delivery from which on a group is behind.
	behindAfter = time.Minute
)

// A listFiller keeps the lists of the last survey. Goroutines may share it. The zero value is ready
// for use.
type listFiller struct{ last atomic.Pointer[overviewLists] }

// overviewLists are the lists of a survey.
type overviewLists struct {
	of    *engine.Survey
	top   status.Top
	wrong status.Wrong
}

// Fill sets the parts of an overview that come from a survey. The lists of one survey are selected
// once; the caller must not change them.
func (f *listFiller) Fill(o *status.Overview, s *engine.Survey) {
	o.AsOf, o.Clock, o.Storage, o.Totals, o.Counters = s.At, s.Clock, s.Storage, s.Totals, s.Counters
	l := f.last.Load()
	if l == nil || l.of != s {
		l = &overviewLists{s, topOf(s), wrongOf(s)}
		f.last.Store(l)
	}
	o.Top, o.Wrong = l.top, l.wrong
}

func topOf(s *engine.Survey) status.Top {
	return status.Top{
		Topics: map[string][]status.TopicSummary{
			"backlog": highest(s.Topics, topLength, func(t *status.TopicSummary) int64 { return t.Backlog.Messages }),
			"age":     highest(s.Topics, topLength, func(t *status.TopicSummary) int64 { return t.OldestMS }),
			"in_rate": highest(s.Topics, topLength, func(t *status.TopicSummary) float64 { return t.InRate }),
		},
		Groups: map[string][]status.GroupSummary{
			"backlog":       highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.Backlog.Messages }),
			"age":           highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.OldestMS }),
			"waiting_retry": highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.WaitingRetry }),
			"dead_letters":  highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.DeadLettersStored }),
		},
	}
}

func wrongOf(s *engine.Survey) status.Wrong {
	return status.Wrong{
		Throttles:   status.Found[status.LimitState]{Count: int64(len(s.Throttles)), First: append([]status.LimitState{}, s.Throttles[:min(len(s.Throttles), topLength)]...)},
		Parked:      found(s.Groups, func(g *status.GroupSummary) int64 { return g.Parked }),
		Blocked:     found(s.Groups, func(g *status.GroupSummary) int64 { return g.BlockedGroups }),
		Held:        found(s.Groups, func(g *status.GroupSummary) time.Duration { return heldFor(g, s.At) }),
		DeadLetters: found(s.Groups, func(g *status.GroupSummary) int64 { return g.DeadLettersStored }),
		Behind:      found(s.Groups, behindFor),
	}
}

// behindFor returns how long a message of a group has waited for its first delivery, in
// milliseconds. While no consumer takes the ready messages it is the age of the oldest message. It
// returns 0 if that is not long.
func behindFor(g *status.GroupSummary) int64 {
	waited := g.UndeliveredMS
	if g.Ready > 0 && g.Waiting+g.Inflight == 0 {
		waited = max(waited, g.OldestMS)
	}
	if waited < behindAfter.Milliseconds() {
		return 0
	}
	return waited
}

// heldFor returns how long a client has held its first delivery of a group, and 0 if that is not
// long.
func heldFor(g *status.GroupSummary, now time.Time) time.Duration {
	if !g.Held.Long(now) {
		return 0
	}
	return now.Sub(g.Held.Since)
}

// found returns how many rows have a value above zero, and those with the highest.
func found[T any, V cmp.Ordered](rows []T, value func(*T) V) (f status.Found[T]) {
	var zero V
	for i := range rows {
		if value(&rows[i]) > zero {
			f.Count++
		}
	}
	f.First = highest(rows, topLength, value)
	return f
}

// highest returns at most n rows with the highest values above zero, the highest first. Rows with
// the same value keep their order.
func highest[T any, V cmp.Ordered](rows []T, n int, value func(*T) V) []T {
	var zero V
	type place struct {
		row   int
		value V
	}
	var best []place
	for i := range rows {
		v := value(&rows[i])
		if v <= zero || len(best) == n && v <= best[n-1].value {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, v, func(p place, v V) int {
			if p.value >= v {
				return -1
			}
			return 1
		})
		best = slices.Insert(best[:min(len(best), n-1)], at, place{i, v})
	}
	out := make([]T, len(best))
	for i, p := range best {
		out[i] = rows[p.row]
	}
	return out
}

// maxAge is the age at which a survey is computed anew.
const maxAge = time.Second

// An overviewEngine computes surveys, without the clients.
type overviewEngine interface{ Survey() *engine.Survey }

// A groupCounter has the number of clients of each group.
type groupCounter interface{ CountGroups() map[string]int64 }

// A sharedSurvey has the last survey. Goroutines may share it. It has no goroutine and no timer:
// without callers it costs nothing.
type sharedSurvey struct {
	engine  overviewEngine
	clients groupCounter

	mu   sync.Mutex
	last *engine.Survey // guarded by mu; nil before the first
	old  bool           // guarded by mu: the survey under way may lack a change
	next chan struct{}  // guarded by mu: closed when the survey under way has ended; nil if there is none
}

// newSharedSurvey returns a sharedSurvey of the surveys of an engine.
func newSharedSurvey(e overviewEngine, c groupCounter) *sharedSurvey {
	return &sharedSurvey{engine: e, clients: c}
}

// Get returns a survey that is younger than MaxAge. One caller computes it, and the others wait
// for it. The error is the cause of ctx if ctx ends first.
func (s *sharedSurvey) Get(ctx context.Context) (*engine.Survey, error) {
	for {
		fresh, next := s.begin()
		switch {
		case fresh != nil:
			return fresh, nil
		case next == nil:
			return s.compute(), nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Expire makes the next caller of Get compute a survey: after a change that a client may look for,
// for example a new topic.
func (s *sharedSurvey) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.old = nil, s.next != nil
}

// begin returns a survey that is young enough, or the end of the one under way. If it returns
// neither, the caller calls compute.
func (s *sharedSurvey) begin() (fresh *engine.Survey, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && time.Since(s.last.At) < maxAge {
		return s.last, nil
	}
	if s.next != nil {
		return nil, s.next
	}
	s.next = make(chan struct{})
	return nil, nil
}

// compute computes a survey. After a panic of the engine the next caller computes one.
func (s *sharedSurvey) compute() (computed *engine.Survey) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last = computed; s.old {
			s.last, s.old = nil, false
		}
		close(s.next)
		s.next = nil
	}()
	return s.survey()
}

// survey returns the engine's survey, with the number of clients of each group.
func (s *sharedSurvey) survey() *engine.Survey {
	out, clients := s.engine.Survey(), s.clients.CountGroups()
	for i := range out.Groups {
		out.Groups[i].Clients = clients[out.Groups[i].Group]
	}
	return out
}

// A summaryRow is a row of a survey: a topic or a group.
type summaryRow interface {
	status.TopicSummary | status.GroupSummary
}

// A summaryQuery selects a page of rows.
type summaryQuery struct {
	Descending bool
	After      string // Next of the page before
	Limit      int
}

// A summaryPage is a page of rows. Total counts the rows of all pages. Next is empty in the last
// page.
type summaryPage[T summaryRow] struct {
	Rows  []T
	Total int64
	Next  string
}

// A summaryCursor is the last row of a page. Between two pages values change, so a row can be on
// both pages, or on none of them.
type summaryCursor struct {
	Value float64   `json:"v"`
	Name  [2]string `json:"n"`
}

// ok is false if the text is not a Next.
func parseCursor(text string) (c summaryCursor, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	return c, err == nil && json.Unmarshal(raw, &c) == nil
}

func (c summaryCursor) String() string {
	raw, _ := json.Marshal(c) // rates and counts are numbers
	return base64.RawURLEncoding.EncodeToString(raw)
}

// selectPage returns a page of the wanted rows, in the order of a value; nil means all rows, and
// the order of their names. Rows with the same value are in the order of their names, in which the
// caller passes them. ok is false if After is not a Next.
func selectPage[T summaryRow](rows []T, wanted func(*T) bool, value func(*T) float64, q summaryQuery) (page summaryPage[T], ok bool) {
	var after summaryCursor
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
		page.Next = summaryCursor{first[n-1].value, nameOf(&page.Rows[n-1])}.String()
	}
	return page, true
}

// nameOf returns the name of a row, in the order of a survey.
func nameOf[T summaryRow](row *T) (name [2]string) {
	switch r := any(row).(type) {
	case *status.TopicSummary:
		name = [2]string{r.Name}
	case *status.GroupSummary:
		name = [2]string{r.Group, r.Topic}
	}
	return name
}

// topicValues are the orders of topics besides their names.
var topicValues = map[string]func(*status.TopicSummary) float64{
	"backlog": func(t *status.TopicSummary) float64 { return float64(t.Backlog.Messages) },
	"bytes":   func(t *status.TopicSummary) float64 { return float64(t.Backlog.Bytes) },
	"stored":  func(t *status.TopicSummary) float64 { return float64(t.Stored.Messages) },
	"age":     func(t *status.TopicSummary) float64 { return float64(t.OldestMS) },
	"in":      func(t *status.TopicSummary) float64 { return t.InRate },
	"out":     func(t *status.TopicSummary) float64 { return t.OutRate },
}

// groupValues are the orders of groups besides their names.
var groupValues = map[string]func(*status.GroupSummary) float64{
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

// topicStates are the conditions of topics that a list can select.
var topicStates = map[string]func(*status.TopicSummary) bool{
	"throttled": func(t *status.TopicSummary) bool { return t.Throttle != nil },
	"backlog":   func(t *status.TopicSummary) bool { return t.Backlog.Messages > 0 },
	"delayed":   func(t *status.TopicSummary) bool { return t.Delayed.Messages > 0 },
	"empty": func(t *status.TopicSummary) bool {
		return t.Stored.Messages+t.Delayed.Messages+t.Half == 0
	},
}

// groupStates are the conditions of groups that a list can select.
var groupStates = map[string]func(*status.GroupSummary) bool{
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

// maxLine is the size of a line of a live stream in bytes.
const maxLine = 8 << 10

// liveTop is the number of topics and of groups with the highest backlog in a live stream.
const liveTop = 10

// A liveLine is a line of a live stream: the state of the broker at one moment.
type liveLine struct {
	Now  time.Time `json:"now"`   // the broker's clock
	AsOf time.Time `json:"as_of"` // when the figures were read

	// Totals and Counters are nil for a key that may not observe the whole broker, and in lines
	// that continue the one before.
	Totals   *status.Totals   `json:"totals,omitempty"`
	Counters *status.Counters `json:"counters,omitempty"`

	// TopTopics and TopGroups have the highest backlogs, at most ten each.
	TopTopics []status.TopicSummary `json:"top_topics,omitempty"`
	TopGroups []status.GroupSummary `json:"top_groups,omitempty"`

	// Topics and Groups are those that the request names.
	Topics []status.TopicSummary `json:"topics,omitempty"`
	Groups []status.GroupSummary `json:"groups,omitempty"`

	More bool `json:"more,omitempty"` // the next line continues this one
}

// A liveWatch names what a live stream shows besides the highest backlogs. Groups has names of
// groups, for their sums, and group/topic.
type liveWatch struct {
	Topics, Groups []string
}

// An observer is the principal of a request.
type observer = engine.Observer

// Lines returns the lines of a live stream at one moment, each of at most MaxLine bytes. The first
// has the sums and the highest backlogs, as many as fit. Watched topics and groups that do not fit
// are in the following lines. Names that do not exist, and names that the observer may not observe,
// are left out.
func (w *liveWatch) Lines(s *engine.Survey, o observer, now time.Time) []liveLine {
	l := &liner{now: now, asOf: s.At}
	l.begin()
	if o.Broker() {
		l.line().Totals, l.line().Counters = &s.Totals, &s.Counters
		l.size = size(l.line())
	}
	topics := highest(s.Topics, liveTop, func(t *status.TopicSummary) int64 {
		if !o.Topic(t.Name) {
			return 0
		}
		return t.Backlog.Messages
	})
	groups := highest(s.Groups, liveTop, func(g *status.GroupSummary) int64 {
		if !o.Group(g.Group) {
			return 0
		}
		return g.Backlog.Messages
	})
	for i := range liveTop {
		if i < len(topics) && l.fits(&topics[i]) {
			l.line().TopTopics = append(l.line().TopTopics, topics[i])
		}
		if i < len(groups) && l.fits(&groups[i]) {
			l.line().TopGroups = append(l.line().TopGroups, groups[i])
		}
	}
	for _, name := range w.Topics {
		if t := findTopic(s.Topics, name); t != nil && o.Topic(name) {
			l.room(t)
			l.line().Topics = append(l.line().Topics, *t)
		}
	}
	for _, name := range w.Groups {
		group, topic, one := strings.Cut(name, "/")
		rows := rowsOf(s.Groups, group)
		if len(rows) == 0 || !o.Group(group) {
			continue
		}
		row := sum(rows)
		if one {
			i := slices.IndexFunc(rows, func(g status.GroupSummary) bool { return g.Topic == topic })
			if i < 0 {
				continue
			}
			row = rows[i]
		}
		l.room(&row)
		l.line().Groups = append(l.line().Groups, row)
	}
	for i := range l.lines[:len(l.lines)-1] {
		l.lines[i].More = true
	}
	return l.lines
}

// A liner divides rows among lines.
type liner struct {
	now, asOf time.Time
	lines     []liveLine
	size      int // of the last line
}

// liveFrame is the size of the names of lists and of more, in bytes.
const liveFrame = 100

func (l *liner) begin() {
	l.lines = append(l.lines, liveLine{Now: l.now, AsOf: l.asOf})
	l.size = size(l.line())
}

func (l *liner) line() *liveLine { return &l.lines[len(l.lines)-1] }

// fits reports whether a row has room in the last line, and takes the room.
func (l *liner) fits(row any) bool {
	n := size(row) + len(",")
	if l.size+n+liveFrame > maxLine {
		return false
	}
	l.size += n
	return true
}

// room takes room for a row, in a further line if it has to.
func (l *liner) room(row any) {
	if !l.fits(row) {
		l.begin()
		l.fits(row) // one row always fits: names have at most 255 bytes
	}
}

// size returns the size of the JSON of a value.
func size(v any) int {
	b, _ := json.Marshal(v) // numbers and texts
	return len(b)
}

func findTopic(rows []status.TopicSummary, name string) *status.TopicSummary {
	i, ok := slices.BinarySearchFunc(rows, name, func(t status.TopicSummary, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return nil
	}
	return &rows[i]
}

// rowsOf returns the rows of a group.
func rowsOf(rows []status.GroupSummary, group string) []status.GroupSummary {
	i, _ := slices.BinarySearchFunc(rows, group, func(g status.GroupSummary, name string) int { return strings.Compare(g.Group, name) })
	end := i
	for end < len(rows) && rows[end].Group == group {
		end++
	}
	return rows[i:end]
}

// sum returns the state of a group in all its topics. Ages are the largest.
func sum(rows []status.GroupSummary) status.GroupSummary {
	out := status.GroupSummary{Group: rows[0].Group}
	for i := range rows {
		g := &rows[i]
		out.Ready += g.Ready
		out.Inflight += g.Inflight
		out.WaitingRetry += g.WaitingRetry
		out.Parked += g.Parked
		out.Blocked += g.Blocked
		out.ParkedGroups += g.ParkedGroups
		out.BlockedGroups += g.BlockedGroups
		out.Backlog.Messages += g.Backlog.Messages
		out.Backlog.Bytes += g.Backlog.Bytes
		out.OldestMS, out.UndeliveredMS = max(out.OldestMS, g.OldestMS), max(out.UndeliveredMS, g.UndeliveredMS)
		out.InRate += g.InRate
		out.OutRate += g.OutRate
		out.Waiting += g.Waiting
		out.Acked += g.Acked
		out.Redelivered += g.Redelivered
		out.DeadLetters += g.DeadLetters
		out.DeadLettersHour += g.DeadLettersHour
		out.DeadLettersStored += g.DeadLettersStored
		out.Filtered += g.Filtered
		out.Clients = g.Clients // of the group, in each row
		if g.Held != nil && (out.Held == nil || g.Held.Since.Before(out.Held.Since)) {
			out.Held = g.Held
		}
	}
	return out
}
