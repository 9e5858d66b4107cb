// Command transport shows how to write a transport for another server: memory.go is
// a transport to a server in this process, and memory_test.go runs the suite of package
// transporttest on it. A producer and a consumer work with it like with every other transport. The
// handler fails once, so the message is delivered twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "transport:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	m := newMemory(func(string) transport.ConsumerSettings {
		return transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps{100 * time.Millisecond}}
	})
	defer m.Close()
	p, err := producer.New(m, producer.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("hello")}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	handler := func(_ context.Context, d *tidegate.Delivery) error {
		fmt.Fprintf(out, "attempt %d: %s\n", d.Attempt, d.Body)
		if d.Attempt == 1 {
			return errors.New("try again")
		}
		cancel()
		return nil
	}
	c, err := consumer.NewPush(m, consumer.Subscription{Group: "billing", Topic: "orders"}, handler, consumer.PushOptions{})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
