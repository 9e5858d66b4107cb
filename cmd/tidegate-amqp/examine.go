package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/transport"
)

// examine tests the set-up as a client of Artemis, until the first step that fails.
func examine(ctx context.Context, d *cli.Patient) {
	address := d.Server.Host()
	if !d.Reach(ctx, "amqp", address, "Artemis listens on 5672 for AMQP, and on 61616 for all of its protocols") || !spoken(ctx, d, address) {
		return
	}
	t, err := d.Server.Transport(ctx)
	if err != nil {
		d.Failed("credentials", cli.UsageError{Err: err, Command: d.Command}, "correct the context, or the flags")
		return
	}
	defer func() { _ = t.Close() }() // only the steps count
	if !authenticated(ctx, d, t) || d.Topic == "" || !topic(ctx, d, t) {
		return
	}
	if d.Send && !d.Probe(ctx, t, 1, sendRemedy) {
		return
	}
	if d.Group != "" {
		receive(ctx, d, t)
	}
}

// sasl is the header of a client that begins with SASL.
const sasl = "AMQP\x03\x01\x00\x00"

// spoken tests whether the port speaks AMQP, with TLS or without, as the address has it. Each probe
// has its own timeout, because an Artemis does not respond to unexpected bytes.
func spoken(ctx context.Context, d *cli.Patient, address string) bool {
	probe := func(work func(context.Context) error) error {
		bounded, cancel := context.WithTimeout(ctx, min(d.Timeout, 3*time.Second))
		defer cancel()
		return work(bounded)
	}
	var hasTLS bool
	handshake := func(ctx context.Context) (err error) {
		hasTLS, err = cli.SpeaksTLS(ctx, address)
		return err
	}
	if encrypted(d.Server) {
		if err := probe(handshake); !hasTLS {
			if err == nil {
				err = errors.New("the port does not speak TLS")
			}
			return d.Failed("amqp tls", cli.Classed(err, tidegate.ErrInvalid), "give the address as amqp://, or use the port of an acceptor with sslEnabled=true")
		}
		return probe(func(ctx context.Context) error {
			if !d.Certificate(ctx, "amqp tls", address) {
				return tidegate.ErrInvalid
			}
			return nil
		}) == nil
	}
	var first []byte
	greeting := func(text string) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			first, err = cli.FirstBytes(ctx, address, text)
			return err
		}
	}
	err := probe(greeting(sasl))
	if !strings.HasPrefix(string(first), "AMQP") {
		_ = probe(handshake) // only its success is significant
		if hasTLS {
			return d.Failed("amqp protocol", fmt.Errorf("the port speaks TLS, and the address has none: %w", tidegate.ErrInvalid),
				"give the address as amqps://, and --cacert FILE or --tls-skip-verify for a certificate of your own")
		}
		if err != nil { // a server of HTTP waits for the end of the line
			_ = probe(greeting("GET / HTTP/1.0\r\n\r\n"))
		}
	}
	switch {
	case strings.HasPrefix(string(first), "AMQP\x03"):
		d.OK("amqp protocol", "the port speaks AMQP 1.0 in plain text")
		return true
	case strings.HasPrefix(string(first), "AMQP"):
		return d.Failed("amqp protocol", fmt.Errorf("the port speaks another version of AMQP, %x: %w", first[4:min(8, len(first))], tidegate.ErrInvalid),
			"RabbitMQ and other servers of AMQP 0.9.1 are not supported")
	case strings.HasPrefix(string(first), "HTTP/1"):
		return d.Failed("amqp protocol", fmt.Errorf("the port speaks HTTP: %w", tidegate.ErrInvalid), "this is the web console of Artemis; use the port of its AMQP acceptor, by default 5672")
	}
	if err == nil {
		err = fmt.Errorf("%d unknown bytes", len(first))
	}
	return d.Failed("amqp protocol", fmt.Errorf("the port does not speak AMQP 1.0 (%w): %w", err, tidegate.ErrInvalid),
		"use a port whose acceptor has the protocol AMQP (protocols=AMQP in broker.xml), by default 5672 or 61616")
}

// authenticated opens the connection, which authenticates.
func authenticated(ctx context.Context, d *cli.Patient, t cli.Transport) bool {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	who := "without a name (SASL ANONYMOUS)"
	switch {
	case d.Server.Key != "":
		who = "as the user " + d.Server.Key + " (SASL PLAIN)"
	case external(d.Server):
		who = "by its certificate (SASL EXTERNAL)"
	}
	if err := t.Ping(bounded); err != nil {
		remedy := "the port responds, but not as an Artemis: read the reason, and the log of the server"
		if errors.Is(err, tidegate.ErrUnauthorized) {
			remedy = "check the user (--access-key) and the password (--secret-file); 'artemis user list' has the users, saslMechanisms of the acceptor has the ways to authenticate"
		}
		return d.Failed("credentials", fmt.Errorf("the client comes %s: %w", who, err), remedy)
	}
	d.OK("credentials", "the server accepts the client %s", who)
	return true
}

// topic opens a link to the address of the topic.
func topic(ctx context.Context, d *cli.Patient, t cli.Transport) bool {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	if err := t.Ping(bounded, d.Topic); err != nil {
		remedy := "read the reason, and the log of the server"
		switch {
		case errors.Is(err, tidegate.ErrTopicNotFound):
			remedy = fmt.Sprintf("create it: artemis address create --name %s --multicast; or set auto-create-addresses in its address settings", output.Quote(d.Topic))
		case errors.Is(err, tidegate.ErrForbidden):
			remedy = fmt.Sprintf("give a role of the user the permission send for %s, and createAddress if the address does not exist (security-settings in broker.xml)", d.Topic)
		}
		return d.Failed("topic", err, remedy)
	}
	d.OK("topic", "the server takes messages for the address %s; it discards them while the address has no queue", output.Safe(d.Topic))
	return true
}

// sendRemedy returns the remedy for a failed send.
func sendRemedy(err error) string {
	if errors.Is(err, tidegate.ErrThrottled) {
		return "the address or the memory is full, or the disk: consume messages, or raise max-size-bytes of the address, global-max-size or max-disk-usage; 'artemis queue stat' shows which queue is long"
	}
	return "read the reason, and the log of the server"
}

// patience is the time that an attached receiver waits for a message.
const patience = time.Second

// receive attaches a receiver to the queue of the group, with credit for one message, which it
// releases. The transport first checks that the dead letters have a queue.
func receive(ctx context.Context, d *cli.Patient, t cli.Transport) {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	group, queue := output.Safe(d.Group), output.Safe(d.Topic+"."+d.Group)
	ds, err := t.Receive(bounded, transport.ReceiveRequest{
		Group: d.Group, Topic: d.Topic, Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute, Wait: patience,
	})
	switch {
	case errors.Is(err, tidegate.ErrTopicNotFound):
		d.Failed("group", err, fmt.Sprintf("create the queue: artemis queue create --name %s --address %s --multicast --durable --preserve-on-no-consumers; or set auto-create-queues in the address settings", output.Quote(queue), output.Quote(d.Topic)))
		return
	case errors.Is(err, tidegate.ErrNotFound):
		d.Failed("dead letters", err, fmt.Sprintf("create the queue, or Artemis discards dead letters: artemis queue create --name %s --address %[1]s --anycast --durable --preserve-on-no-consumers --auto-create-address", output.Quote(group+".DLQ")))
		return
	case errors.Is(err, tidegate.ErrForbidden):
		d.Failed("group", err, fmt.Sprintf("give a role of the user the permission consume for %s and %s.DLQ, send for %s.DLQ, and createDurableQueue and createAddress if they do not exist (security-settings in broker.xml)", queue, group, group))
		return
	case err != nil:
		d.Failed("group", err, "read the reason, and the log of the server")
		return
	}
	d.OK("dead letters", "those of group %s go to the queue %s.DLQ", group, group)
	if len(ds) == 0 {
		d.OK("group", "a receiver is attached to the queue %s with credit, and no message arrived within %v: the queue is empty, or other consumers hold its messages ('artemis queue stat')", queue, patience)
		return
	}
	if _, err := t.Settle(bounded, ds[0], transport.Verdict{Kind: transport.Release}); err != nil {
		d.Failed("group", fmt.Errorf("message %s arrived, and its release failed: %w", output.Safe(ds[0].ID), err), "the server delivers the message again when the connection has ended")
		return
	}
	d.OK("group", "message %s arrived from the queue %s and was released, without an attempt", output.Safe(ds[0].ID), queue)
}
