package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
)

// apachePulsar returns the support for Apache Pulsar.
func apachePulsar() *cli.Foreign {
	return &cli.Foreign{
		Open: openPulsar, Examine: pulsarExamination.examine, Instead: insteadOnPulsar,
		Browse: func(ctx context.Context, t cli.Transport, topic string, since time.Time, after string) iter.Seq2[*tidegate.Delivery, error] {
			return t.(browser).Browse(ctx, topic, since, after)
		},
		State:   "'pulsar-admin topics stats TOPIC' shows the subscriptions of a topic",
		Backlog: "pulsar-admin topics stats TOPIC",
		Create: func(s cli.Server, topic, group string) (ofTopic, ofGroup string) {
			full := fullName(s, topic)
			return "pulsar-admin topics create " + full, createSubscription(group, full)
		},
		Stays: func(s cli.Server, topic, group string) string {
			retry, letters := namings[s.Naming].Topics(topic, group)
			return fmt.Sprintf("the subscription %s stays, with the topics %s and %s; %s removes the subscription",
				output.Safe(group), retry, letters, output.Mention("pulsar-admin topics unsubscribe --subscription "+output.Quote(group)+" "+fullName(s, topic)))
		},
	}
}

// A browser is a transport that looks at messages without receiving them.
type browser interface {
	Browse(ctx context.Context, topic string, from time.Time, after string) iter.Seq2[*tidegate.Delivery, error]
}

// openPulsar returns a connection to a Pulsar. It does not connect yet.
func openPulsar(ctx context.Context, s cli.Server) (cli.Transport, error) {
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	o := pulsar.Options{Namespace: s.Namespace, Naming: namings[s.Naming], RequestTimeout: s.Timeout}
	switch {
	case s.Key != "":
		o.Credentials = tidegate.Credentials{AccessKey: s.Key, SecretKey: secret}
	case secret != "":
		o.Token = func() (string, error) { return s.Secret(ctx) } // a file or a program may have a newer one
	}
	if s.TLS {
		if o.TLS, err = s.TLSConfig(); err != nil {
			return nil, err
		}
	}
	c, err := pulsar.New(s.Pulsar, o)
	if err != nil {
		return nil, err
	}
	return impatient{c}, nil
}

// An impatient transport does not wait long for a server that does not respond when it is closed,
// because the end of the process ends the connections.
type impatient struct{ *pulsar.Client }

func (t impatient) Close() error { return within(closeTime, t.Client.Close) }

const closeTime = time.Second

// within calls f, and returns nil if it takes longer than d.
func within(d time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		return nil
	}
}

// namings are the namings of contexts.
var namings = map[string]pulsar.Naming{
	"": pulsar.ByTopic, cli.NamingByTopic: pulsar.ByTopic, cli.NamingByGroup: pulsar.ByGroup, cli.NamingByGroupLowerCase: pulsar.ByGroupLowerCase,
}

// namespace returns the tenant and the namespace of a server's topics.
func namespace(s cli.Server) string {
	if s.Namespace == "" {
		return "public/default"
	}
	return s.Namespace
}

// fullName returns the full name of a topic, quoted for a shell.
func fullName(s cli.Server, topic string) string {
	return output.Quote("persistent://" + namespace(s) + "/" + topic)
}

// createSubscription returns the command that creates a subscription of all messages that the topic
// has.
func createSubscription(name, topic string) string {
	return "pulsar-admin topics create-subscription --subscription " + output.Quote(name) + " --messageId earliest " + topic
}

// insteadOnPulsar has Pulsar's own way for each command that needs the HTTP API of tidegate, by the
// words of that command.
var insteadOnPulsar = map[string]string{
	"top":          "pulsar-admin topics stats persistent://TENANT/NAMESPACE/TOPIC",
	"clients list": "pulsar-admin topics stats persistent://TENANT/NAMESPACE/TOPIC",
	"metrics":      "the metrics at http://HOST:8080/metrics",
	"console":      "Pulsar Manager, a program of its own",
	"api":          "the REST API at http://HOST:8080/admin/v2",

	"topic list":   "pulsar-admin topics list TENANT/NAMESPACE",
	"topic show":   "pulsar-admin topics stats persistent://TENANT/NAMESPACE/TOPIC",
	"topic create": "pulsar-admin topics create persistent://TENANT/NAMESPACE/TOPIC",
	"topic set":    "pulsar-admin topicPolicies, or the policies of the namespace: pulsar-admin namespaces",
	"topic delete": "pulsar-admin topics delete persistent://TENANT/NAMESPACE/TOPIC",

	"group list":   "pulsar-admin topics subscriptions persistent://TENANT/NAMESPACE/TOPIC",
	"group show":   "pulsar-admin topics stats persistent://TENANT/NAMESPACE/TOPIC",
	"group lag":    "pulsar-admin topics stats persistent://TENANT/NAMESPACE/TOPIC",
	"group create": "pulsar-admin topics create-subscription --subscription GROUP --messageId earliest persistent://TENANT/NAMESPACE/TOPIC",
	"group delete": "pulsar-admin topics unsubscribe --subscription GROUP persistent://TENANT/NAMESPACE/TOPIC",
	"group rewind": "pulsar-admin topics reset-cursor --subscription GROUP --time 10m persistent://TENANT/NAMESPACE/TOPIC",

	"retry preview": "the levels of the TDMQ document, 1 s to 2 h, or Options.Levels and Options.Groups in your program",

	"dead-letters purge": "pulsar-admin topics clear-backlog --subscription dead-letters persistent://TENANT/NAMESPACE/TOPIC-GROUP-DLQ",
	"dead-letters watch": "pulsar-client consume --subscription-name dead-letters --num-messages 0 persistent://TENANT/NAMESPACE/TOPIC-GROUP-DLQ, which removes them",

	"limits show":  "pulsar-admin namespaces get-backlog-quotas TENANT/NAMESPACE",
	"limits set":   "pulsar-admin namespaces set-backlog-quota --limit 10G --policy producer_exception TENANT/NAMESPACE",
	"address list": "pulsar-admin namespaces policies TENANT/NAMESPACE",
	"address show": "pulsar-admin namespaces policies TENANT/NAMESPACE",
}

// pulsarExamination tests a set-up as a client of Pulsar.
var pulsarExamination = examination{
	system: "a Pulsar", protocol: "pulsar", secure: "pulsar+ssl://",
	ports:    "Pulsar listens on 6650, and on 6651 with TLS",
	greeting: "\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00", // the command PING, to which a server responds before it authenticates
	spoken: func(first []byte) (ok bool, remedy string, err error) {
		return bytes.HasPrefix(first, []byte("\x00\x00\x00\x09\x00\x00\x00\x05\x08\x13")), "", nil // PONG
	},
	text:        "the port speaks the protocol of Pulsar in plain text",
	securePort:  "give the address as pulsar://, or use the port with TLS (brokerServicePortTls in broker.conf, by default 6651)",
	httpPort:    "this is the port of Pulsar's REST API; use the port of its binary protocol, by default 6650",
	otherPort:   "use the port of a broker or proxy of Pulsar (brokerServicePort in broker.conf), by default 6650",
	otherName:   "the protocol of Pulsar",
	principal:   pulsarPrincipal,
	credentials: "check the token (--secret-file without --access-key), or the user (--access-key) and the password (--secret-file); 'pulsar tokens validate' tests a token, authenticationProviders in broker.conf has the ways to authenticate",
	topic: func(d *cli.Patient) string {
		return fmt.Sprintf("the cluster has or creates the topic %s; it discards messages that no subscription needs", output.Safe(fullName(d.Server, d.Topic)))
	},
	topicRemedy: func(d *cli.Patient, err error) string { return pulsarRemedy(d, err, d.Topic, "produce,consume") },
	sendRemedy: func(d *cli.Patient, err error) string {
		if errors.Is(err, tidegate.ErrThrottled) {
			return fmt.Sprintf("consume messages, or raise the backlog quota: pulsar-admin namespaces set-backlog-quota --limit 10G --policy producer_exception %s; %s shows which subscription is behind",
				output.Quote(namespace(d.Server)), output.Mention("pulsar-admin topics stats "+fullName(d.Server, d.Topic)))
		}
		return pulsarRemedy(d, err, d.Topic, "produce")
	},
	group: receiveFromPulsar,
}

// pulsarPrincipal describes the way in which a client authenticates.
func pulsarPrincipal(ctx context.Context, s cli.Server) string {
	if s.Key != "" {
		return "as the user " + s.Key
	}
	token, err := s.Secret(ctx)
	switch {
	case err == nil && token != "":
		return "with a token" + expired(token, time.Now())
	case s.Cert != "":
		return "by its certificate"
	}
	return "without credentials"
}

// expired returns the end of the sentence about a token, if it is a JSON Web Token whose time is
// over.
func expired(token string, now time.Time) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expires == 0 {
		return ""
	}
	if at := time.Unix(int64(claims.Expires), 0); at.Before(now) {
		return fmt.Sprintf(" that expired %s ago, at %s", output.Duration(now.Sub(at)), at.UTC().Format(time.RFC3339))
	}
	return ""
}

// pulsarRemedy returns the remedy for a topic that a client cannot use, with the actions that the
// client needs.
func pulsarRemedy(d *cli.Patient, err error, topic, actions string) string {
	full, in := fullName(d.Server, topic), output.Quote(namespace(d.Server))
	switch {
	case errors.Is(err, tidegate.ErrTopicNotFound):
		return fmt.Sprintf("create it: pulsar-admin topics create %s; or let the namespace create topics: pulsar-admin namespaces set-auto-topic-creation --enable --type non-partitioned %[2]s; if the namespace is missing, first: pulsar-admin namespaces create %[2]s", full, in)
	case errors.Is(err, tidegate.ErrForbidden):
		return fmt.Sprintf("give the role of the client the permission: pulsar-admin namespaces grant-permission --role ROLE --actions %s %s", actions, in)
	case errors.Is(err, tidegate.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("this machine must reach the broker of the topic, at the address that it advertises (advertisedAddress in broker.conf): %s shows it", output.Mention("pulsar-admin topics lookup "+full))
	}
	return otherRemedy
}

// receiveFromPulsar opens a consumer of the subscription of the group, as the transport does for
// every receive, with its retry topic and its dead letter topic. It returns a message to the
// server, which counts no attempt.
func receiveFromPulsar(ctx context.Context, d *cli.Patient, t cli.Transport) {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	group := output.Safe(d.Group)
	retry, letters := namings[d.Server.Naming].Topics(d.Topic, d.Group)
	ds, err := t.Receive(bounded, oneMessage(d))
	if err != nil {
		notSubscribed(ctx, d, t, err, retry, letters)
		return
	}
	d.OK("dead letters", "those of group %s go to the topic %s, whose subscription %s keeps them", group, output.Safe(letters), pulsar.DefaultDeadLetterSubscription)
	d.OK("retry topic", "failed messages go to the topic %s", output.Safe(retry))
	if len(ds) == 0 {
		d.OK("subscription", "a consumer of the subscription %s is connected, and no message arrived within %v: the subscription has none, or other consumers hold them (%s)",
			group, patience, output.Mention("pulsar-admin topics stats "+fullName(d.Server, d.Topic)))
		return
	}
	if _, err := t.Settle(bounded, ds[0], transport.Verdict{Kind: transport.Release}); err != nil {
		d.Failed("subscription", fmt.Errorf("message %s arrived, and its release failed: %w", output.Safe(ds[0].ID), err), "the server delivers the message again when the connection has ended")
		return
	}
	d.OK("subscription", "message %s arrived from the subscription %s and was released, without an attempt", output.Safe(ds[0].ID), group)
}

// notSubscribed adds the step of a receive that failed: that of the dead letter topic or the retry
// topic, if the server refuses one of them, or else that of the subscription.
func notSubscribed(ctx context.Context, d *cli.Patient, t cli.Transport, err error, retry, letters string) {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	for _, of := range []struct{ step, topic, needs string }{{"dead letters", letters, "produce,consume"}, {"retry topic", retry, "produce,consume"}} {
		perr := t.Ping(bounded, of.topic)
		if !errors.Is(perr, tidegate.ErrTopicNotFound) && !errors.Is(perr, tidegate.ErrForbidden) {
			continue
		}
		remedy := pulsarRemedy(d, perr, of.topic, of.needs)
		if of.topic == letters && errors.Is(perr, tidegate.ErrTopicNotFound) {
			remedy += "; then its subscription: " + createSubscription(pulsar.DefaultDeadLetterSubscription, fullName(d.Server, letters))
		}
		d.Failed(of.step, err, remedy)
		return
	}
	remedy := pulsarRemedy(d, err, d.Topic, "consume")
	if errors.Is(err, tidegate.ErrNotFound) && !errors.Is(err, tidegate.ErrTopicNotFound) {
		remedy = "create it: " + createSubscription(d.Group, fullName(d.Server, d.Topic))
	}
	d.Failed("subscription", err, remedy)
}
