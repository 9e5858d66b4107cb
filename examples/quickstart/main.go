// Command quickstart shows tidegate in a few seconds, with a real
// producer and real consumers over gRPC on this machine:
//
// A backlog grows to its limit, and the broker rejects the next send with 530 TOO_MANY_REQUESTS.
// The producer backs off as gRPC connections do. A consumer drains the backlog, and the send
// succeeds. Another handler fails on one message again and again: after the last step of the retry
// schedule the message becomes a dead letter.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	b, err := broker.Open(broker.Options{MinInvisibleDuration: time.Millisecond})
	if err != nil {
		return err
	}
	defer b.Close()
	s, err := server.New(b, server.Options{MinLongPolling: time.Millisecond})
	if err != nil {
		return err
	}
	defer s.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()

	t, err := rocketmq.New(lis.Addr().String(), rocketmq.Options{})
	if err != nil {
		return err
	}
	defer t.Close()
	story := &story{out: out, broker: b, transport: t, start: time.Now()}
	story.say("a broker with a backlog limit of %d messages is on %s", limit, lis.Addr())
	if err := story.throttle(ctx); err != nil {
		return err
	}
	if err := story.retry(ctx); err != nil {
		return err
	}
	return errors.Join(story.end(), t.Close(), s.Close(), <-served)
}
