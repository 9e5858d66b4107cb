package output

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"time"
)

// gap is the space between two columns, and the indentation of the further lines of a row.
const gap = 2

// A grid is a table before its layout.
type grid struct {
	names []string   // of the columns
	cells [][]string // a row each
	right []bool     // columns of numbers
	least []int      // see Column
	blank []bool     // 0 or empty in all rows
	bare  bool       // without a header
	usual []int      // widths of earlier rows
}

// A layout places the columns of a grid.
type layout struct {
	lines  [][]int // the columns of each line of a row
	widths []int   // by column
	hidden []int   // columns that are not shown
	whole  bool    // nothing is cut
	width  int     // of the terminal; 0 means none
}

// Fitted are the lines of a table.
type Fitted struct {
	Header []string
	Rows   [][]string // the lines of each row
	Hidden []string   // names of the columns that are left out: 0 or empty in all rows
	Cut    bool       // a text ends with "…"
}

// natural returns the widths of the columns without a cut.
func (g *grid) natural() []int {
	widths := make([]int, len(g.names))
	copy(widths, g.usual)
	for i, name := range g.names {
		if !g.bare {
			widths[i] = max(widths[i], Width(name))
		}
		for _, row := range g.cells {
			widths[i] = max(widths[i], Width(row[i]))
		}
	}
	return widths
}

// floor returns the smallest width of a column on a terminal.
func (g *grid) floor(i int, natural []int, width int) int {
	if g.least[i] == 0 {
		return natural[i]
	}
	return min(natural[i], max(min(g.least[i], width-gap), Width(g.names[i])))
}

// fit returns the layout for a number of columns of a terminal; 0 means any number. A table that is
// too wide is changed in steps, until it fits:
//
//   - columns that are 0 or empty in all rows are left out, unless whole is true;
//   - texts that may be cut are cut, unless whole is true;
//   - a row takes several lines.
func (g *grid) fit(width int, whole bool) layout {
	natural := g.natural()
	all, some, hidden := []int{}, []int{}, []int{}
	for i := range g.names {
		all = append(all, i)
		if g.blank[i] && !whole {
			hidden = append(hidden, i)
		} else {
			some = append(some, i)
		}
	}
	least := slices.Clone(natural)
	if !whole {
		for i := range least {
			least[i] = g.floor(i, natural, width)
		}
	}
	if width <= 0 {
		return layout{lines: [][]int{all}, widths: natural}
	}
	best := layout{lines: g.fold(all, least, width)}
	if cut := len(g.fold(all, natural, width)) > 1; cut && len(hidden) > 0 && len(some) > 0 {
		if lines := g.fold(some, least, width); len(lines) < len(best.lines) || len(lines) == 1 {
			best = layout{lines: lines, hidden: hidden}
		}
	}
	best.widths, best.whole, best.width = natural, whole, width
	for n, line := range best.lines {
		shrink(natural, least, line, lineWidth(width, n))
	}
	return best
}

// lineWidth is the width of the n-th line of a row.
func lineWidth(width, n int) int {
	if n > 0 {
		return width - gap
	}
	return width
}

// fold divides columns into lines of a row. If it costs no further line, the texts before the first
// number, which are names, have a line of their own.
func (g *grid) fold(columns, widths []int, width int) [][]int {
	lines := pack(columns, widths, width, 0)
	first := slices.IndexFunc(columns, func(i int) bool { return g.right[i] })
	if len(lines) == 1 || first <= 0 {
		return lines
	}
	apart := pack(columns[:first], widths, width, 0)
	apart = append(apart, pack(columns[first:], widths, width, len(apart))...)
	if len(apart) <= len(lines) {
		return apart
	}
	return lines
}

// pack puts as many columns as possible into each line, of which n exist already.
func pack(columns, widths []int, width, n int) (lines [][]int) {
	used := 0
	for _, i := range columns {
		if last := len(lines) - 1; last >= 0 && used+gap+widths[i] <= lineWidth(width, n+last) {
			lines[last], used = append(lines[last], i), used+gap+widths[i]
			continue
		}
		lines, used = append(lines, []int{i}), widths[i]
	}
	return lines
}

// shrink reduces the widths of the columns of a line to those of the terminal, the widest first,
// but not below least.
func shrink(widths, least, line []int, width int) {
	over := gap*(len(line)-1) - width
	for _, i := range line {
		over += widths[i]
	}
	for ; over > 0; over-- {
		widest := slices.MaxFunc(line, func(a, b int) int { return cmp.Compare(spare(widths, least, a), spare(widths, least, b)) })
		if spare(widths, least, widest) == 0 {
			return
		}
		widths[widest]--
	}
}

// spare is the width of a column that can shrink, and otherwise 0.
func spare(widths, least []int, i int) int {
	if widths[i] > least[i] {
		return widths[i]
	}
	return 0
}

// lay returns the lines of a grid.
func (g *grid) lay(l layout) (f Fitted) {
	row := func(cells []string) (lines []string) {
		for n, columns := range l.lines {
			if i := columns[0]; l.whole && len(columns) == 1 && g.least[i] > 0 { // a long text
				indent := strings.Repeat(" ", min(n, 1)*gap)
				for line := range strings.Lines(Wrap(cells[i], lineWidth(l.width, n))) {
					lines = append(lines, indent+strings.TrimRight(line, "\n"))
				}
				continue
			}
			var b strings.Builder
			if n > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			for at, i := range columns {
				text := cells[i]
				if at > 0 {
					b.WriteString(strings.Repeat(" ", gap))
				}
				if Width(text) > l.widths[i] && g.least[i] > 0 {
					text, f.Cut = Cut(text, l.widths[i]), true
				}
				pad := strings.Repeat(" ", max(0, l.widths[i]-Width(text)))
				if g.right[i] {
					b.WriteString(pad + text)
				} else {
					b.WriteString(text + pad)
				}
			}
			if line := strings.TrimRight(b.String(), " "); n == 0 || line != "" {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if !g.bare {
		f.Header = row(g.names)
	}
	for _, cells := range g.cells {
		f.Rows = append(f.Rows, row(cells))
	}
	for _, i := range l.hidden {
		f.Hidden = append(f.Hidden, g.names[i])
	}
	return f
}

// A Stream prints rows one after another, each as soon as it is there. Its columns keep their
// places: a column has at least the width that is usual for it, and that of all earlier rows.
type Stream[T any] struct {
	columns []Column[T]
	o       Options
	widths  []int
}

// NewStream returns a stream of the rows of a list. The error names a column that does not exist.
func NewStream[T any](l List[T], o Options) (*Stream[T], error) {
	columns, err := l.columns(o)
	s := &Stream[T]{columns: columns, o: o}
	for _, c := range columns {
		s.widths = append(s.widths, c.Usual)
	}
	return s, err
}

// Print writes a row.
func (s *Stream[T]) Print(w io.Writer, row T, now time.Time) error {
	n := len(s.columns)
	g := grid{names: make([]string, n), cells: [][]string{make([]string, n)}, right: make([]bool, n), least: make([]int, n), blank: make([]bool, n), bare: true, usual: s.widths}
	for i, c := range s.columns {
		v := c.Cell(row)
		g.names[i], g.least[i], g.right[i] = c.Name, c.Least, number(v)
		g.cells[0][i] = cmp.Or(s.o.Cell(v, now), "-") // an empty cell would shift the others
	}
	for i, width := range g.natural() {
		s.widths[i] = max(s.widths[i], width)
		if c := &s.columns[i]; c.Least > 0 {
			s.widths[i] = c.Usual // a text, which is the last of its line or can be cut
		}
	}
	f := g.lay(g.fit(s.o.Width, s.o.Format == Wide || len(s.o.Columns) > 0))
	_, err := io.WriteString(w, strings.Join(f.Rows[0], "\n")+"\n")
	return err
}

// Flow joins parts of a line by two spaces. On a terminal of the given columns the parts that do
// not fit are in further lines, with an indentation; 0 means one line.
func Flow(parts []string, columns, indent int) string {
	var b strings.Builder
	used := 0
	for i, part := range parts {
		switch {
		case i == 0:
		case columns > 0 && used+gap+Width(part) > columns:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			used = indent
		default:
			b.WriteString(strings.Repeat(" ", gap))
			used += gap
		}
		b.WriteString(part)
		used += Width(part)
	}
	return b.String()
}
