// Package output prints results: tables for people, JSON for programs, names for xargs, and
// commands to copy. Text of messages and names cannot control the terminal.
//
// A terminal and a program get different forms of a table:
//
//   - A terminal gets digits in groups, bytes and durations with units, and lines that fit it. A
//     row that is too wide takes several lines. Names and numbers are whole. Free texts are cut,
//     and columns that are 0 or empty in all rows are left out; a note reports it. -o wide and
//     --columns show all.
//   - A program gets each row in one line, with all columns and whole texts, and numbers without
//     spaces and units. Numbers within texts are plain too: 12345.
//
// Commands and data that a person copies are never broken into lines; the terminal wraps them.
package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Format is a form of results.
type Format string

// The formats of -o.
const (
	Table Format = "table" // the frequent columns
	Wide  Format = "wide"  // all columns
	JSON  Format = "json"  // one document, the body of the HTTP API
	JSONL Format = "jsonl" // one object a line
	Name  Format = "name"  // one name a line
)

// Formats are all formats in the order of the help.
var Formats = []Format{Table, Wide, JSON, JSONL, Name}

// Options are the flags of a command's output.
type Options struct {
	Format    Format
	Columns   []string // names of the columns to print; nil means those of the format
	NoHeaders bool
	Sort      string // a column, descending with a leading -; empty keeps the order
	Limit     int    // most rows; 0 means no limit
	Times     TimeStyle
	Plain     bool // numbers for programs: 12345, bytes without a unit, seconds
	Width     int  // columns of the terminal, which tables fit; 0 for programs, whose tables are never cut

	// Shown has the columns that a screen has shown. It keeps them when they become empty, so that
	// they do not come and go. Nil keeps none.
	Shown map[string]bool
}

// A Column is one column of a table.
type Column[T any] struct {
	Name string // upper case, as the header has it
	Wide bool   // only with -o wide or by name
	Cell func(T) any

	// Least is the width to which a terminal may cut the texts of the column. 0 means that they are
	// never cut, as numbers and names that commands take as arguments are.
	Least int

	// Keep reports that 0 is a value of the column as any other. Otherwise a column of zeros is
	// left out if the terminal is too narrow.
	Keep bool

	// Usual is the width that a [Stream] reserves. 0 means that of its rows.
	Usual int
}

// A List is a result of several rows.
type List[T any] struct {
	Rows     []T
	Columns  []Column[T]
	Name     func(T) string // nil: the text of the first column
	Document func([]T) any  // the JSON document of the rows
	Empty    string         // the note on stderr if there are no rows
}

// Print writes the list to w in the form of o, and notes to notes. The error names a column that
// does not exist, or is that of w.
func (l List[T]) Print(w, notes io.Writer, o Options) error {
	rows, err := l.sorted(o.Sort)
	if err != nil {
		return err
	}
	columns, err := l.columns(o)
	if err != nil {
		return err
	}
	total := len(rows)
	if o.Limit > 0 && total > o.Limit {
		rows = rows[:o.Limit]
	}
	if len(rows) < total {
		fmt.Fprintf(notes, "%d of %d; --limit shows more\n", len(rows), total)
	}
	switch o.Format {
	case JSON:
		return Encode(w, l.Document(rows))
	case JSONL:
		for _, r := range rows {
			if err := Line(w, r); err != nil {
				return err
			}
		}
		return nil
	case Name:
		for _, r := range rows {
			if _, err := fmt.Fprintln(w, Word(l.name(r))); err != nil {
				return err
			}
		}
		return nil
	}
	if total == 0 {
		fmt.Fprintln(notes, l.Empty)
		return nil
	}
	f := fitted(rows, columns, o)
	var b strings.Builder
	for _, line := range f.Header {
		b.WriteString(line + "\n")
	}
	for _, row := range f.Rows {
		b.WriteString(strings.Join(row, "\n") + "\n")
	}
	_, err = io.WriteString(w, b.String())
	if note := f.note(); note != "" {
		fmt.Fprintln(notes, note)
	}
	return err
}

func (l List[T]) name(row T) string {
	if l.Name != nil {
		return l.Name(row)
	}
	return fmt.Sprint(l.Columns[0].Cell(row))
}

// Fit returns the lines of the list as a table, for a screen.
func (l List[T]) Fit(o Options) (Fitted, error) {
	columns, err := l.columns(o)
	if err != nil {
		return Fitted{}, err
	}
	return fitted(l.Rows, columns, o), nil
}

func (l List[T]) find(name string) (Column[T], error) {
	var known []string
	for _, c := range l.Columns {
		if strings.EqualFold(c.Name, name) {
			return c, nil
		}
		known = append(known, strings.ToLower(c.Name))
	}
	return Column[T]{}, fmt.Errorf("there is no column %q; the columns are %s", name, strings.Join(known, ", "))
}

func (l List[T]) columns(o Options) ([]Column[T], error) {
	var out []Column[T]
	for _, name := range o.Columns {
		c, err := l.find(name)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, c := range l.Columns {
		if !c.Wide || o.Format == Wide {
			out = append(out, c)
		}
	}
	return out, nil
}

func (l List[T]) sorted(by string) ([]T, error) {
	name, descending := strings.CutPrefix(by, "-")
	if name == "" {
		return l.Rows, nil
	}
	c, err := l.find(name)
	if err != nil {
		return nil, err
	}
	rows := slices.Clone(l.Rows)
	slices.SortStableFunc(rows, func(a, b T) int {
		n := compare(c.Cell(a), c.Cell(b))
		if descending {
			return -n
		}
		return n
	})
	return rows, nil
}

// compare orders two cells of one column. An unknown one, nil, is above all others.
func compare(a, b any) int {
	if a == nil || b == nil {
		return cmp.Compare(value(a == nil), value(b == nil))
	}
	if a, ok := a.(time.Time); ok {
		return a.Compare(b.(time.Time))
	}
	if number(a) {
		return cmp.Compare(value(a), value(b))
	}
	return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

// value is a cell as a number; 1 and 0 for true and false.
func value(cell any) float64 {
	switch v := reflect.ValueOf(cell); {
	case v.CanInt():
		return float64(v.Int())
	case v.CanFloat():
		return v.Float()
	}
	return map[any]float64{true: 1}[cell]
}

// number reports whether a cell is aligned to the right.
func number(cell any) bool {
	switch cell.(type) {
	case int, int64, Bytes, Rate, Share, time.Duration:
		return true
	}
	return false
}

// Cell returns the text of a value in a table: numbers in groups of digits, times in the style.
// With Plain a number has no spaces, so that programs read it as one field: an integer has digits
// alone, bytes are a count without a unit, and durations are seconds.
func (o Options) Cell(v any, now time.Time) string {
	if o.Plain {
		switch v := v.(type) {
		case int, int64, Bytes:
			return fmt.Sprintf("%d", v)
		case Share:
			return strconv.FormatFloat(math.Round(float64(v)*1000)/1000, 'f', -1, 64)
		case Rate:
			if v >= 0 {
				return strconv.FormatFloat(math.Round(float64(v)*10)/10, 'f', -1, 64)
			}
		case time.Duration:
			return strconv.FormatFloat(v.Seconds(), 'f', -1, 64)
		}
	}
	style := o.Times
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		return Safe(v)
	case int:
		return Number(v).Grouped()
	case int64:
		return Number(v).Grouped()
	case grouper:
		if o.Plain {
			return Safe(v.String())
		}
		return Safe(v.Grouped())
	case time.Duration:
		return Duration(v)
	case time.Time:
		return style.Time(v, now)
	case []string:
		return Safe(strings.Join(v, ","))
	}
	return Safe(fmt.Sprint(v))
}

// fitted returns the lines of a table. Without --columns and -o wide texts are cut, and columns are
// left out, if the terminal is too narrow.
func fitted[T any](rows []T, columns []Column[T], o Options) Fitted {
	now := time.Now()
	n := len(columns)
	g := grid{names: make([]string, n), right: make([]bool, n), least: make([]int, n), blank: make([]bool, n), bare: o.NoHeaders}
	for i, c := range columns {
		g.names[i], g.least[i], g.blank[i] = c.Name, c.Least, !c.Keep && !o.Shown[c.Name]
	}
	for _, r := range rows {
		line := make([]string, n)
		for i, c := range columns {
			v := c.Cell(r)
			line[i] = o.Cell(v, now)
			g.right[i] = g.right[i] || number(v)
			g.blank[i] = g.blank[i] && (v == nil || slices.Contains([]string{"", "-", "0", "0 B", "0s"}, line[i]))
		}
		g.cells = append(g.cells, line)
	}
	whole := o.Format == Wide || len(o.Columns) > 0
	f := g.lay(g.fit(o.Width, whole))
	if o.Shown != nil {
		for i, name := range g.names {
			o.Shown[name] = o.Shown[name] || !g.blank[i]
		}
	}
	return f
}

// note names the parts of a table that the terminal has no space for.
func (f *Fitted) note() string {
	var parts []string
	if len(f.Hidden) > 0 {
		parts = append(parts, "not shown, because 0 or empty in all rows: "+strings.Join(f.Hidden, ", "))
	}
	if f.Cut {
		parts = append(parts, "texts with … are cut")
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, "; ") + "; -o wide shows all"
}

// Encode writes a JSON document with indentation. Characters that control a terminal are escaped.
func Encode(w io.Writer, v any) error { return encode(w, v, "  ") }

// Line writes a JSON object in one line, with the escapes of [Encode].
func Line(w io.Writer, v any) error { return encode(w, v, "") }

func encode(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	text, _ := Lines(b.Bytes()) // JSON has no invalid UTF-8
	_, err := w.Write(text)
	return err
}

// A Field is one line of a result about one subject.
type Field struct {
	Name  string
	Value any
}

// Fields writes names and values in two columns. Lines whose value is the empty text are left out.
// On a terminal a [Text] is wrapped below the beginning of the value.
func Fields(w io.Writer, o Options, fields []Field) error {
	now := time.Now()
	widest := 0
	for _, f := range fields {
		if o.Cell(f.Value, now) != "" {
			widest = max(widest, Width(f.Name))
		}
	}
	var b strings.Builder
	for _, f := range fields {
		text := o.Cell(f.Value, now)
		if text == "" {
			continue
		}
		indent := strings.Repeat(" ", widest+gap)
		if _, prose := f.Value.(Text); prose && o.Width > 2*len(indent) {
			text = strings.ReplaceAll(Wrap(text, o.Width-len(indent)), "\n", "\n"+indent)
		}
		b.WriteString(strings.TrimRight(f.Name+indent[Width(f.Name):]+text, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// A Choice is the flag of one of some values.
type Choice[T ~string] struct {
	Chosen T
	Kind   string // name of the value in the help
	Of     []T
}

// Type is the name of the value in the help.
func (f *Choice[T]) Type() string { return f.Kind }

// String returns the value.
func (f *Choice[T]) String() string { return string(f.Chosen) }

// Set reads the value.
func (f *Choice[T]) Set(text string) error {
	if !slices.Contains(f.Of, T(text)) {
		return fmt.Errorf("the %ss are %s", f.Kind, strings.ReplaceAll(strings.Trim(fmt.Sprint(f.Of), "[]"), " ", ", "))
	}
	f.Chosen = T(text)
	return nil
}
