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

// TopColumns returns the columns of a view; lively adds bars of the last intervals.
func TopColumns(v *TopView, lively bool) []output.Column[TopRow] {
	columns, name := topGroupColumns, "OUT"
	if v.Topics {
		columns, name = topTopicColumns, "IN"
	}
	if !lively {
		return columns
	}
	return append(slices.Clone(columns), output.Column[TopRow]{Name: name, Cell: func(r TopRow) any {
		return output.Spark(r.past[max(0, len(r.past)-sparkWidth):])
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
		blocked = ", blocked " + output.Number(t.Blocked)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  every %s  %s\n", output.Safe(s.Server), s.Frame.Interval, state)
	fmt.Fprintf(&b, "%s, %s, %v stored; backlog %s, in flight %s, waiting for a retry %s, parked %s%s\n",
		output.Count(int64(s.Frame.Topics), "topic"), output.Count(int64(s.Frame.Groups), "group"), output.Bytes(s.Frame.Bytes),
		output.Number(t.Backlog), output.Number(t.Inflight), output.Number(t.Retry), output.Number(t.Parked), blocked)
	fmt.Fprintf(&b, "in %v/s, out %v/s, redelivered %v/s, dead letters %v/s  %s\n",
		t.In, t.Out, t.Retries, t.Dead, output.Spark(t.past[max(0, len(t.past)-sparkWidth):]))
	fmt.Fprintf(&b, "wrong now: %s\n\n", kinds(s.Frame.wrong))
	const beside = 7 // lines that are no rows
	rows := s.Frame.Rows
	more := 0
	if space := max(s.Height-beside, 1); len(rows) > space {
		rows, more = rows[:space], len(rows)-space
	}
	o.Format, o.Limit, o.Sort = output.Table, 0, ""
	list := output.List[TopRow]{Rows: rows, Columns: TopColumns(&s.View, true), Empty: "no " + what + "s"}
	if err := list.Print(&b, &b, o); err != nil {
		return err
	}
	keys := "s sort  r reverse  g groups or topics  f filter  p pause  q quit"
	if s.Typing {
		keys = "names like: " + output.Safe(s.View.Match) + "_   (enter)"
	}
	direction := "largest"
	if s.View.Reverse {
		direction = "smallest"
	}
	fmt.Fprintf(&b, "%s by %s, the %s first", output.Count(int64(len(s.Frame.Rows)), what), s.View.By, direction)
	if more > 0 {
		fmt.Fprintf(&b, ", %s not shown", output.Number(int64(more)))
	}
	fmt.Fprintf(&b, "   %s\n", keys)
	return writeScreen(w, b.String(), s.Width, s.Height)
}

// writeScreen writes at most height lines of a text, each of at most width columns.
func writeScreen(w io.Writer, text string, width, height int) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
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
