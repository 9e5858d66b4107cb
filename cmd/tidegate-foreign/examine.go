package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/transport"
)

// An examination tests a set-up as a client of one system, until the first step that fails. Its
// fields are what differs between the systems.
type examination struct {
	system   string // with an article
	protocol string // the begin of the names of its steps
	secure   string // scheme of addresses with TLS, with ://

	ports      string                                                 // on which such servers listen
	greeting   string                                                 // the first bytes of a client
	spoken     func(first []byte) (ok bool, remedy string, err error) // whether they are a response; err: of a protocol that is named
	text       string                                                 // the port speaks the protocol in plain text
	securePort string                                                 // remedy: the port has no TLS, and the address does
	httpPort   string                                                 // remedy: the port speaks HTTP
	otherPort  string                                                 // remedy: the port speaks something else
	otherName  string                                                 // of the protocol that the port does not speak

	principal   func(context.Context, cli.Server) string // how the client authenticates
	credentials string                                   // remedy: they were rejected

	topic       func(*cli.Patient) string        // result: the topic is usable
	topicRemedy func(*cli.Patient, error) string // of a topic that is not
	sendRemedy  func(*cli.Patient, error) string

	group func(context.Context, *cli.Patient, cli.Transport) // tests the consumer group
}

// otherRemedy is the remedy for errors that have no own one.
const otherRemedy = "read the reason, and the log of the server"

func (x examination) examine(ctx context.Context, d *cli.Patient) {
	hosts := d.Server.Hosts()
	for _, host := range hosts {
		ports := x.ports
		if len(hosts) > 1 {
			ports += "; clients use the other hosts meanwhile"
		}
		if !d.Reach(ctx, x.protocol, host, ports) || !x.speaks(ctx, d, host) {
			return
		}
	}
	t, err := d.Server.Transport(ctx)
	if err != nil {
		d.Failed("credentials", cli.UsageError{Err: err, Command: d.Command}, "correct the context, or the flags")
		return
	}
	defer func() { _ = t.Close() }() // only the steps count
	if !x.authenticated(ctx, d, t) || d.Topic == "" || !x.usable(ctx, d, t) {
		return
	}
	if d.Send && !d.Probe(ctx, t, 1, func(err error) string { return x.sendRemedy(d, err) }) {
		return
	}
	if d.Group != "" {
		x.group(ctx, d, t)
	}
}

// speaks tests whether the port speaks the protocol, with TLS or without, as the address has it.
// Each probe has its own timeout, because servers do not respond to unexpected bytes.
func (x examination) speaks(ctx context.Context, d *cli.Patient, address string) bool {
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
	if d.Server.Encrypted() {
		if err := probe(handshake); !hasTLS {
			if err == nil {
				err = errors.New("the port does not speak TLS")
			}
			return d.Failed(x.protocol+" tls", cli.Classed(err, tidegate.ErrInvalid), x.securePort)
		}
		return probe(func(ctx context.Context) error {
			if !d.Certificate(ctx, x.protocol+" tls", address) {
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
	step := x.protocol + " protocol"
	err := probe(greeting(x.greeting))
	ok, remedy, other := x.spoken(first)
	switch {
	case ok:
		d.OK(step, "%s", x.text)
		return true
	case other != nil:
		return d.Failed(step, other, remedy)
	}
	_ = probe(handshake) // only its success is significant
	if hasTLS {
		return d.Failed(step, fmt.Errorf("the port speaks TLS, and the address has none: %w", tidegate.ErrInvalid),
			"give the address as "+x.secure+", and --cacert FILE or --tls-skip-verify for a certificate of your own")
	}
	if err != nil { // a server of HTTP waits for the end of the line
		_ = probe(greeting("GET / HTTP/1.0\r\n\r\n"))
	}
	if strings.HasPrefix(string(first), "HTTP/1") {
		return d.Failed(step, fmt.Errorf("the port speaks HTTP: %w", tidegate.ErrInvalid), x.httpPort)
	}
	if err == nil {
		err = fmt.Errorf("%d unknown bytes", len(first))
	}
	return d.Failed(step, fmt.Errorf("the port does not speak %s (%w): %w", x.otherName, err, tidegate.ErrInvalid), x.otherPort)
}

// authenticated opens the connection, which authenticates.
func (x examination) authenticated(ctx context.Context, d *cli.Patient, t cli.Transport) bool {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	who := x.principal(ctx, d.Server)
	if err := t.Ping(bounded); err != nil {
		remedy := "the port responds, but not as " + x.system + ": read the reason, and the log of the server"
		if errors.Is(err, tidegate.ErrUnauthorized) {
			remedy = x.credentials
		}
		return d.Failed("credentials", fmt.Errorf("the client comes %s: %w", who, err), remedy)
	}
	d.OK("credentials", "the server accepts the client %s", who)
	return true
}

// usable asks the server for the topic.
func (x examination) usable(ctx context.Context, d *cli.Patient, t cli.Transport) bool {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	if err := t.Ping(bounded, d.Topic); err != nil {
		return d.Failed("topic", err, x.topicRemedy(d, err))
	}
	d.OK("topic", "%s", x.topic(d))
	return true
}

// patience is the time that a receiver waits for a message.
const patience = time.Second

// oneMessage is a receive of one message of the group.
func oneMessage(d *cli.Patient) transport.ReceiveRequest {
	return transport.ReceiveRequest{
		Group: d.Group, Topic: d.Topic, Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute, Wait: patience,
	}
}
