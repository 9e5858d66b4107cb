package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// sparkWidth is the width of the last column: one bar for each interval.
const sparkWidth = 20

var topGroupColumns = []output.Column[TopRow]{
	{Name: "GROUP", Cell: func(r TopRow) any { return r.Group }},
	{Name: "TOPIC", Cell: func(r TopRow) any { return r.Topic }},
	{Name: "READY", Cell: func(r TopRow) any { return r.Ready }},
	{Name: "FLIGHT", Cell: func(r TopRow) any { return r.Inflight }},
	{Name: "RETRY", Cell: func(r TopRow) any { return r.Retry }},
	{Name: "PARKED", Cell: func(r TopRow) any { return r.Parked }},
	{Name: "BACKLOG", Cell: func(r TopRow) any { return r.Backlog }},
	{Name: "OLDEST", Cell: func(r TopRow) any { return milliseconds(r.OldestMS) }},
	{Name: "IN/S", Cell: func(r TopRow) any { return r.In }},
	{Name: "OUT/S", Cell: func(r TopRow) any { return r.Out }},
	{Name: "RETRY/S", Cell: func(r TopRow) any { return r.Retries }},
	{Name: "DEAD/S", Cell: func(r TopRow) any { return r.Dead }},
}

var topTopicColumns = slices.Concat(topGroupColumns[1:], []output.Column[TopRow]{
	{Name: "THROTTLE", Cell: func(r TopRow) any { return r.Throttle }},
})

// TopColumns returns the columns of a view, with bars for a number of the last intervals.
func TopColumns(v *TopView, bars int) []output.Column[TopRow] {
	columns, name := topGroupColumns, "OUT"
	if v.Topics {
		columns, name = topTopicColumns, "IN"
	}
	if bars == 0 {
		return columns
	}
	return append(slices.Clone(columns), output.Column[TopRow]{Name: name, Cell: func(r TopRow) any {
		return output.Spark(r.past[max(0, len(r.past)-bars):])
	}})
}

// A TopScreen is the whole screen of top.
type TopScreen struct {
	Server        string
	Frame         TopFrame
	View          TopView
	Width, Height int // of the terminal
	Paused        bool
	Typing        bool  // the pattern of names is being typed
	Failed        error // of the last sample; the frame is an older one

	shown map[string]bool // columns
}

// Write writes the lines of the screen, at most height lines of at most width columns.
func (s *TopScreen) Write(w io.Writer, o output.Options) error {
	t := &s.Frame.Total
	state := s.Frame.At.UTC().Format("15:04:05")
	switch {
	case s.Failed != nil:
		state += "  NO ANSWER: " + output.Safe(s.Failed.Error())
	case s.Paused:
		state += "  paused"
	}
	what := "group"
	if s.View.Topics {
		what = "topic"
	}
	blocked := ""
	if t.Blocked > 0 {
		blocked = ", blocked " + output.Number(t.Blocked).Grouped()
	}
	screen := newScreen(s.Width, s.Height)
	screen.prose("%s  every %s  %s", output.Safe(s.Server), s.Frame.Interval, state)
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
	if s.shown == nil {
		s.shown = map[string]bool{}
	}
	o.Shown = s.shown
	list := output.List[TopRow]{Rows: s.Frame.Rows[:min(len(s.Frame.Rows), s.Height)]}
	var table output.Fitted
	for _, bars := range []int{sparkWidth, sparkWidth / 2, sparkWidth / 4, 0} { // the most bars that cost no line
		list.Columns = TopColumns(&s.View, bars)
		f, err := screen.fit(o, list.Fit)
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
	return writeScreen(w, screen.lines, s.Width, s.Height)
}

// A screen has the lines of a terminal.
type screen struct {
	width, height int
	lines         []string
}

func newScreen(width, height int) *screen { return &screen{width: width, height: height} }

// prose adds a text. It is wrapped if it is too wide.
func (s *screen) prose(format string, args ...any) {
	text := strings.TrimRight(output.Textf(format, args...).Grouped(), " ")
	if output.Width(text) > s.width {
		text = output.Wrap(text, s.width)
	}
	s.lines = append(s.lines, strings.Split(text, "\n")...)
}

// fit returns the lines of a list with the options of a screen.
func (s *screen) fit(o output.Options, fit func(output.Options) (output.Fitted, error)) (output.Fitted, error) {
	o.Format, o.Limit, o.Sort, o.Width = output.Table, 0, "", s.width
	return fit(o)
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

// writeScreen writes at most height lines, each of at most width columns.
func writeScreen(w io.Writer, lines []string, width, height int) error {
	for i, line := range lines[:min(len(lines), height)] {
		end := "\n"
		if i == min(len(lines), height)-1 {
			end = ""
		}
		if _, err := io.WriteString(w, strings.TrimRight(clip(line, width), " ")+end); err != nil {
			return err
		}
	}
	return nil
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
