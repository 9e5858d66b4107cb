package transporttest

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

var connectionCases = []testCase{
	{name: "NotConnected", run: func(e *env) {
		if e.Disconnect == nil {
			e.Log("the fixture has no Disconnect")
			return
		}
		e.setup(settings.TopicNormal)
		e.send(e.message("x"))
		d := e.one()
		e.Disconnect()
		e.sleep(e.server.Unit) // the transport notices it
		unknown := e.message("x")
		unknown.Topic = e.name("unknown")
		for _, call := range []struct {
			name string
			do   func(ctx context.Context) error
		}{
			{"Send", func(ctx context.Context) error {
				return e.Transport.Send(ctx, []*tidegate.Message{e.message("y")})[0].Err
			}},
			{"Send to a topic without a known server", func(ctx context.Context) error {
				return e.Transport.Send(ctx, []*tidegate.Message{unknown})[0].Err
			}},
			{"Receive", func(ctx context.Context) error {
				_, err := e.Transport.Receive(ctx, e.request())
				return err
			}},
			{"Ack", func(ctx context.Context) error {
				return e.Transport.Ack(ctx, []*tidegate.Delivery{d})[0]
			}},
		} {
			e.wantNotConnected(call.name, call.do(e.Context()))
		}
		start := time.Now()
		waiting, cancel := context.WithTimeoutCause(transport.AwaitConnection(e.Context()), e.server.Unit, errEnough)
		defer cancel()
		results := e.Transport.Send(waiting, []*tidegate.Message{e.message("y")})
		e.wantNotConnected("Send that waits for a connection", results[0].Err)
		if !errors.Is(results[0].Err, errEnough) {
			e.Errorf("Send that waits for a connection: %v, want the cause of the context", results[0].Err)
		}
		e.after(start, e.server.Unit, "Send that waits for a connection failed")
	}},
}

// wantNotConnected checks the error of an attempt that had no connection.
func (e *env) wantNotConnected(what string, err error) {
	e.Helper()
	te, ok := errors.AsType[*tidegate.Error](err)
	if !ok || !te.NotConnected || te.MaybeStored || tidegate.Classify(err) != tidegate.ClassTransient {
		e.Errorf("%s: %#v, want a transient error with NotConnected", what, err)
	}
}
