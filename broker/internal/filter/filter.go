// Package filter decides which messages a subscription wants: by tag, or by a SQL92 expression over
// the message's properties, as RocketMQ has them. Its decisions are pure functions.
package filter

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Filter reports whether a message matches. It keeps no state, so goroutines may share one. A nil
// *Filter matches every message.
type Filter struct {
	tags map[string]bool
	expr node
}

// maxLength bounds an expression, in bytes: a message may have a tag of nearly 16 KiB.
const maxLength = 32 << 10

// An Error is a syntax error in an expression.
type Error struct {
	Expression string
	Position   int // offset of the error, in bytes from 0
	Reason     string
}

// Error returns the reason and its position, in characters from 1.
func (e *Error) Error() string {
	if e.Position > len(e.Expression) { // it is too long, and cut
		return fmt.Sprintf("%s: %q", e.Reason, e.Expression)
	}
	return fmt.Sprintf("%s, at character %d of %q", e.Reason, utf8.RuneCountInString(e.Expression[:e.Position])+1, e.Expression)
}

// Tags returns the filter of a tag expression: tags joined by "||", for example "a || b". A message
// matches if its tag equals one of them. "*" and the empty expression match every message. Empty
// parts are ignored, as in RocketMQ; an expression with only empty parts is an error.
func Tags(expression string) (*Filter, error) {
	if len(expression) > maxLength {
		return nil, tooLong(expression)
	}
	trimmed := strings.TrimSpace(expression)
	if trimmed == "" || trimmed == "*" {
		return nil, nil
	}
	f := &Filter{tags: map[string]bool{}}
	at := 0
	for word := range strings.SplitSeq(expression, "||") {
		tag := strings.TrimSpace(word)
		switch i := strings.IndexByte(word, '|'); {
		case i >= 0:
			return nil, &Error{expression, at + i, "a single '|'; write tags as in \"a || b\""}
		case tag != "":
			f.tags[tag] = true
		}
		at += len(word) + len("||")
	}
	if len(f.tags) == 0 {
		return nil, &Error{expression, 0, "the filter has no tag; write tags as in \"a || b\", or \"*\" for all"}
	}
	return f, nil
}

// SQL returns the filter of a SQL92 expression: comparisons of properties with numbers and strings,
// BETWEEN, IN, IS NULL, AND, OR, NOT. The tag is the property TAGS.
//
// The logic has three values: true, false and unknown. A message matches only if the expression is
// true. A comparison is unknown if
//   - a property in it is missing,
//   - it compares numbers, and an operand is not a number, or
//   - it compares booleans, and an operand is not a boolean.
//
// Integers of 64 bits are compared exactly. A comparison with a number that has a fraction or an
// exponent compares rounded numbers (float64).
//
// For example, a message without the property a matches neither "a > 1" nor "NOT a > 1".
func SQL(expression string) (*Filter, error) {
	if len(expression) > maxLength {
		return nil, tooLong(expression)
	}
	expr, err := parse(expression)
	if err != nil {
		return nil, err
	}
	return &Filter{expr: expr}, nil
}

func tooLong(expression string) error {
	return &Error{strings.ToValidUTF8(expression[:64], "") + "…", maxLength, fmt.Sprintf("the expression has %d bytes; the limit is %d", len(expression), maxLength)}
}

// Match reports whether a message with this tag and these properties matches.
func (f *Filter) Match(tag string, properties map[string]string) bool {
	switch {
	case f == nil:
		return true
	case f.tags != nil:
		return f.tags[tag]
	}
	return f.expr.eval(&message{tag, properties}) == isTrue
}

// A message is the input of an expression.
type message struct {
	tag        string
	properties map[string]string
}

// property returns a property, and false if it is missing (NULL).
func (m *message) property(name string) (string, bool) {
	if name == "TAGS" {
		return m.tag, m.tag != ""
	}
	v, ok := m.properties[name]
	return v, ok
}

type tokenKind int8

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenNumber
	tokenString
	tokenSign
)

// A token is a word, a number, a string or a sign of an expression.
type token struct {
	kind tokenKind
	text string // of a string: without its quotes
	at   int
}

// is reports whether the token is a word of the language, or a sign.
func (t token) is(w string) bool {
	return t.kind == tokenWord && strings.EqualFold(t.text, w) || t.kind == tokenSign && t.text == w
}

// reserved are the words that cannot be properties.
var reserved = map[string]bool{
	"AND": true, "OR": true, "NOT": true, "BETWEEN": true, "IN": true, "IS": true, "NULL": true, "TRUE": true, "FALSE": true,
}

func isWordStart(r rune) bool { return r == '_' || r == '$' || unicode.IsLetter(r) }

func isWord(r rune) bool {
	return isWordStart(r) || unicode.IsDigit(r) || r == '.' || r == '-'
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// scan cuts an expression into tokens; the last one is tokenEnd.
func scan(s string) ([]token, error) {
	var out []token
	for i := 0; i < len(s); {
		r, width := utf8.DecodeRuneInString(s[i:])
		start := i
		switch {
		case unicode.IsSpace(r):
			i += width
			continue
		case r == '\'':
			text, end, err := scanString(s, i)
			if err != nil {
				return nil, err
			}
			out, i = append(out, token{tokenString, text, start}), end
		case isDigit(s[i]) || (r == '-' || r == '+' || r == '.') && i+1 < len(s) && (isDigit(s[i+1]) || s[i+1] == '.'):
			i = scanNumber(s, i)
			out = append(out, token{tokenNumber, s[start:i], start})
		case isWordStart(r):
			i += len(s[i:]) - len(strings.TrimLeftFunc(s[i:], isWord))
			out = append(out, token{tokenWord, s[start:i], start})
		default:
			n := signLength(s[i:])
			if n == 0 {
				return nil, &Error{s, i, "the character " + string(r) + " is not part of the syntax"}
			}
			i += n
			out = append(out, token{tokenSign, s[start:i], start})
		}
	}
	return append(out, token{tokenEnd, "", len(s)}), nil
}

// signLength returns the length of the sign that s begins with, 0 if there is none.
func signLength(s string) int {
	for _, sign := range []string{"<>", "<=", ">=", "!=", "<", ">", "=", "(", ")", ","} {
		if strings.HasPrefix(s, sign) {
			return len(sign)
		}
	}
	return 0
}

// scanString reads a quoted string. Two quotes in the string are one quote.
func scanString(s string, start int) (text string, end int, err error) {
	var b strings.Builder
	for i := start + 1; i < len(s); i++ {
		switch {
		case s[i] != '\'':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '\'':
			b.WriteByte('\'')
			i++
		default:
			return b.String(), i + 1, nil
		}
	}
	return "", 0, &Error{s, start, "the string that begins here has no closing quote"}
}

// scanNumber returns where the number ends that begins at i.
func scanNumber(s string, i int) int {
	if s[i] == '-' || s[i] == '+' {
		i++
	}
	for i < len(s) {
		switch c := s[i]; {
		case isDigit(c), c == '.':
			i++
		case (c == 'e' || c == 'E') && i+1 < len(s) && (isDigit(s[i+1]) || (s[i+1] == '-' || s[i+1] == '+') && i+2 < len(s) && isDigit(s[i+2])):
			i += 2
		default:
			return i
		}
	}
	return i
}

// maxDepth bounds how deep parentheses and NOTs can be nested.
const maxDepth = 64

// The grammar. Parts in brackets are optional:
//
//	or        = and { OR and }
//	and       = not { AND not }
//	not       = [ NOT ] primary, any number of NOTs
//	primary   = "(" or ")" | TRUE | FALSE | operand [ rest ]
//	rest      = compare operand | IS [NOT] NULL | [NOT] BETWEEN operand AND operand | [NOT] IN "(" operand { "," operand } ")"
//	compare   = "=" | "<>" | "!=" | "<" | "<=" | ">" | ">="
//	operand   = property | number | 'string' | TRUE | FALSE
//
// Words of the language are recognised in any case; properties are not.
type parser struct {
	expression string
	tokens     []token
	depth      int
}

func parse(expression string) (node, error) {
	tokens, err := scan(expression)
	if err != nil {
		return nil, err
	}
	p := &parser{expression: expression, tokens: tokens}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if t := p.peek(); t.kind != tokenEnd {
		return nil, p.unexpected(t, "AND, OR or the end")
	}
	return n, nil
}

func (p *parser) peek() token { return p.tokens[0] }

func (p *parser) next() token {
	t := p.tokens[0]
	if t.kind != tokenEnd {
		p.tokens = p.tokens[1:]
	}
	return t
}

// word takes the next token if it is that word or sign.
func (p *parser) word(w string) bool {
	if p.peek().is(w) {
		p.next()
		return true
	}
	return false
}

func (p *parser) unexpected(t token, wanted string) error {
	found := "'" + t.text + "'"
	if t.kind == tokenEnd {
		found = "the end"
	}
	return &Error{p.expression, t.at, "found " + found + " where " + wanted + " is expected"}
}

func (p *parser) expect(w string) error {
	if t := p.peek(); !p.word(w) {
		return p.unexpected(t, "'"+w+"'")
	}
	return nil
}

func (p *parser) or() (node, error) {
	return p.chain("OR", p.and, func(l, r node) node { return notNode{andNode{notNode{l}, notNode{r}}} }) // De Morgan
}

func (p *parser) and() (node, error) {
	return p.chain("AND", p.not, func(l, r node) node { return andNode{l, r} })
}

// chain parses operands with a word between any two.
func (p *parser) chain(word string, operand func() (node, error), join func(l, r node) node) (node, error) {
	left, err := operand()
	for err == nil && p.word(word) {
		var right node
		if right, err = operand(); err == nil {
			left = join(left, right)
		}
	}
	return left, err
}

func (p *parser) not() (node, error) {
	t := p.peek()
	if p.depth++; p.depth > maxDepth {
		return nil, &Error{p.expression, t.at, "nested deeper than " + strconv.Itoa(maxDepth)}
	}
	defer func() { p.depth-- }()
	if p.word("NOT") {
		n, err := p.not()
		return notNode{n}, err
	}
	if p.word("(") {
		n, err := p.or()
		if err == nil {
			err = p.expect(")")
		}
		return n, err
	}
	return p.primary()
}

func (p *parser) primary() (node, error) {
	o, err := p.operand()
	if err != nil {
		return nil, err
	}
	t := p.peek()
	for _, op := range []string{"=", "<>", "!=", "<=", ">=", "<", ">"} {
		if p.word(op) {
			right, err := p.operand()
			return compareNode{o, right, strings.Replace(op, "!=", "<>", 1)}, err
		}
	}
	if p.word("IS") {
		negated := p.word("NOT")
		return maybeNot(nullNode{o}, negated), p.expect("NULL")
	}
	negated := p.word("NOT")
	switch {
	case p.word("BETWEEN"):
		n, err := p.between(o)
		return maybeNot(n, negated), err
	case p.word("IN"):
		n, err := p.in(o)
		return maybeNot(n, negated), err
	case negated:
		return nil, p.unexpected(p.peek(), "BETWEEN or IN")
	case o.property != "" || o.constant.kind == kindBool:
		return boolNode{o}, nil
	}
	return nil, p.unexpected(t, "a comparison")
}

func maybeNot(n node, negated bool) node {
	if negated {
		return notNode{n}
	}
	return n
}

func (p *parser) between(o operand) (node, error) {
	low, err := p.operand()
	if err == nil {
		err = p.expect("AND")
	}
	if err != nil {
		return nil, err
	}
	high, err := p.operand()
	return betweenNode{o, low, high}, err
}

func (p *parser) in(o operand) (node, error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	n := inNode{of: o}
	for {
		item, err := p.operand()
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, item)
		if !p.word(",") {
			return n, p.expect(")")
		}
	}
}

func (p *parser) operand() (operand, error) {
	t := p.next()
	switch {
	case t.kind == tokenString:
		return operand{constant: value{kind: kindString, text: t.text}}, nil
	case t.kind == tokenNumber:
		n, ok := readNumber(t.text)
		if !ok {
			return operand{}, &Error{p.expression, t.at, "'" + t.text + "' is not a number"}
		}
		if n.kind == tooLarge {
			return operand{}, &Error{p.expression, t.at, "'" + t.text + "' is too large for an integer of 64 bits; write it with a fraction, " + t.text + ".0, to compare rounded numbers"}
		}
		return operand{constant: value{kind: kindNumber, text: t.text, number: n}}, nil
	case t.is("TRUE"), t.is("FALSE"):
		return operand{constant: value{kind: kindBool, text: strings.ToLower(t.text)}}, nil
	case t.kind == tokenWord && !reserved[strings.ToUpper(t.text)]:
		return operand{property: t.text}, nil
	}
	return operand{}, p.unexpected(t, "a property, a number or a 'string'")
}

// A truth is one of SQL's three values.
type truth int8

const (
	unknown truth = iota
	isFalse
	isTrue
)

func truthOf(b bool) truth {
	if b {
		return isTrue
	}
	return isFalse
}

func not(t truth) truth {
	switch t {
	case isTrue:
		return isFalse
	case isFalse:
		return isTrue
	}
	return unknown
}

// A node is a part of an expression that is true, false or unknown.
type node interface{ eval(*message) truth }

type (
	andNode     struct{ left, right node }
	notNode     struct{ of node }
	constNode   struct{ value truth }
	nullNode    struct{ of operand } // IS NULL
	betweenNode struct{ of, low, high operand }
	inNode      struct {
		of   operand
		list []operand
	}
	compareNode struct {
		left, right operand
		op          string
	}
	// boolNode is a property used as a condition: true if its value is true.
	boolNode struct{ of operand }
)

func (n andNode) eval(m *message) truth {
	l := n.left.eval(m)
	if l == isFalse {
		return isFalse
	}
	switch r := n.right.eval(m); {
	case r == isFalse:
		return isFalse
	case l == isTrue && r == isTrue:
		return isTrue
	}
	return unknown
}

func (n notNode) eval(m *message) truth { return not(n.of.eval(m)) }

func (n constNode) eval(*message) truth { return n.value }

func (n nullNode) eval(m *message) truth { return truthOf(n.of.value(m).kind == kindNull) }

func (n boolNode) eval(m *message) truth {
	return compare(n.of.value(m), value{kind: kindBool, text: "true"}, "=")
}

func (n betweenNode) eval(m *message) truth {
	v := n.of.value(m)
	return andNode{constNode{compare(v, n.low.value(m), ">=")}, constNode{compare(v, n.high.value(m), "<=")}}.eval(m)
}

func (n inNode) eval(m *message) truth {
	v := n.of.value(m)
	result := isFalse
	for _, o := range n.list {
		switch compare(v, o.value(m), "=") {
		case isTrue:
			return isTrue
		case unknown:
			result = unknown
		}
	}
	return result
}

func (n compareNode) eval(m *message) truth { return compare(n.left.value(m), n.right.value(m), n.op) }

type kind int8

const (
	kindNull   kind = iota
	kindText        // of a property: converted to a number or a boolean where one is compared
	kindString      // 'quoted'
	kindNumber
	kindBool
)

// A value is the value of an operand for one message.
type value struct {
	kind   kind
	text   string
	number number // of kindNumber
}

// asNumber returns v as a number. Properties are text, so the text "15" is the number 15.
func (v value) asNumber() (number, bool) {
	switch v.kind {
	case kindNumber:
		return v.number, true
	case kindText:
		return readNumber(strings.TrimSpace(v.text))
	}
	return number{}, false
}

// A number is an integer of 64 bits, or a decimal number as a float64 (RocketMQ: Long and Double of
// Java).
type number struct {
	kind    numberKind
	integer int64
	float   float64 // of all kinds, rounded
}

type numberKind int8

const (
	decimal numberKind = iota
	integer
	tooLarge // written as an integer, and beyond 64 bits
)

// readNumber reads a number: digits with an optional sign, fraction and exponent. Other texts that
// Go or Java reads as numbers are none, for example Infinity, 0x10 and 1_000.
func readNumber(s string) (number, bool) {
	if strings.Trim(s, "+-.eE") == "" || scanNumber(s, 0) != len(s) {
		return number{}, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil { // for example 1.2.3, and 1e999
		return number{}, false
	}
	n := number{float: f}
	if strings.ContainsAny(s, ".eE") {
		return n, true
	}
	n.kind = integer
	if n.integer, err = strconv.ParseInt(s, 10, 64); err != nil {
		n.kind = tooLarge
	}
	return n, true
}

// compareNumbers compares integers exactly, and other numbers as float64. An integer of 64 bits
// cannot be compared with one that is too large for it; in RocketMQ such a text is no number.
func compareNumbers(x, y number, op string) truth {
	switch {
	case x.kind == integer && y.kind == integer:
		return truthOf(holds(x.integer, y.integer, op))
	case x.kind != decimal && y.kind != decimal && x.kind != y.kind:
		return unknown
	}
	return truthOf(holds(x.float, y.float, op))
}

// An operand is a property or a constant.
type operand struct {
	property string // its name; empty for a constant
	constant value
}

func (o operand) value(m *message) value {
	if o.property == "" {
		return o.constant
	}
	if v, ok := m.property(o.property); ok {
		return value{kind: kindText, text: v}
	}
	return value{}
}

// compare compares its operands
//   - as numbers if one of them is a number, or if op is <, <=, > or >=,
//   - as booleans if one of them is a boolean, and
//   - as text otherwise.
func compare(l, r value, op string) truth {
	if l.kind == kindNull || r.kind == kindNull {
		return unknown
	}
	ordered := op != "=" && op != "<>"
	switch {
	case l.kind == kindNumber || r.kind == kindNumber || ordered:
		x, ok1 := l.asNumber()
		y, ok2 := r.asNumber()
		if !ok1 || !ok2 {
			return unknown
		}
		return compareNumbers(x, y, op)
	case l.kind == kindBool || r.kind == kindBool:
		x, err1 := strconv.ParseBool(strings.ToLower(l.text))
		y, err2 := strconv.ParseBool(strings.ToLower(r.text))
		if err1 != nil || err2 != nil {
			return unknown
		}
		return truthOf((x == y) == (op == "="))
	}
	return truthOf((l.text == r.text) == (op == "="))
}

func holds[T int64 | float64](x, y T, op string) bool {
	switch op {
	case "=":
		return x == y
	case "<>":
		return x != y
	case "<":
		return x < y
	case "<=":
		return x <= y
	case ">":
		return x > y
	}
	return x >= y
}
