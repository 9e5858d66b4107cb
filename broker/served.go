package broker

import (
	"fmt"

	"github.com/tidegate/tidegate/broker/internal/serving"
)

// served has the operations of a broker that only package broker/server calls, so that the methods
// of Broker are those of programs. serving.Of returns it.
type served struct{ *Broker }

var _ serving.Engine = served{}

func serve(b *Broker) served { return served{b} }

func init() {
	serving.Of = func(b any) serving.Engine {
		broker, ok := b.(*Broker)
		if !ok {
			panic(fmt.Sprintf("serving.Of: %T is not a *broker.Broker", b))
		}
		return serve(broker)
	}
}
