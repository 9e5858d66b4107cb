package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
)

// artemis returns the support for Apache ActiveMQ Artemis.
func artemis() *cli.Foreign {
	return &cli.Foreign{
		Open: openArtemis, Examine: artemisExamination.examine, Instead: insteadOnArtemis,
		State:   "the web console of Artemis and 'artemis queue stat' show its queues",
		Backlog: "artemis queue stat",
		Create: func(_ cli.Server, topic, group string) (ofTopic, ofGroup string) {
			return fmt.Sprintf("artemis queue create --name %s --address %s --multicast --durable --preserve-on-no-consumers --auto-create-address",
				output.Quote(topic+"."+group), output.Quote(topic)), ""
		},
		Stays: func(_ cli.Server, topic, group string) string {
			queue := topic + "." + group
			return fmt.Sprintf("the queue %s stays; %s removes it", output.Safe(queue), output.Mention("artemis queue delete --name "+output.Quote(queue)))
		},
	}
}

// openArtemis returns a connection to an Artemis. It does not connect yet.
func openArtemis(ctx context.Context, s cli.Server) (cli.Transport, error) {
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	o := amqp.Options{
		Credentials: tidegate.Credentials{AccessKey: s.Key, SecretKey: secret},
		External:    external(s),
		CopyRetries: true, // the delays of --then retry=TIME and of failed programs
	}
	if s.TLS {
		if o.TLS, err = s.TLSConfig(); err != nil {
			return nil, err
		}
	}
	return amqp.New(s.AMQP, o)
}

// external reports whether the client certificate authenticates.
func external(s cli.Server) bool { return s.Cert != "" && s.Key == "" }

// insteadOnArtemis has Artemis's own command for each command that needs the HTTP API of tidegate,
// by the words of that command.
var insteadOnArtemis = map[string]string{
	"peek":    "artemis browser --destination fqqn://TOPIC::TOPIC.GROUP",
	"find":    "artemis browser --destination fqqn://TOPIC::TOPIC.GROUP --filter EXPRESSION",
	"top":     "artemis queue stat",
	"metrics": "the metrics plugin in broker.xml (<metrics>)",
	"console": "Artemis's web console, by default http://HOST:8161/console",
	"api":     "the management API at http://HOST:8161/console/jolokia",

	"topic list":   "artemis address show",
	"topic show":   "artemis address show --name TOPIC --bindings",
	"topic create": "artemis address create --name TOPIC --multicast",
	"topic set":    "the address settings in broker.xml",
	"topic delete": "artemis address delete --name TOPIC",

	"group list":   "artemis queue stat",
	"group show":   "artemis queue stat --queueName TOPIC.GROUP",
	"group create": "artemis queue create --name TOPIC.GROUP --address TOPIC --multicast --durable --preserve-on-no-consumers",
	"group set":    "artemis queue update --name TOPIC.GROUP",
	"group delete": "artemis queue delete --name TOPIC.GROUP",
	"group lag":    "artemis queue stat --queueName TOPIC.GROUP",

	"retry preview": "the address settings redelivery-delay and max-delivery-attempts in broker.xml, and Options.Groups in your program",

	"dead-letters purge": "artemis queue purge --name GROUP.DLQ",
	"dead-letters watch": "artemis consumer --destination queue://GROUP.DLQ, which removes them",

	"limits show":    "the address settings max-size-bytes and address-full-policy in broker.xml",
	"limits set":     "the address settings max-size-bytes and address-full-policy in broker.xml",
	"address list":   "the address settings in broker.xml",
	"address show":   "the address settings in broker.xml",
	"address set":    "the address settings in broker.xml",
	"address delete": "the address settings in broker.xml",
	"apply":          "the addresses, queues and address settings in broker.xml",
	"export":         "artemis data exp",
}

// artemisExamination tests a set-up as a client of Artemis.
var artemisExamination = examination{
	system: "an Artemis", protocol: "amqp", secure: "amqps://",
	ports:       "Artemis listens on 5672 for AMQP, and on 61616 for all of its protocols",
	greeting:    "AMQP\x03\x01\x00\x00", // the header of a client that begins with SASL
	spoken:      artemisSpoken,
	text:        "the port speaks AMQP 1.0 in plain text",
	securePort:  "give the address as amqp://, or use the port of an acceptor with sslEnabled=true",
	httpPort:    "this is the web console of Artemis; use the port of its AMQP acceptor, by default 5672",
	otherPort:   "use a port whose acceptor has the protocol AMQP (protocols=AMQP in broker.xml), by default 5672 or 61616",
	otherName:   "AMQP 1.0",
	principal:   artemisPrincipal,
	credentials: "check the user (--access-key) and the password (--secret-file); 'artemis user list' has the users, saslMechanisms of the acceptor has the ways to authenticate",
	topic: func(d *cli.Patient) string {
		return fmt.Sprintf("the server takes messages for the address %s; it discards them while the address has no queue", output.Safe(d.Topic))
	},
	topicRemedy: artemisTopicRemedy,
	sendRemedy: func(_ *cli.Patient, err error) string {
		if errors.Is(err, tidegate.ErrThrottled) {
			return "the address or the memory is full, or the disk: consume messages, or raise max-size-bytes of the address, global-max-size or max-disk-usage; 'artemis queue stat' shows which queue is long"
		}
		return otherRemedy
	},
	group: receiveFromArtemis,
}

// artemisSpoken recognises AMQP in the first bytes of a response. If they are of another version of
// AMQP, err says so.
func artemisSpoken(first []byte) (ok bool, remedy string, err error) {
	switch {
	case strings.HasPrefix(string(first), "AMQP\x03"):
		return true, "", nil
	case strings.HasPrefix(string(first), "AMQP"):
		return false, "RabbitMQ and other servers of AMQP 0.9.1 are not supported",
			fmt.Errorf("the port speaks another version of AMQP, %x: %w", first[4:min(8, len(first))], tidegate.ErrInvalid)
	}
	return false, "", nil
}

// artemisPrincipal describes the way in which a client authenticates.
func artemisPrincipal(_ context.Context, s cli.Server) string {
	switch {
	case s.Key != "":
		return "as the user " + s.Key + " (SASL PLAIN)"
	case external(s):
		return "by its certificate (SASL EXTERNAL)"
	}
	return "without a name (SASL ANONYMOUS)"
}

func artemisTopicRemedy(d *cli.Patient, err error) string {
	switch {
	case errors.Is(err, tidegate.ErrTopicNotFound):
		return fmt.Sprintf("create it: artemis address create --name %s --multicast; or set auto-create-addresses in its address settings", output.Quote(d.Topic))
	case errors.Is(err, tidegate.ErrForbidden):
		return fmt.Sprintf("give a role of the user the permission send for %s, and createAddress if the address does not exist (security-settings in broker.xml)", d.Topic)
	}
	return otherRemedy
}

// receiveFromArtemis attaches a receiver to the queue of the group, with credit for one message,
// which it releases. The transport first checks that the dead letters have a queue.
func receiveFromArtemis(ctx context.Context, d *cli.Patient, t cli.Transport) {
	bounded, cancel := d.Bounded(ctx)
	defer cancel()
	group, queue := output.Safe(d.Group), output.Safe(d.Topic+"."+d.Group)
	ds, err := t.Receive(bounded, oneMessage(d))
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
		d.Failed("group", err, otherRemedy)
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
