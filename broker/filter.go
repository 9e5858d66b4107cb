package broker

import (
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/transport"
)

// compileFilter returns what decides which messages a receive wants: 40010
// with the position for an expression that cannot be understood. Nil takes all.
func compileFilter(f transport.Filter) (*filter.Filter, error) {
	compile := filter.Tags
	if f.SQL {
		compile = filter.SQL
	}
	c, err := compile(f.Expression)
	if e, ok := errors.AsType[*filter.Error](err); ok {
		return nil, fail.New(tidegate.CodeIllegalFilterExpression, "filter expression", "%s", e.Error())
	}
	return c, err
}
