package broker

import (
	"errors"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/store"
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

// wants reports whether the receive is to get a message. Its filter is for
// messages of its topic: those of others, in a retry topic that serves several,
// are not its to pass over. In a retry topic for one topic, those of others are of another group,
// whose retry topic happens to have the same name: topic-group-RETRY may be cut in two ways.
func (p *Poll) wants(m *store.Message) bool {
	if of := deadletter.RealTopic(m, ""); p.shared && of != p.Topic {
		return true
	} else if p.retry && of != "" && of != p.Topic {
		return false
	}
	return p.match.Match(m.Tag, m.Properties)
}
