package filter

import (
	"strconv"
	"strings"
)

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
