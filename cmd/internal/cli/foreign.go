package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A system is a kind of foreign servers, which the program tidegate-foreign reaches.
type system struct {
	kind     string // of a context; also the name of its flag and of its address in a context
	name     string // as commands call it
	product  string // with an article
	scheme   string // of addresses without TLS
	secure   string // of addresses with TLS
	port     string // of addresses without TLS and port
	tlsPort  string // of addresses with TLS and without port
	hosts    bool   // an address can have several, separated by commas
	standard string // address without any setting
	variable string // environment variable of the address
}

// The kinds of foreign servers.
const (
	amqp   = "amqp"   // Apache ActiveMQ Artemis
	pulsar = "pulsar" // Apache Pulsar
)

// systems are all kinds of foreign servers. Without any setting, tidegate-foreign connects to the
// first one.
var systems = [...]system{
	{
		kind: amqp, name: "Artemis", product: "an ActiveMQ Artemis", scheme: "amqp", secure: "amqps", port: "5672", tlsPort: "5671",
		standard: "amqp://127.0.0.1:5672", variable: "TIDEGATE_SERVER_AMQP",
	},
	{
		kind: pulsar, name: "Pulsar", product: "an Apache Pulsar", scheme: "pulsar", secure: "pulsar+ssl", port: "6650", tlsPort: "6651", hosts: true,
		standard: "pulsar://127.0.0.1:6650", variable: "TIDEGATE_SERVER_PULSAR",
	},
}

// A Foreign is the support of a program for one kind of foreign servers. A program without it names
// the one that has it.
type Foreign struct {
	// Open connects to a server.
	Open func(context.Context, Server) (Transport, error)

	// Examine tests the set-up as a client, for the command doctor.
	Examine func(context.Context, *Patient)

	// Browse returns the messages that the server keeps of a topic, consumed or not, for the commands
	// peek and find: those that were stored at since or later, or those behind the one whose Handle
	// is after. Nil if a message must be received to be seen.
	Browse func(ctx context.Context, t Transport, topic string, since time.Time, after string) iter.Seq2[*tidegate.Delivery, error]

	// Instead has the system's own command for each command that needs the HTTP API of tidegate, by
	// the words of that command.
	Instead map[string]string

	// State is the rest of the sentence about a server that responds: how to see more of it.
	State string

	// Backlog names the command that shows the groups and the remaining messages of a topic.
	Backlog string

	// Create returns the commands that create a topic, and a group of it that gets the messages
	// that are sent from then on. group is empty if the first command creates both.
	Create func(s Server, topic, group string) (ofTopic, ofGroup string)

	// Stays describes what the first receive of a group creates and a benchmark leaves behind.
	Stays func(s Server, topic, group string) string
}

// foreign returns the kind of a server; nil if it is a tidegate broker or a RocketMQ.
func (n *Context) foreign() *system {
	for i := range systems {
		if systems[i].kind == n.Kind {
			return &systems[i]
		}
	}
	return nil
}

// address returns the address of a kind in the context.
func (n *Context) address(s *system) *string {
	if s.kind == pulsar {
		return &n.Pulsar
	}
	return &n.AMQP
}

// schemes returns both forms of an address.
func (s *system) schemes() string {
	return fmt.Sprintf("%s://host:port or %s://host:port", s.scheme, s.secure)
}

// has reports whether an address has a scheme of the system.
func (s *system) has(address string) bool {
	return strings.HasPrefix(address, s.scheme+"://") || s.encrypted(address)
}

func (s *system) encrypted(address string) bool { return strings.HasPrefix(address, s.secure+"://") }

// check checks an address.
func (s *system) check(address string) error {
	invalid := fmt.Errorf("--%s is %s://HOST:PORT or %s://HOST:PORT, without credentials", s.kind, s.scheme, s.secure)
	if s.hosts {
		invalid = fmt.Errorf("%w, and can have several hosts, separated by commas", invalid)
	}
	if !s.has(address) {
		return invalid
	}
	for _, host := range s.split(address) {
		if u, err := url.Parse("//" + host); err != nil || u.Hostname() == "" || u.User != nil {
			return invalid
		}
	}
	return nil
}

// split returns the hosts of an address, with the ports that they have.
func (s *system) split(address string) []string {
	_, hosts, _ := strings.Cut(address, "://")
	if !s.hosts {
		return []string{hosts}
	}
	return mapped(strings.Split(strings.TrimSuffix(hosts, "/"), ","), strings.TrimSpace)
}

// dials returns the hosts of an address, each with a port.
func (s *system) dials(address string) []string {
	port := s.port
	if s.encrypted(address) {
		port = s.tlsPort
	}
	return mapped(s.split(address), func(host string) string {
		u, err := url.Parse("//" + host)
		switch {
		case err != nil:
			return host
		case u.Port() != "":
			return u.Host
		}
		return net.JoinHostPort(u.Hostname(), port)
	})
}

// Hosts returns the hosts of the address for messages of a foreign server, each with a port.
func (s Server) Hosts() []string {
	if f := s.foreign(); f != nil {
		return f.dials(*s.address(f))
	}
	return nil
}

// Encrypted reports whether the address of a foreign server demands TLS.
func (s Server) Encrypted() bool {
	f := s.foreign()
	return f != nil && f.encrypted(*s.address(f))
}

// support returns the support of the program for the kind of the server; nil without it.
func (s Server) support() *Foreign { return s.programs[s.Kind] }

// An otherProgramError is the error of a program that does not reach foreign servers.
type otherProgramError struct {
	address string
	system  *system
}

func (e *otherProgramError) Error() string {
	return e.address + " is " + e.system.product + ", which needs the program tidegate-foreign"
}

// Hint returns how to install the program.
func (e *otherProgramError) Hint() string {
	return "It has the same commands and uses the same contexts: go install github.com/tidegate/tidegate/cmd/tidegate-foreign@latest"
}

// Is gives the error the exit code of a server that is not supported.
func (e *otherProgramError) Is(target error) bool { return target == errUnsupported }

// Supported returns an error if the program does not reach servers of this kind.
func (s Server) Supported() error {
	if f := s.foreign(); f != nil && s.support() == nil {
		return &otherProgramError{*s.address(f), f}
	}
	return nil
}

// createGroup creates the queue or subscription of a group on a foreign server, which discards the
// messages that were sent before. It releases a message that the group has.
func createGroup(ctx context.Context, t Transport, topic, group string) error {
	ds, err := t.Receive(ctx, transport.ReceiveRequest{
		Group: group, Topic: topic, Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute, Wait: time.Millisecond,
	})
	for _, d := range ds {
		_, serr := t.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		err = errors.Join(err, serr)
	}
	return err
}

// The namings of the retry topics and the dead letter topics on a Pulsar.
const (
	NamingByTopic          = "by-topic"
	NamingByGroup          = "by-group"
	NamingByGroupLowerCase = "by-group-lower-case"
)

// checkPulsar checks the settings of a context that only a Pulsar has.
func (n *Context) checkPulsar() error {
	namings := []string{"", NamingByTopic, NamingByGroup, NamingByGroupLowerCase}
	switch {
	case n.Kind != pulsar && n.Naming != "":
		return errors.New("a naming is for the kind pulsar alone")
	case !slices.Contains(namings, n.Naming):
		return fmt.Errorf("the naming is %q; it is %s, %s or %s", n.Naming, NamingByTopic, NamingByGroup, NamingByGroupLowerCase)
	case n.Kind != pulsar || n.Namespace == "":
		return nil
	}
	if tenant, name, ok := strings.Cut(n.Namespace, "/"); !ok || tenant == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("the namespace is %q; on a Pulsar it is a tenant and a namespace, for example public/default", n.Namespace)
	}
	return nil
}
