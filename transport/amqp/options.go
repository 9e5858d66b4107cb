package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Options configure a [Client]. The zero value is a client without credentials.
type Options struct {
	// Credentials are the user's name (AccessKey) and password (SecretKey), sent by SASL PLAIN.
	// Give them only with TLS or in a trusted network. Zero means SASL ANONYMOUS.
	Credentials tidegate.Credentials

	// External authenticates with the client certificate of TLS, by SASL EXTERNAL. It excludes
	// Credentials.
	External bool

	// TLS configures connections to an amqps address and can have a client certificate. Default:
	// Go's configuration.
	TLS *tls.Config

	// ContainerID identifies the client in the server's console. Default: a random one.
	ContainerID string

	// RequestTimeout bounds every request, in addition to the caller's ctx. A receive has its wait
	// in addition. A send whose ctx has a deadline has that deadline instead. Default: 3 s.
	RequestTimeout time.Duration

	// IdleTimeout ends a connection on which the server is silent for so long; heartbeats keep it
	// open. Default: 20 s.
	IdleTimeout time.Duration

	// MaxBodySize is the maximum of a body in bytes. Default: [tidegate.MaxBodySize].
	MaxBodySize int

	// Groups returns the settings of a consumer group for a topic, which no protocol of Artemis
	// transmits: FIFO, MaxAttempts and Retry, and the others as hints for the consumer. It does not
	// block. MaxAttempts 0 means 10, which is Artemis's default, and negative no maximum. Nil means
	// no settings. The address setting max-delivery-attempts should be -1: otherwise Artemis also
	// counts the attempts, and moves messages to its own dead letter address without a reason.
	Groups func(group, topic string) transport.ConsumerSettings

	// CopyRetries retries a message by a durable copy, which Artemis delivers to the group after
	// the delay of the retry; the copy records the failed attempts. False retries the message
	// itself after the redelivery-delay of the address settings, not after the delay of the retry.
	// Artemis then counts the attempts.
	CopyRetries bool

	// Queue returns the name of a group's queue at the address of a topic. Queue names are unique
	// in a server, not in an address, so a name without the topic fails for a group with two
	// topics. Nil means topic + "." + group.
	Queue func(topic, group string) string

	// NoDuplicateDetection sends messages without Artemis's property _AMQ_DUPL_ID. By default the
	// property is the message ID, and the server discards a second message with the same ID among
	// the last 20 000 (id-cache-size) of the address.
	NoDuplicateDetection bool

	// Dialer creates connections, for example in an in-memory network; addr is host:port. Default:
	// TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)

	// Logger receives the events that no call returns, for example a lost connection. Nil means no
	// logging.
	Logger *slog.Logger
}

const (
	defaultTimeout  = 3 * time.Second
	defaultAttempts = 10
	defaultBatch    = 256 // a receive has no other cost than its credit
	defaultIdle     = 20 * time.Second
	dialTimeout     = 10 * time.Second
)

// withDefaults returns o with a default in each zero field, or an error that names all invalid
// fields.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, bad("Options."+field, format, args...))
	}
	for _, d := range []struct {
		field   string
		value   *time.Duration
		initial time.Duration
	}{
		{"RequestTimeout", &o.RequestTimeout, defaultTimeout}, {"IdleTimeout", &o.IdleTimeout, defaultIdle},
	} {
		if *d.value < 0 {
			fault(d.field, "%v is negative; give a positive value, or 0 for %v", *d.value, d.initial)
		}
		if *d.value == 0 {
			*d.value = d.initial
		}
	}
	if o.MaxBodySize < 0 {
		fault("MaxBodySize", "%d is negative; give 1 or more, or 0 for %d", o.MaxBodySize, tidegate.MaxBodySize)
	}
	if o.MaxBodySize == 0 {
		o.MaxBodySize = tidegate.MaxBodySize
	}
	if k := o.Credentials; (k.AccessKey == "") != (k.SecretKey == "") || k.SessionToken != "" {
		fault("Credentials", "give AccessKey and SecretKey together and no SessionToken, or none")
	}
	if o.External && o.Credentials != (tidegate.Credentials{}) {
		fault("External", "it excludes Credentials; give one of them")
	}
	if o.Queue == nil {
		o.Queue = func(topic, group string) string { return topic + "." + group }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

func bad(subject, format string, args ...any) error {
	return &tidegate.Error{Op: "amqp.New", Subject: subject, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// parse returns the host and port of an address, and whether it needs TLS.
func parse(address string) (endpoint string, secure bool, err error) {
	if address != "" && !strings.Contains(address, "://") {
		address = "amqp://" + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "", false, bad("address", "it is not a URL; give amqp://host:port or amqps://host:port")
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return "", false, bad("address", "the scheme is %q; give amqp://host:port or amqps://host:port", u.Scheme)
	case u.Hostname() == "":
		return "", false, bad("address", "it has no host; give amqp://host:port or amqps://host:port")
	case u.User != nil:
		return "", false, bad("address", "it has credentials; give them as Options.Credentials")
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return "", false, bad("address", "it has more than a host and a port; give amqp://host:port or amqps://host:port")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"amqp": "5672", "amqps": "5671"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port), u.Scheme == "amqps", nil
}

// connection returns the options of go-amqp.
func (o Options) connection(endpoint string) amqp.ConnOptions {
	host, _, _ := net.SplitHostPort(endpoint)
	c := amqp.ConnOptions{ContainerID: o.ContainerID, HostName: host, IdleTimeout: o.IdleTimeout}
	switch {
	case o.External:
		c.SASLType = amqp.SASLTypeExternal("")
	case o.Credentials.AccessKey != "":
		c.SASLType = amqp.SASLTypePlain(o.Credentials.AccessKey, o.Credentials.SecretKey)
	default:
		c.SASLType = amqp.SASLTypeAnonymous()
	}
	return c
}

// dialer returns the function that creates connections, with TLS if secure is set.
func (o Options) dialer(endpoint string, secure bool) func(context.Context) (net.Conn, error) {
	dial := o.Dialer
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	} else {
		own := dial
		dial = func(ctx context.Context, addr string) (c net.Conn, err error) {
			if fault := guarded("Options.Dialer", func() { c, err = own(ctx, addr) }); fault != nil {
				return nil, fault
			}
			return c, err
		}
	}
	if !secure {
		return func(ctx context.Context) (net.Conn, error) { return dial(ctx, endpoint) }
	}
	config := o.TLS.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(endpoint)
	}
	return func(ctx context.Context) (net.Conn, error) {
		raw, err := dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		c := tls.Client(raw, config)
		if err := c.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, err
		}
		return c, nil
	}
}
