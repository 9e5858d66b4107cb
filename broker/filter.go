package broker

import (
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// compileFilter returns the filter of a receive; nil selects all messages. The error for an invalid
// expression is 40010 with the position.
func compileFilter(f tidegate.Filter) (*filter.Filter, error) {
	compile := filter.Tags
	if f.SQL {
		compile = filter.SQL
	}
	c, err := compile(f.Expression)
	if e, ok := errors.AsType[*filter.Error](err); ok {
		return nil, refusal.New(tidegate.CodeIllegalFilterExpression, "filter expression", "%s", e.Error())
	}
	return c, err
}
