package oteltidegate_test

import (
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// ProducerOptions and PushOptions call the program's functions too.
func TestTheFunctionsOfTheProgramAreCalled(t *testing.T) {
	run(t, func(e *env) {
		calls := map[string]int{}
		send := e.i.ProducerOptions(producer.Options{OnAttempt: func(producer.Attempt) { calls["OnAttempt"]++ }})
		send.OnAttempt(producer.Attempt{})
		push := e.i.PushOptions(consumer.PushOptions{
			OnDelivery:       func(consumer.Outcome) { calls["OnDelivery"]++ },
			OnReceiveFailure: func(consumer.ReceiveFailure) { calls["OnReceiveFailure"]++ },
		})
		push.OnDelivery(consumer.Outcome{Delivery: &tidegate.Delivery{}})
		push.OnReceiveFailure(consumer.ReceiveFailure{Err: tidegate.ErrUnavailable})
		for _, name := range []string{"OnAttempt", "OnDelivery", "OnReceiveFailure"} {
			assert.That(t, calls[name] == 1, "the program's %s was called %d times, want once", name, calls[name])
		}
	})
}

// PushOptions does not change the middleware of its argument, also if the slice has capacity for
// another one.
func TestPushOptionsCopiesTheMiddleware(t *testing.T) {
	run(t, func(e *env) {
		called := false
		own := make([]consumer.Middleware, 1, 2)
		own[0] = func(next consumer.Handler) consumer.Handler { called = true; return next }
		assert.Equal(t, "middlewares", len(e.i.PushOptions(consumer.PushOptions{Middleware: own}).Middleware), 2)
		if own[0](nil); !called {
			t.Error("the program's middleware was replaced")
		}
	})
}

// An attempt that ends an operation without success counts with the reason, every other attempt
// without one.
func TestTheLastAttemptHasTheStopReason(t *testing.T) {
	run(t, func(e *env) {
		attempt := e.i.ProducerOptions(producer.Options{}).OnAttempt
		attempt(producer.Attempt{Operation: "send", Topic: "orders", Class: tidegate.ClassTransient})
		attempt(producer.Attempt{Operation: "send", Topic: "orders", Class: tidegate.ClassPermanent, Stop: producer.StopPermanent})
		got := e.series()
		for _, attributes := range []string{
			"tidegate.class=transient",
			"tidegate.class=permanent tidegate.stop_reason=permanent failure",
		} {
			name := "tidegate.producer.attempts messaging.destination.name=orders messaging.operation.name=send " + attributes
			assert.That(t, got[name] == "1", "%s is %q, want 1; all: %v", name, got[name], got)
		}
	})
}
