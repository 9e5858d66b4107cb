// Command officialclient shows that Apache RocketMQ's own Go client works with
// a tidegate broker, unchanged and with its defaults (TLS included). It is a
// module of its own, so that tidegate does not depend on the client. Of tidegate
// it imports the client of the administration, broker/admin: all messages go through
// the official client. Start a broker and run it from this directory:
//
//	tidegate serve
//	go run .
//
// Four scenes run side by side. In each a producer sends; then
//
//   - normal: a push consumer fails on a message once and gets it again by the
//     group's retry schedule; it fails on another one until that is a dead
//     letter, which a simple consumer then reads;
//   - simple: a simple consumer receives, changes invisible durations, has a
//     stale receipt handle rejected, and acknowledges;
//   - fifo: a push consumer sees every message group in order, also while one
//     of its messages waits for a retry or ends as a dead letter, and the other
//     message groups do not wait for it;
//   - transaction: of three half messages one is committed, one rolled back, and
//     one left alone, which the broker asks about until it is committed.
//
// It asserts every step, and exits with 1 if a step failed. It creates topics and consumer groups
// through broker/admin, with names of this run, and deletes them at the end.
//
// TLS is on by default. The flag --tls=false turns it off, and so does the client's own environment
// variable rocketmq.client.enableSsl=false. The client's log goes to the directory in
// rocketmq.client.logRoot, by default to a temporary directory that is kept only if the run fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// timeLimit ends a run that hangs. A run takes about 12 s, and 23 s more if
// stopping a push consumer takes the client's longest time.
const timeLimit = 80 * time.Second

// secretVariable is the environment variable with the secret: arguments of a
// program are there for all users of a machine to read.
const secretVariable = "OFFICIALCLIENT_SECRET"

// keys are shown to the broker with every request, if there are any.
var keys credentials.SessionCredentials

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:8081", "`address` of the broker for clients (gRPC)")
	http := flag.String("http", "127.0.0.1:8082", "`address` of the broker for administration (HTTP); with https:// before it, the certificate is not verified either")
	flag.BoolVar(&rmq.EnableSsl, "tls", rmq.EnableSsl, "connect with TLS; the certificate is not verified")
	flag.StringVar(&keys.AccessKey, "access-key", "", "access `key`, for a broker with keys; its secret is in "+secretVariable)
	flag.Parse()
	keys.AccessSecret = os.Getenv(secretVariable)
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "officialclient: it takes no arguments, only flags; it got %q\n", flag.Args())
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), timeLimit,
		fmt.Errorf("it took longer than %v", timeLimit))
	err := logged(func() error { return run(ctx, *endpoint, *http, os.Stdout) })
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "officialclient:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoint, http string, out io.Writer) error {
	client, err := newAdmin(http)
	if err != nil {
		return err
	}
	defer client.Close()
	s := &story{
		endpoint: endpoint, admin: client, out: out, start: time.Now(),
		prefix: "officialclient-" + strconv.FormatInt(time.Now().UnixMicro(), 36) + "-",
	}
	s.say("all", "the official client meets the broker on %s, TLS %s", endpoint, onOff(rmq.EnableSsl))
	scenes := map[string]func(scene, context.Context) error{
		"normal": scene.normal, "simple": scene.simple, "fifo": scene.fifo, "transaction": scene.transaction,
	}
	var wg sync.WaitGroup
	for name, play := range scenes {
		sc := scene{s, name}
		wg.Go(func() {
			if err := play(sc, ctx); err != nil {
				s.fault(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	wg.Wait()
	s.tidy(ctx)
	if err := errors.Join(s.faults...); err != nil {
		return err
	}
	s.say("all", "all expected steps happened")
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
