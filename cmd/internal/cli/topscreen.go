package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// sparkWidth is the width of the last column: one bar for each interval.
const sparkWidth = 20

var topGroupColumns = []output.Column[topRow]{
	{Name: "GROUP", Cell: func(r topRow) any { return r.Group }},
	{Name: "TOPIC", Cell: func(r topRow) any { return r.Topic }},
	{Name: "READY", Cell: func(r topRow) any { return r.Ready }},
	{Name: "FLIGHT", Cell: func(r topRow) any { return r.Inflight }},
	{Name: "RETRY", Cell: func(r topRow) any { return r.Retry }},
	{Name: "PARKED", Cell: func(r topRow) any { return r.Parked }},
	{Name: "BACKLOG", Cell: func(r topRow) any { return r.Backlog }},
	{Name: "OLDEST", Cell: func(r topRow) any { return milliseconds(r.OldestMS) }},
	{Name: "IN/S", Cell: func(r topRow) any { return r.In }},
	{Name: "OUT/S", Cell: func(r topRow) any { return r.Out }},
	{Name: "RETRY/S", Cell: func(r topRow) any { return r.Retries }},
	{Name: "DEAD/S", Cell: func(r topRow) any { return r.Dead }},
}

var topTopicColumns = slices.Concat(topGroupColumns[1:], []output.Column[topRow]{
	{Name: "THROTTLE", Cell: func(r topRow) any { return r.Throttle }},
})

// topColumns returns the columns of a view, with bars for a number of the last intervals.
func topColumns(v *topView, bars int) []output.Column[topRow] {
	columns, name := topGroupColumns, "OUT"
	if v.Topics {
		columns, name = topTopicColumns, "IN"
	}
	if bars == 0 {
		return columns
	}
	return append(slices.Clone(columns), output.Column[topRow]{Name: name, Cell: func(r topRow) any {
		return output.Spark(r.past[max(0, len(r.past)-bars):])
	}})
}

// A screenState is the part that all screens of top have.
type screenState struct {
	Server        string
	Width, Height int // of the terminal
	Paused        bool
	Failed        error // of the last sample; the frame is an older one

	shown map[string]bool // columns
}

// begin returns a screen with the first line, for a frame of a time.
func (s *screenState) begin(at time.Time, interval string, o *output.Options) *screen {
	state := at.UTC().Format("15:04:05")
	switch {
	case s.Failed != nil:
		state += "  NO ANSWER: " + output.Safe(s.Failed.Error())
	case s.Paused:
		state += "  paused"
	}
	if s.shown == nil {
		s.shown = map[string]bool{}
	}
	o.Shown, o.Format, o.Limit, o.Sort, o.Width = s.shown, output.Table, 0, "", s.Width
	screen := &screen{width: s.Width, height: s.Height}
	screen.prose("%s  every %s  %s", output.Safe(s.Server), interval, state)
	return screen
}

// A topScreen is the whole screen of top.
type topScreen struct {
	screenState
	Frame  topFrame
	View   topView
	Typing bool // the pattern of names is being typed
}

// Write writes the lines of the screen, at most height lines of at most width columns.
func (s *topScreen) Write(w io.Writer, o output.Options) error {
	t := &s.Frame.Total
	what := "group"
	if s.View.Topics {
		what = "topic"
	}
	blocked := ""
	if t.Blocked > 0 {
		blocked = ", blocked " + output.Number(t.Blocked).Grouped()
	}
	screen := s.begin(s.Frame.At, s.Frame.Interval, &o)
	screen.prose("%s, %s, %v stored; backlog %s, in flight %s, waiting for a retry %s, parked %s%s",
		output.Count(int64(s.Frame.Topics), "topic"), output.Count(int64(s.Frame.Groups), "group"), output.Bytes(s.Frame.Bytes),
		output.Number(t.Backlog), output.Number(t.Inflight), output.Number(t.Retry), output.Number(t.Parked), blocked)
	screen.prose("in %v/s, out %v/s, redelivered %v/s, dead letters %v/s  %s",
		t.In, t.Out, t.Retries, t.Dead, output.Spark(t.past[max(0, len(t.past)-sparkWidth):]))
	screen.prose("wrong now: %s", kinds(s.Frame.wrong))
	screen.lines = append(screen.lines, "")
	direction := "largest"
	if s.View.Reverse {
		direction = "smallest"
	}
	keys := "s sort  r reverse  g groups or topics  f filter  p pause  q quit"
	if s.Typing {
		keys = "names like: " + output.Safe(s.View.Match) + "_   (enter)"
	}
	list := output.List[topRow]{Rows: s.Frame.Rows[:min(len(s.Frame.Rows), s.Height)]}
	var table output.Fitted
	for _, bars := range []int{sparkWidth, sparkWidth / 2, sparkWidth / 4, 0} { // the most bars that cost no line
		list.Columns = topColumns(&s.View, bars)
		f, err := list.Fit(o)
		if err != nil {
			return err
		}
		if table.Rows == nil || height(f) < height(table) {
			table = f
		}
	}
	screen.rows(table, "no "+what+"s", len(s.Frame.Rows), func(more string) string {
		return fmt.Sprintf("%s by %s, the %s first%s", output.Count(int64(len(s.Frame.Rows)), what).Grouped(), s.View.By, direction, more)
	}, keys)
	return screen.write(w)
}

// A screen has the lines of a terminal.
type screen struct {
	width, height int
	lines         []string
}

// prose adds a text. It is wrapped if it is too wide.
func (s *screen) prose(format string, args ...any) {
	text := strings.TrimRight(output.Textf(format, args...).Grouped(), " ")
	if output.Width(text) > s.width {
		text = output.Wrap(text, s.width)
	}
	s.lines = append(s.lines, strings.Split(text, "\n")...)
}

// height is the number of lines of a table.
func height(f output.Fitted) int {
	n := len(f.Header)
	for _, row := range f.Rows {
		n += len(row)
	}
	return n
}

// rows adds the rows for which the screen has lines, one at least, and the text and the keys below
// them. all is the number of all rows.
func (s *screen) rows(table output.Fitted, empty string, all int, below func(more string) string, keys string) {
	if all == 0 {
		s.lines = append(s.lines, empty)
	} else {
		s.lines = append(s.lines, table.Header...)
	}
	last := []string{below(fmt.Sprintf(", %s not shown", output.Number(all).Grouped())), keys}
	if output.Width(last[0])+3+output.Width(keys) <= s.width {
		last = []string{""} // one line
	}
	shown := 0
	for _, row := range table.Rows {
		if shown > 0 && len(s.lines)+len(row)+len(last) > s.height {
			break
		}
		s.lines = append(s.lines, row...)
		shown++
	}
	more := ""
	if shown < all {
		more = fmt.Sprintf(", %s not shown", output.Number(all-shown).Grouped())
	}
	if len(last) == 1 {
		s.lines = append(s.lines, below(more)+"   "+keys)
	} else {
		s.lines = append(s.lines, below(more), keys)
	}
}

// write writes at most height lines, each of at most width columns.
func (s *screen) write(w io.Writer) error {
	lines := slices.Clone(s.lines[:min(len(s.lines), s.height)])
	for i, line := range lines {
		lines[i] = strings.TrimRight(clip(line, s.width), " ")
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n"))
	return err
}

// clip cuts a line after a number of columns.
func clip(line string, width int) string {
	n := 0
	for i, r := range line {
		if n += output.Width(string(r)); n > width {
			return line[:i]
		}
	}
	return line
}

// history is the number of intervals that top keeps of each subject.
const history = 60

// A topRow is one subject of top: a topic, a group in one topic, or all together.
type topRow struct {
	Group    string `json:"group,omitempty"`
	Topic    string `json:"topic,omitempty"`
	Ready    int64  `json:"ready"`
	Inflight int64  `json:"inflight"`
	Retry    int64  `json:"waiting_retry"`
	Parked   int64  `json:"parked"`
	Blocked  int64  `json:"blocked"`          // behind the failed messages of blocked message groups
	Backlog  int64  `json:"backlog_messages"` // of a topic: that of its slowest group
	OldestMS int64  `json:"oldest_ms"`        // age of the oldest message that is not consumed

	// Rates are per second since the sample before; -1 means that they are not known yet.
	In      output.Rate `json:"in_rate"` // messages stored in the topic
	Out     output.Rate `json:"out_rate"`
	Retries output.Rate `json:"redelivered_rate"`
	Dead    output.Rate `json:"dead_letter_rate"`

	Throttle string `json:"throttle,omitempty"` // the limit that rejects sends to the topic

	counted counters
	past    []float64 // the last rates: Out of a group, In of others
}

// counters are the values of a subject whose differences are rates.
type counters struct{ in, out, retries, dead int64 }

func (r *topRow) key() string { return r.Group + "\x00" + r.Topic }

// add adds the messages and counters of a group to those of its topic or of the whole broker.
func (r *topRow) add(g *topRow) {
	r.Ready += g.Ready
	r.Inflight += g.Inflight
	r.Retry += g.Retry
	r.Parked += g.Parked
	r.Blocked += g.Blocked
	r.counted.out += g.counted.out
	r.counted.retries += g.counted.retries
	r.counted.dead += g.counted.dead
}

// A topFrame is the state that top shows.
type topFrame struct {
	At       time.Time `json:"time"`
	Interval string    `json:"interval"`
	Topics   int       `json:"topics"`
	Groups   int       `json:"groups"`
	Bytes    int64     `json:"stored_bytes"`
	Total    topRow    `json:"total"`
	Rows     []topRow  `json:"subjects"`

	wrong status.Wrong
}

// A sample is the state of a broker at one moment.
type sample struct {
	At     time.Time
	Topics []status.Topic
	Groups []status.Group
	Ages   ages
	Wrong  status.Wrong
}

// ages has the ages of the oldest messages that are not consumed, in milliseconds, as the broker
// counted them within the last second.
type ages struct {
	Topics map[string]int64
	Groups map[[2]string]int64 // by group and topic
}

// rows returns the topics, the groups in each of their topics, and the sum, without rates.
func (s *sample) rows() (topics, groups []topRow, total topRow) {
	byName := map[string]int{}
	for i := range s.Topics {
		t := &s.Topics[i]
		r := topRow{Topic: t.Name, Backlog: t.Backlog.Messages, OldestMS: s.Ages.Topics[t.Name], counted: counters{in: t.AcceptedMessages}}
		if t.Throttle != nil {
			r.Throttle = t.Throttle.Limit
		}
		total.counted.in += t.AcceptedMessages
		byName[t.Name] = i
		topics = append(topics, r)
	}
	for i := range s.Groups {
		for _, sub := range s.Groups[i].Topics {
			g := topRow{
				Group: s.Groups[i].Name, Topic: sub.Topic, Ready: sub.Ready, Inflight: sub.Inflight,
				Retry: sub.WaitingRetry, Parked: sub.Parked, Blocked: sub.Blocked, Backlog: sub.Backlog.Messages,
				OldestMS: s.Ages.Groups[[2]string{s.Groups[i].Name, sub.Topic}],
				counted:  counters{out: sub.Acked, retries: sub.Redelivered, dead: sub.DeadLetters},
			}
			total.add(&g)
			total.Backlog += g.Backlog
			total.OldestMS = max(total.OldestMS, g.OldestMS)
			if at, ok := byName[sub.Topic]; ok {
				topics[at].add(&g)
				g.counted.in = topics[at].counted.in
			}
			groups = append(groups, g)
		}
	}
	return topics, groups, total
}

// A sampler makes frames of samples. It remembers the sample before and the rates of the last
// intervals. It is for one goroutine.
type sampler struct {
	at    time.Time
	last  map[string]counters
	pasts map[string][]float64
}

// Frame returns the frame of the next sample, with all topics or all groups in no order.
func (s *sampler) Frame(now *sample, ofTopics bool) topFrame {
	topics, groups, total := now.rows()
	f := topFrame{At: now.At, Topics: len(now.Topics), Groups: len(now.Groups), Rows: groups, wrong: now.Wrong}
	if ofTopics {
		f.Rows = topics
	}
	for i := range now.Topics {
		f.Bytes += now.Topics[i].StoredBytes
	}
	before := *s
	s.at, s.last, s.pasts = now.At, map[string]counters{}, map[string][]float64{}
	for i := range topics {
		s.rate(&before, &topics[i])
	}
	for i := range groups {
		s.rate(&before, &groups[i])
	}
	s.rate(&before, &total)
	f.Total = total
	return f
}

// rate sets the rates of a row.
func (s *sampler) rate(before *sampler, r *topRow) {
	last, known := before.last[r.key()]
	seconds := s.at.Sub(before.at).Seconds()
	of := func(now, last int64) output.Rate {
		if !known || seconds <= 0 {
			return -1
		}
		return output.Rate(float64(max(now-last, 0)) / seconds) // after a restart the counters begin at 0
	}
	c := r.counted
	r.In, r.Out, r.Retries, r.Dead = of(c.in, last.in), of(c.out, last.out), of(c.retries, last.retries), of(c.dead, last.dead)
	shown := r.In
	if r.Group != "" {
		shown = r.Out
	}
	past := slices.Clone(before.pasts[r.key()])
	if shown >= 0 {
		past = append(past, float64(shown))
	}
	r.past = past[max(0, len(past)-history):]
	s.last[r.key()], s.pasts[r.key()] = c, r.past
}

// A topView selects and orders the rows of top.
type topView struct {
	Topics  bool   // else groups
	By      string // a name of topOrders
	Reverse bool   // the smallest first
	Match   string // a pattern of names; empty means all
}

// A topOrder is a value of --by.
type topOrder struct {
	name string
	of   func(*topRow) float64
}

var topOrders = []topOrder{
	{"backlog", func(r *topRow) float64 { return float64(r.Backlog) }},
	{"age", func(r *topRow) float64 { return float64(r.OldestMS) }},
	{"in", func(r *topRow) float64 { return float64(r.In) }},
	{"out", func(r *topRow) float64 { return float64(r.Out) }},
	{"retry", func(r *topRow) float64 { return float64(r.Retry) }},
	{"dead", func(r *topRow) float64 { return float64(r.Dead) }},
}

// order returns the place of the view's order in topOrders.
func (v *topView) order() (int, error) {
	var names []string
	for i, o := range topOrders {
		if o.name == v.By {
			return i, nil
		}
		names = append(names, o.name)
	}
	return 0, fmt.Errorf("--by is %q; it is one of %s", v.By, strings.Join(names, ", "))
}

// NextOrder orders by the next value of --by.
func (v *topView) NextOrder() {
	if at, err := v.order(); err == nil {
		v.By = topOrders[(at+1)%len(topOrders)].name
	}
}

// Rows returns the rows of the view in its order.
func (v *topView) Rows(all []topRow) ([]topRow, error) {
	at, err := v.order()
	if err != nil {
		return nil, err
	}
	match, err := output.Glob(v.Match)
	if err != nil {
		return nil, err
	}
	rows := slices.Clone(all)
	rows = slices.DeleteFunc(rows, func(r topRow) bool { return !match(r.Group) && !match(r.Topic) })
	of := topOrders[at].of
	slices.SortStableFunc(rows, func(a, b topRow) int {
		n := cmp.Compare(of(&b), of(&a))
		if v.Reverse {
			n = -n
		}
		return cmp.Or(n, cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic))
	})
	return rows, nil
}

// kinds counts problems by kind: "2 parked, 1 throttle".
func kinds(w status.Wrong) string {
	var parts []string
	for _, k := range []struct {
		name string
		n    int64
	}{
		{"behind", w.Behind.Count}, {"blocked", w.Blocked.Count}, {"dead-letters", w.DeadLetters.Count}, {"held", w.Held.Count},
		{"parked", w.Parked.Count}, {"throttle", w.Throttles.Count},
	} {
		if k.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", k.n, k.name))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}
