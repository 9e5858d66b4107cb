// Command litetopics sends requests and gets a reply to each by lite topics: short-lived topics
// below one parent, here one for each requester. A worker sends its reply to the lite topic that the
// request names, so that no requester gets the replies of another one. The command prints each
// request with its reply, and exits with 1 if one is wrong or missing.
//
// Without -endpoint the broker is part of the command. With -endpoint it is a tidegate broker or a
// RocketMQ from 5.5 on, which needs the topics and groups before:
//
//	tidegate topic create lite-requests
//	tidegate topic create lite-replies type=LITE
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The topics and groups. Replies are the lite topics of a parent.
const (
	requests, workers   = "lite-requests", "lite-workers"
	replies, requesters = "lite-replies", "lite-requesters"
)

const (
	sessions = 3 // requesters at the same time
	each     = 3 // requests of each
)

func main() {
	endpoint := flag.String("endpoint", "", "`address` of a broker for clients (gRPC); empty means a broker in this process")
	flag.Parse()
	if err := run(context.Background(), *endpoint, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "litetopics:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoint string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	t, err := connect(ctx, endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return err
	}
	defer p.Close()

	worker, err := consumer.NewPush(t, consumer.Subscription{Group: workers, Topic: requests}, reply(p), consumer.PushOptions{})
	if err != nil {
		return err
	}
	stop := start(ctx, worker)
	defer func() { err = errors.Join(err, stop()) }()

	failures := make([]error, sessions)
	var mu sync.Mutex // of out
	var running sync.WaitGroup
	for i := range sessions {
		running.Go(func() {
			failures[i] = session(ctx, t, p, fmt.Sprintf("session-%d", i), func(line string) {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintln(out, line)
			})
		})
	}
	running.Wait()
	if err = errors.Join(failures...); err == nil {
		fmt.Fprintf(out, "each of %d requests got its reply\n", sessions*each)
	}
	return err
}

// reply is the handler of the worker. It sends the reply to the lite topic of the requester.
func reply(p *producer.Producer) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		_, err := p.Send(ctx, &tidegate.Message{Topic: replies, LiteTopic: d.Properties["reply_to"], Body: bytes.ToUpper(d.Body)})
		return err
	}
}

// session sends requests, one after the other, and waits for the reply to each.
func session(ctx context.Context, t consumer.Transport, p *producer.Producer, name string, say func(string)) (err error) {
	name += "-" + tidegate.NewMessageID() // another one in each run
	answers := make(chan string, each)
	c, err := consumer.NewPush(t, consumer.Subscription{Group: requesters, Topic: replies, Lite: true},
		func(_ context.Context, d *tidegate.Delivery) error { answers <- string(d.Body); return nil }, consumer.PushOptions{})
	if err != nil {
		return err
	}
	stop := start(ctx, c)
	defer func() { err = errors.Join(err, stop()) }()
	if err := c.Subscribe(ctx, name, transport.LiteStart{}); err != nil {
		return err
	}
	for i := range each {
		question := fmt.Sprintf("request %d of %.9s", i, name)
		if _, err := p.Send(ctx, &tidegate.Message{Topic: requests, Properties: map[string]string{"reply_to": name}, Body: []byte(question)}); err != nil {
			return err
		}
		select {
		case answer := <-answers:
			say(question + " → " + answer)
			if answer != fmt.Sprintf("REQUEST %d OF %s", i, bytes.ToUpper([]byte(name[:9]))) {
				return fmt.Errorf("%q got the reply %q", question, answer)
			}
		case <-ctx.Done():
			return fmt.Errorf("%q got no reply: %w", question, context.Cause(ctx))
		}
	}
	return nil
}

// start runs a consumer until stop is called, which returns the result of Run.
func start(ctx context.Context, c *consumer.Push) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// connect returns a transport to the server at endpoint, or a broker in this process.
func connect(ctx context.Context, endpoint string) (transport.Transport, error) {
	if endpoint != "" {
		return rocketmq.New(endpoint, rocketmq.Options{})
	}
	b, err := broker.Open(broker.Options{})
	if err != nil {
		return nil, err
	}
	_, first := b.PutTopic(ctx, requests, settings.Topic{})
	_, second := b.PutTopic(ctx, replies, settings.Topic{Type: settings.TopicLite})
	if err := errors.Join(first, second); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}
