package filter

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestTags(t *testing.T) {
	for _, c := range []struct {
		expression, tag string
		want            bool
	}{
		{"", "x", true}, {"*", "", true}, {" * ", "x", true}, {"a", "a", true}, {"a", "A", false}, {"a", "", false},
		{"a || b", "b", true}, {"a||b", "a", true}, {" a  ||  b ", "c", false},
		{"a||||b", "b", true}, {"a||||b", "", false}, {"a||", "a", true}, {"a||", "", false}, {"||a", "a", true}, {"|| a || ", "b", false},
		{strings.Repeat("t", 16<<10) + "||" + strings.Repeat("u", 15<<10), strings.Repeat("t", 16<<10), true},
		{"Aa", "BB", false}, // equal hashes in Java
	} {
		f, err := Tags(c.expression)
		if err != nil || f.Match(c.tag, nil) != c.want {
			t.Errorf("%q, tag %q: %v, %v; want %v", c.expression, c.tag, !c.want, err, c.want)
		}
	}
	for expression, at := range map[string]int{"a|b": 1, "||": 0, " || || ": 0, "|||": 2, "a || b | c": 7, strings.Repeat("x", maxLength+1): maxLength} {
		_, err := Tags(expression)
		e, ok := errors.AsType[*Error](err)
		assert.That(t, ok && e.Position == at, "%.20q: %v, want position %d", expression, err, at)
	}
}

// Integers are compared exactly, in each operator (RocketMQ: ConstantExpression.createFromDecimal
// and ComparisonExpression: Long). Texts that are no decimal numbers are none.
func TestSQLNumbers(t *testing.T) {
	properties := map[string]string{
		"id": "738854974015972075", "next": "738854974015972076", "neg": "-738854974015972075", "least": "-9223372036854775808", "most": "9223372036854775807",
		"above": "9223372036854775808", "plus": "+5", "zeros": "007", "spaces": " 15 ", "decimal": "738854974015972075.0", "exponent": "1e3",
		"inf": "Infinity", "short": "inf", "nan": "NaN", "under": "1_000", "hex": "0x10", "octal": "0o7", "huge": "1e999", "point": ".", "sign": "-", "dots": "1.2.3", "java": "15L",
		"e": "e5", "wide": "１５", "float": "1.5f", "none": "", "blank": "  ", "half": ".5", "trailing": "5.",
	}
	for expression, want := range map[string]bool{
		"id = 738854974015972075": true, "id = 738854974015972076": false, "id <> 738854974015972076": true, "id <> 738854974015972075": false,
		"id < 738854974015972076": true, "id <= 738854974015972074": false, "id > 738854974015972074": true, "id >= 738854974015972076": false,
		"738854974015972076 = id": false, "next > id": true, "id < next": true, "id >= next": false,
		"id IN (738854974015972074, 738854974015972076)": false, "id NOT IN (738854974015972076)": true, "id IN (1, 738854974015972075)": true,
		"id BETWEEN 738854974015972076 AND 738854974015972077": false, "id BETWEEN 738854974015972075 AND 738854974015972075": true,
		"neg = -738854974015972076": false, "neg = -738854974015972075": true, "neg > -738854974015972076": true,
		"least = -9223372036854775808": true, "most = 9223372036854775807": true, "most > 9223372036854775806": true, "least < -9223372036854775807": true,
		"above = 9223372036854775807": false, "NOT above = 9223372036854775807": false, "above > 5": false, "above > 5.0": true,
		"id = 738854974015972076.0": true, "decimal = 738854974015972075": true, // rounded, as a fraction requests it
		"plus = 5": true, "zeros = 7": true, "spaces = 15": true, "exponent = 1000": true, "half = 0.5": true, "half < 1": true, "trailing = 5": true,
		"inf > 1": false, "inf > 1.5": false, "NOT inf > 1": false, "short > 1": false, "nan <> 1": false, "under = 1000": false, "under > 1": false, "NOT under = 1000": false,
		"hex = 16": false, "octal = 7": false, "huge > 1": false, "point = 0": false, "sign = 0": false, "dots > 1": false, "java = 15": false, "e = 0": false, "wide = 15": false, "float > 1": false,
		"none = 0": false, "none > none": false, "none IN (1)": false, "blank BETWEEN 0 AND 1": false, "NOT blank = 0": false,
		"inf = 'Infinity'": true, "under = '1_000'": true, "inf > under": false,
	} {
		f, err := SQL(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		got := f.Match("", properties)
		assert.That(t, got == want, "%s: %v, want %v", expression, got, want)
	}
	for _, expression := range []string{"a = 9223372036854775808", "a > -9223372036854775809", "a IN (1, 99999999999999999999)", "a = 1e999", "a = 1.2.3", "a > +."} {
		assert.That(t, assert.Err(SQL(expression)) != nil, "%s: no error", expression)
	}
}

func TestSQL(t *testing.T) {
	properties := map[string]string{
		"price": "15", "neg": "-3", "half": "0.5", "big": "1e3", "name": "Bob", "quote": "it's", "yes": "true", "no": "FALSE", "odd": "x15", "a.b-c": "1", "empty": "",
	}
	for expression, want := range map[string]bool{
		"price > 10": true, "price > 15": false, "price >= 15": true, "price < 15.5": true, "price <= 14": false, "price = 15.0": true, "price <> 15": false, "price != 16": true,
		"10 < price": true, "neg < 0": true, "neg = -3": true, "half = .5": true, "big = 1000": true, "big > 9e2": true,
		"price BETWEEN 10 AND 20": true, "price between 16 and 20": false, "price NOT BETWEEN 16 AND 20": true,
		"name = 'Bob'": true, "name = 'bob'": false, "name <> 'Al'": true, "name IN ('Al', 'Bob')": true, "name NOT IN ('Al')": true, "name in ('Al')": false,
		"price IN (1, 15)": true, "quote = 'it''s'": true, "price = '15'": true,
		"name IS NULL": false, "name IS NOT NULL": true, "gone IS NULL": true, "gone is not null": false, "empty IS NULL": false, "empty = ''": true,
		"TAGS = 'tag'": true, "TAGS IN ('x')": false, "TAGS IS NOT NULL": true,
		"yes": true, "yes = TRUE": true, "no = false": true, "NOT no": true, "no": false, "TRUE": true, "FALSE": false, "NOT FALSE": true,
		"a.b-c = 1":                           true,
		"price > 10 AND name = 'Bob'":         true,
		"price > 20 OR name = 'Bob'":          true,
		"NOT price > 20 AND NOT name = 'x'":   true,
		"price > 20 AND name = 'x' OR half<1": true, // AND before OR
		"price > 20 AND (name = 'x' OR yes)":  false,
		"NOT (price > 20) AND (half < 1)":     true,
		"gone > 1":                            false,
		"NOT gone > 1":                        false, // unknown, not false
		"gone > 1 OR price = 15":              true,
		"gone > 1 AND price = 15":             false,
		"NOT (gone > 1 AND price = 16)":       true, // unknown AND false is false
		"NOT (gone > 1 OR price = 16)":        false,
		"gone IN ('a')":                       false,
		"gone NOT IN ('a')":                   false,
		"name NOT IN ('a', gone)":             false, // one comparison is unknown
		"name IN ('a', gone, 'Bob')":          true,
		"odd > 1":                             false,
		"NOT odd > 1":                         false,
		"odd <> 1":                            false,
		"name > 'Al'":                         false, // less and more are about numbers
		"price BETWEEN gone AND 20":           false,
		"NOT price BETWEEN gone AND 10":       true, // unknown AND false
		"price > neg":                         true,
		"gone = gone":                         false,
		"name = name":                         true,
		"odd = TRUE":                          false,
	} {
		f, err := SQL(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		got := f.Match("tag", properties)
		assert.That(t, got == want, "%s: %v, want %v", expression, got, want)
	}
}

func TestSQLErrorsSayWhere(t *testing.T) {
	for expression, want := range map[string]struct {
		at   int
		says string
	}{
		"":                       {0, "the end"},
		"price >":                {7, "the end"},
		"price > > 3":            {8, "'>'"},
		"price ? 3":              {6, "?"},
		"price 3":                {6, "AND, OR or the end"},
		"name = 'Bob":            {7, "no closing quote"},
		"price BETWEEN 1 OR 2":   {16, "'AND'"},
		"price IN 1":             {9, "'('"},
		"price IN (1 2)":         {12, "')'"},
		"price IN ()":            {10, "a property"},
		"price IS 3":             {9, "'NULL'"},
		"price NOT 3":            {10, "BETWEEN or IN"},
		"(price > 3":             {10, "')'"},
		"price > 3)":             {9, "AND, OR or the end"},
		"AND":                    {0, "'AND'"},
		"3":                      {1, "a comparison"},
		"price = 1.2.3":          {8, "not a number"},
		"price > 3 AND":          {13, "the end"},
		strings.Repeat("(", 100): {64, "nested deeper than 64"},
	} {
		_, err := SQL(expression)
		e, ok := errors.AsType[*Error](err)
		assert.That(t, ok && e.Position == want.at && strings.Contains(e.Reason, want.says),
			"%.30q: %v, want %q at position %d", expression, err, want.says, want.at)
	}
}

// People count characters, not bytes.
func TestErrorCountsCharacters(t *testing.T) {
	for expression, want := range map[string]string{
		"größe > > 3":                      `, at character 9 of "größe > > 3"`,
		"名 = '订单' AND ?":                   `, at character 14 of "名 = '订单' AND ?"`,
		"price >":                          `, at character 8 of "price >"`,
		strings.Repeat("ü", maxLength/2+1): `the limit is 32768: "` + strings.Repeat("ü", 32) + `…"`,
	} {
		_, err := SQL(expression)
		assert.That(t, err != nil && strings.HasSuffix(err.Error(), want), "%.40q: %v; want it to end with %s", expression, err, want)
	}
	_, err := Tags("ä || b|c")
	assert.That(t, err != nil && strings.Contains(err.Error(), "at character 7 of"), "tags: %v; want character 7", err)
}

// Invariants:
//   - SQL never panics.
//   - An error has a position within the expression.
//   - A filter gives the same result twice.
//   - NOT of an expression is never true where the expression is true.
func FuzzSQL(f *testing.F) {
	for _, s := range []string{"a > 1 AND b = 'x' OR NOT c", "a BETWEEN -1 AND .5e3", "a IN ('x', 1, b) AND TAGS IS NOT NULL", "((", "'", "a!=1"} {
		f.Add(s, "v")
		f.Add(s, "")
	}
	f.Fuzz(func(t *testing.T, expression, v string) {
		p := map[string]string{"a": v, "b": "x", "c": "true"}
		q, err := SQL(expression)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			assert.MustThat(t, ok && e.Position >= 0 && e.Position <= max(len(expression), maxLength), "%q: %#v", expression, err)
			return
		}
		got := q.Match("t", p)
		assert.MustThat(t, q.Match("t", p) == got, "%q has another result", expression)
		if inverse, err := SQL("NOT (" + expression + ")"); err == nil && got && inverse.Match("t", p) {
			t.Fatalf("%q and its negation both match", expression)
		}
	})
}
