package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// fake is a transport whose attempts are functions of their number.
type fake struct {
	send     func(ctx context.Context, n int, msg *tidegate.Message) error
	settings func(ctx context.Context) (transport.ProducerSettings, error)

	mu    sync.Mutex
	calls []time.Time
	ids   []string
	asked atomic.Int64
}

func (f *fake) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	f.mu.Lock()
	f.calls = append(f.calls, time.Now())
	f.ids = append(f.ids, msgs[0].ID)
	n := len(f.calls)
	f.mu.Unlock()
	if f.send != nil {
		if err := f.send(ctx, n, msgs[0]); err != nil {
			return []transport.SendResult{{Err: err}}
		}
	}
	return []transport.SendResult{{Receipt: tidegate.Receipt{MessageID: msgs[0].ID, Topic: msgs[0].Topic, Endpoint: "b:2", Offset: 7}}}
}

func (f *fake) ProducerSettings(ctx context.Context, _ string) (transport.ProducerSettings, error) {
	f.asked.Add(1)
	if f.settings == nil {
		return transport.ProducerSettings{}, nil
	}
	return f.settings(ctx)
}

func (f *fake) gaps() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(f.calls); i++ {
		gaps = append(gaps, f.calls[i].Sub(f.calls[i-1]))
	}
	return gaps
}

// script fails the attempts with errs, in order, and then accepts.
func script(errs ...error) *fake {
	return &fake{send: func(_ context.Context, n int, _ *tidegate.Message) error {
		if n <= len(errs) {
			return errs[n-1]
		}
		return nil
	}}
}

func always(err error) *fake {
	return &fake{send: func(context.Context, int, *tidegate.Message) error { return err }}
}

// blackHole waits for the end of ctx, as with a server that never responds.
func blackHole(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("send at a:1: %w", context.Cause(ctx))
}

func newProducer(t *testing.T, tr Transport, opts Options) *Producer {
	t.Helper()
	p, err := New(tr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func message() *tidegate.Message {
	return &tidegate.Message{Topic: "orders", Body: []byte("hello")}
}

func sendError(t *testing.T, err error) *SendError {
	t.Helper()
	e, ok := errors.AsType[*SendError](err)
	if !ok {
		t.Fatalf("%v (%T) is not a *SendError", err, err)
	}
	return e
}
