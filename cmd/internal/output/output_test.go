package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate/internal/assert"
)

// The escapes are those of Go's string literals; the dangerous characters are those of
// CVE-2021-25743 and of "Trojan Source".
func TestSafe(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"orders", "orders"},
		{"Bestellung für Łódź, 注文", "Bestellung für Łódź, 注文"},
		{"a\x1b[31mb", `a\x1b[31mb`},
		{"a\nb\tc\rd", `a\nb\tc\x0dd`},
		{"\u009b1m", `\u009b1m`},
		{"\u202eevil\u2066", `\u202eevil\u2066`},
		{"\xff\xfe", `\xff\xfe`},
		{"\u2028", `\u2028`},
	} {
		if got := Safe(c.in); got != c.want {
			t.Errorf("Safe(%q) is %q, want %q", c.in, got, c.want)
		}
	}
}

// A cut text has no half character and no half escape, and fits.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		in      string
		columns int
		want    string
	}{
		{"orders", 6, "orders"},
		{"orders", 5, "orde…"},
		{"注文注文", 5, "注文…"},
		{"注文注文", 4, "注…"},
		{"ab\x1b[31m", 5, "ab…"},
		{"ab\x1b[31m", 7, `ab\x1b…`},
		{"Łódź\xff", 5, "Łódź…"},
		{"\u202eabcdef", 8, `\u202ea…`},
		{"", 3, ""},
	} {
		if got := Cut(c.in, c.columns); got != c.want || Width(got) > c.columns {
			t.Errorf("Cut(%q, %d) is %q, want %q", c.in, c.columns, got, c.want)
		}
	}
}

func FuzzSafe(f *testing.F) {
	f.Add("a\x1b]0;title\x07")
	f.Fuzz(func(t *testing.T, text string) {
		got := Safe(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, unsafe) {
			t.Errorf("Safe(%q) is %q, which controls a terminal", text, got)
		}
		assert.Equal(t, "Safe of the safe text is", Safe(got), got)
	})
}

// Lines keeps the ends of lines and the meaning of JSON, and leaves the beginning of a character.
func TestLines(t *testing.T) {
	for _, c := range []struct{ in, want, rest string }{
		{"a\n\tb\n", "a\n\tb\n", ""},
		{"a\r\nb\rc", "a\r\nb\\x0dc", ""},
		{"a\r", "a", "\r"},
		{"\x1b[2J\x7f\u009b\u202e\u200f\u2028", `\x1b[2J\u007f\u009b\u202e\u200f\u2028`, ""},
		{"Łódź 注文 \ufffd", "Łódź 注文 \ufffd", ""},
		{"a\xffb\x9b", `a\xffb\x9b`, ""},
		{"注文"[:4], "注", "注文"[3:4]},
		{"\xe2\x80", "", "\xe2\x80"},
	} {
		if got, rest := Lines([]byte(c.in)); string(got) != c.want || string(rest) != c.rest {
			t.Errorf("Lines(%q) is %q, rest %q; want %q, rest %q", c.in, got, rest, c.want, c.rest)
		}
	}
	var b bytes.Buffer
	in := map[string]string{"k\u009b": "\x1b\x7f\u0080\u202e\u2028é"}
	if err := Line(&b, in); err != nil || b.String() != `{"k\u009b":"\u001b\u007f\u0080\u202e\u2028é"}`+"\n" {
		t.Errorf("JSON is %q, %v", b.String(), err)
	}
	var out map[string]string
	if err := json.Unmarshal(b.Bytes(), &out); err != nil || !maps.Equal(in, out) {
		t.Errorf("JSON became %q, %v", out, err)
	}
}

// Widths are those of Unicode's East Asian Width for the characters that tables have.
func TestWidth(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "注文": 4, "é": 1, "e\u0301": 1, "한글": 4, "ｆｕｌｌ": 8, "🚀": 2} {
		if got := Width(text); got != want {
			t.Errorf("Width(%q) is %d, want %d", text, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1 000", 12345: "12 345", -1234567: "-1 234 567"} {
		if got := Number(n).Grouped(); got != want {
			t.Errorf("Number(%d) is %q, want %q", n, got, want)
		}
	}
	if texts := Textf("%s, %s, %v, %v, %d", Number(12345), Count(6789, "message"), Rate(1204.2), Textf("%v", Number(9999)), 1234); texts.String() != "12345, 6789 messages, 1204, 9999, 1234" ||
		texts.Grouped() != "12 345, 6 789 messages, 1 204, 9 999, 1234" {
		t.Errorf("a text is %q for programs and %q on a terminal", texts, texts.Grouped())
	}
	for b, want := range map[Bytes]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<30 + 1<<28: "1.2 GiB", 1 << 62: "4.0 EiB", 1<<20 - 1: "1.0 MiB"} {
		if got := b.String(); got != want {
			t.Errorf("%d bytes are %q, want %q", int64(b), got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 20 * time.Millisecond: "20ms", 1540 * time.Millisecond: "1.5s", 59*time.Second + 600*time.Millisecond: "1m 00s",
		252 * time.Second: "4m 12s", 2*time.Hour + 3*time.Minute: "2h 03m", 50 * time.Hour: "2d 02h", -time.Minute: "-1m 00s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) is %q, want %q", int64(d), got, want)
		}
	}
}

func TestTimes(t *testing.T) {
	now := time.Date(2026, 11, 23, 14, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		style TimeStyle
		at    time.Time
		want  string
	}{
		{Relative, now.Add(-190 * time.Second), "3m 10s ago"},
		{Relative, now.Add(10 * time.Minute), "in 10m 00s"},
		{Relative, time.Time{}, "-"},
		{UTC, now, "2026-11-23T14:00:00Z"},
	} {
		if got := c.style.Time(c.at, now); got != c.want {
			t.Errorf("%v in the form %s is %q, want %q", c.at, c.style, got, c.want)
		}
	}
	for text, want := range map[string]time.Time{
		"2026-11-23T13:00:00Z": now.Add(-time.Hour), "-15m": now.Add(-15 * time.Minute), "10m": now.Add(10 * time.Minute), "@1795442400": time.Unix(1795442400, 0),
	} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("ParseTime(%q) is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "yesterday", "@x", "2026-11-23"} {
		if _, err := ParseTime(text, now); err == nil || !strings.Contains(err.Error(), "RFC 3339") {
			t.Errorf("ParseTime(%q): %v", text, err)
		}
	}
}

type city struct {
	Name   string `json:"name"`
	People int64  `json:"people"`
}

func cities() List[city] {
	return List[city]{
		Rows: []city{{"Ulm", 128928}, {"東京", 13960000}, {"a\x1bb", 7}},
		Columns: []Column[city]{
			{Name: "NAME", Cell: func(c city) any { return c.Name }},
			{Name: "PEOPLE", Cell: func(c city) any { return c.People }},
			{Name: "SHORT", Wide: true, Cell: func(c city) any { return c.Name[:1] }},
		},
		Name:     func(c city) string { return c.Name },
		Document: func(cs []city) any { return map[string]any{"cities": cs} },
		Empty:    "no cities",
	}
}

func TestList(t *testing.T) {
	for name, c := range map[string]struct {
		o           Options
		want, notes string
	}{
		"table":      {Options{Format: Table}, "NAME        PEOPLE\nUlm        128 928\n東京    13 960 000\na\\x1bb           7\n", ""},
		"sorted":     {Options{Format: Table, Sort: "-people", NoHeaders: true, Columns: []string{"people"}}, "13 960 000\n   128 928\n         7\n", ""},
		"limit":      {Options{Format: Name, Limit: 1}, "Ulm\n", "1 of 3; --limit shows more\n"},
		"limit note": {Options{Format: Table, Limit: 1, NoHeaders: true}, "Ulm  128 928\n", "1 of 3; --limit shows more\n"},
		"names":      {Options{Format: Name, Sort: "name"}, "Ulm\n\"$(printf -- 'a\\033b')\"\n東京\n", ""},
		"json lines": {Options{Format: JSONL, Limit: 1}, `{"name":"Ulm","people":128928}` + "\n", "1 of 3; --limit shows more\n"},
		"json":       {Options{Format: JSON, Limit: 1}, "{\n  \"cities\": [\n    {\n      \"name\": \"Ulm\",\n      \"people\": 128928\n    }\n  ]\n}\n", "1 of 3; --limit shows more\n"},
	} {
		var out, notes bytes.Buffer
		if err := cities().Print(&out, &notes, c.o); err != nil || out.String() != c.want || notes.String() != c.notes {
			t.Errorf("%s: %v\ngot  %q %q\nwant %q %q", name, err, out.String(), notes.String(), c.want, c.notes)
		}
	}
	for _, o := range []Options{{Format: Table, Columns: []string{"size"}}, {Format: JSON, Sort: "size"}} {
		if err := cities().Print(&bytes.Buffer{}, &bytes.Buffer{}, o); err == nil || !strings.Contains(err.Error(), "name, people, short") {
			t.Errorf("an unknown column: %v", err)
		}
	}
	empty := cities()
	empty.Rows = nil
	var out, notes bytes.Buffer
	if err := empty.Print(&out, &notes, Options{Format: Table}); err != nil || out.Len() > 0 || notes.String() != "no cities\n" {
		t.Errorf("an empty list: %v, %q, %q", err, out.String(), notes.String())
	}
}

// A table that a program reads has each number as one field without a unit.
func TestPlainNumbers(t *testing.T) {
	var plain, people strings.Builder
	type row struct{}
	l := List[row]{Rows: []row{{}}, Columns: []Column[row]{
		{Name: "READY", Cell: func(row) any { return 19_999 }},
		{Name: "OFFSET", Cell: func(row) any { return int64(-1_234_567) }},
		{Name: "SIZE", Cell: func(row) any { return Bytes(123_456) }},
		{Name: "IN", Cell: func(row) any { return Rate(1204.26) }},
		{Name: "OUT", Cell: func(row) any { return Rate(-1) }},
		{Name: "AGE", Cell: func(row) any { return 2*time.Minute + 3500*time.Millisecond }},
		{Name: "TAG", Cell: func(row) any { return "10 000" }},
	}}
	assert.Must(t, l.Print(&plain, io.Discard, Options{NoHeaders: true, Plain: true}))
	assert.Must(t, l.Print(&people, io.Discard, Options{NoHeaders: true}))
	if got, want := strings.TrimSpace(plain.String()), "19999  -1234567  123456  1204.3  -  123.5  10 000"; got != want {
		t.Errorf("for programs: %q, want %q", got, want)
	}
	if got, want := strings.TrimSpace(people.String()), "19 999  -1 234 567  120.6 KiB  1 204  -  2m 04s  10 000"; got != want {
		t.Errorf("for people: %q, want %q", got, want)
	}
}

// A table on a terminal has no line that is too wide, except one with a single name. Names and
// numbers are whole, columns that are left out are 0 or empty, and a program gets a row in a line.
func TestFit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string {
		b := make([]rune, random.IntN(most+1))
		for i := range b {
			b[i] = []rune("ab東é ")[random.IntN(5)]
		}
		return strings.TrimSpace(string(b))
	}
	cut, hidden, folded := 0, 0, 0
	for range 1000 {
		var l List[int]
		cells := [][]any{}
		for range 1 + random.IntN(4) {
			cells = append(cells, nil)
			l.Rows = append(l.Rows, len(l.Rows))
		}
		n := 1 + random.IntN(9)
		for i := range n {
			kind, empty := random.IntN(4), random.IntN(4) == 0
			c := Column[int]{Name: fmt.Sprintf("COLUMN-%d", i)[:2+random.IntN(7)] + strconv.Itoa(i)}
			for r := range cells {
				v := any(int64(random.IntN(1 << random.IntN(40))))
				switch {
				case empty:
					v = []any{"", int64(0), nil}[random.IntN(3)]
				case kind == 0:
					v = fmt.Sprintf("<%d-%d-%s>", r, i, strings.ReplaceAll(text(30), " ", "_"))
				case kind == 1:
					v, c.Least = text(120), 1+random.IntN(30)
				}
				cells[r] = append(cells[r], v)
			}
			c.Cell = func(r int) any { return cells[r][i] }
			l.Columns = append(l.Columns, c)
		}
		width := 10 + random.IntN(120)
		o := Options{Format: []Format{Table, Wide}[random.IntN(2)], Width: width}
		f := assert.Value(l.Fit(o))(t)
		for _, lines := range append(slices.Clone(f.Rows), f.Header) {
			folded = max(folded, len(lines))
			for _, line := range lines {
				if Width(line) > width && strings.Contains(strings.TrimSpace(line), "  ") {
					t.Fatalf("%d columns: %q has %d", width, line, Width(line))
				}
			}
		}
		cut, hidden = cut+map[bool]int{true: 1}[f.Cut], hidden+len(f.Hidden)
		if o.Format == Wide && (f.Cut || len(f.Hidden) > 0) {
			t.Fatalf("-o wide cuts %v and leaves %q out", f.Cut, f.Hidden)
		}
		for r := range cells {
			row := strings.Join(f.Rows[r], "\n")
			for i, v := range cells[r] {
				c := l.Columns[i]
				shown := o.Cell(v, time.Now())
				switch {
				case slices.Contains(f.Hidden, c.Name):
					assert.MustThat(t, shown == "" || shown == "-" || shown == "0", "%s is left out with %q", c.Name, shown)
				case c.Least == 0 && !strings.Contains(row, shown):
					t.Fatalf("%d columns: %q is not in\n%s", width, shown, row)
				case o.Format == Wide && !strings.Contains(strings.Join(strings.Fields(row), " "), strings.Join(strings.Fields(shown), " ")):
					t.Fatalf("%d columns, -o wide: %q is not in\n%s", width, shown, row)
				}
			}
		}
		for _, lines := range fitted(l.Rows, l.Columns, Options{Format: Table}).Rows {
			assert.MustThat(t, len(lines) == 1 && !strings.Contains(lines[0], "…"), "for a program: %q", lines)
		}
	}
	if cut < 100 || hidden < 100 || folded < 4 {
		t.Errorf("%d tables with a cut, %d columns left out, and at most %d lines a row: the test does not see them", cut, hidden, folded)
	}
}

// The columns of a stream keep their places, and an empty cell has a place.
func TestStream(t *testing.T) {
	type row struct {
		id, tag, text string
		offset        int64
	}
	l := List[row]{Columns: []Column[row]{
		{Name: "ID", Usual: 6, Cell: func(r row) any { return r.id }}, {Name: "OFFSET", Usual: 5, Cell: func(r row) any { return r.offset }},
		{Name: "TAG", Usual: 4, Cell: func(r row) any { return r.tag }}, {Name: "TEXT", Least: 8, Cell: func(r row) any { return r.text }},
	}}
	rows := []row{{"a", "", "one", 1}, {"abc", "paid", "a text that is too long", 12345}, {"abcdefgh", "", "two", 7}, {"b", "x", "three", 8}}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"program":  {Options{Plain: true}, "a           1  -     one\nabc     12345  paid  a text that is too long\nabcdefgh      7  -     two\nb             8  x     three\n"},
		"terminal": {Options{Width: 30}, "a           1  -     one\nabc     12 345  paid  a text …\nabcdefgh       7  -     two\nb              8  x     three\n"},
		"wide":     {Options{Width: 30, Format: Wide}, "a           1  -     one\nabc     12 345  paid\n  a text that is too long\nabcdefgh       7  -     two\nb              8  x     three\n"},
		"columns":  {Options{Columns: []string{"tag", "id"}}, "-     a\npaid  abc\n-     abcdefgh\nx     b\n"},
	} {
		s := assert.Value(NewStream(l, c.o))(t)
		var b strings.Builder
		for _, r := range rows {
			assert.Must(t, s.Print(&b, r, time.Now()))
		}
		assert.That(t, b.String() == c.want, "%s:\ngot\n%swant\n%s", name, b.String(), c.want)
	}
	if _, err := NewStream(l, Options{Columns: []string{"size"}}); err == nil || !strings.Contains(err.Error(), "id, offset, tag, text") {
		t.Errorf("an unknown column: %v", err)
	}
}

func TestChoice(t *testing.T) {
	f := Choice[Format]{Chosen: Table, Kind: "format", Of: Formats}
	if err := f.Set("xml"); err == nil || err.Error() != "the formats are table, wide, json, jsonl, name" || f.Chosen != Table {
		t.Errorf("an unknown format gives %v, %v", f.Chosen, err)
	}
	if err := f.Set("jsonl"); err != nil || f.Chosen != JSONL {
		t.Errorf("%v, %v", f.Chosen, err)
	}
}
