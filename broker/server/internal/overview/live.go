package overview

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/status"
)

// MaxLine is the size of a line of a live stream in bytes.
const MaxLine = 8 << 10

// liveTop is the number of topics and of groups with the highest backlog in a live stream.
const liveTop = 10

// A Live is a line of a live stream: the state of the broker at one moment.
type Live struct {
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

// A Watch names what a live stream shows besides the highest backlogs. Groups has names of groups,
// for their sums, and group/topic.
type Watch struct {
	Topics, Groups []string
}

// An Observer is the principal of a request.
type Observer = serving.Observer

// Lines returns the lines of a live stream at one moment, each of at most MaxLine bytes. The first
// has the sums and the highest backlogs, as many as fit. Watched topics and groups that do not fit
// are in the following lines. Names that do not exist, and names that the observer may not observe,
// are left out.
func (w *Watch) Lines(s *serving.Survey, o Observer, now time.Time) []Live {
	l := &liner{now: now, asOf: s.At}
	l.begin()
	if o.Broker() {
		l.line().Totals, l.line().Counters = &s.Totals, &s.Counters
		l.size = size(l.line())
	}
	topics := Highest(s.Topics, liveTop, func(t *status.TopicSummary) int64 {
		if !o.Topic(t.Name) {
			return 0
		}
		return t.Backlog.Messages
	})
	groups := Highest(s.Groups, liveTop, func(g *status.GroupSummary) int64 {
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
	lines     []Live
	size      int // of the last line
}

// frame is the size of the names of lists and of more, in bytes.
const frame = 100

func (l *liner) begin() {
	l.lines = append(l.lines, Live{Now: l.now, AsOf: l.asOf})
	l.size = size(l.line())
}

func (l *liner) line() *Live { return &l.lines[len(l.lines)-1] }

// fits reports whether a row has room in the last line, and takes the room.
func (l *liner) fits(row any) bool {
	n := size(row) + len(",")
	if l.size+n+frame > MaxLine {
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
