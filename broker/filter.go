package broker

import (
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// compileFilter returns a function that tells whether a tag matches, or nil
// if every message does. A tag filter is "*", or tags joined by "||".
func compileFilter(f transport.Filter) (func(tag string) bool, error) {
	if f.SQL {
		return nil, newError(tidegate.CodeIllegalFilterExpression, "filter expression",
			"%q is SQL92, which this broker does not evaluate; filter by tag", f.Expression)
	}
	expr := strings.TrimSpace(f.Expression)
	if expr == "" || expr == "*" {
		return nil, nil
	}
	tags := map[string]bool{}
	for _, tag := range strings.Split(expr, "||") {
		tag = strings.TrimSpace(tag)
		if tag == "" || strings.Contains(tag, "|") {
			return nil, newError(tidegate.CodeIllegalFilterExpression, "filter expression",
				"%q has an empty tag, or a single '|'; write tags as in \"a || b\"", f.Expression)
		}
		tags[tag] = true
	}
	return func(tag string) bool { return tags[tag] }, nil
}
