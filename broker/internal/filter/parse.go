package filter

import (
	"strconv"
	"strings"
)

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
