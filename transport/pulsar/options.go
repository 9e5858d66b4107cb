package pulsar

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Options configure a [Client]. The zero value is a client without credentials.
type Options struct {
	// Namespace is the tenant and the namespace of all topics. Default: public/default.
	Namespace string

	// Token returns the token that authenticates the client. It is called by New, which fails if it
	// does, for each connection, and when the server asks for a new one. Nil means no token. It
	// excludes Credentials.
	Token func() (string, error)

	// Credentials are a user's name (AccessKey) and password (SecretKey), for servers with basic
	// authentication. Zero means none.
	Credentials tidegate.Credentials

	// TLS configures connections to a pulsar+ssl address. It can have a client certificate, which
	// also authenticates the client if there is neither a token nor Credentials. Default: Go's
	// configuration.
	TLS *tls.Config

	// RequestTimeout bounds every request, in addition to the caller's ctx. A send whose ctx has a
	// deadline has that deadline instead. Default: 3 s.
	RequestTimeout time.Duration

	// IdleTimeout ends a connection on which the server is silent for so long; heartbeats keep it
	// open. Default: 20 s.
	IdleTimeout time.Duration

	// MaxBodySize is the maximum of a body in bytes. A server has a maximum for a message with all
	// its properties, by default 5 MiB. Default: [tidegate.MaxBodySize].
	MaxBodySize int

	// Batching gathers the sends that begin while the server stores earlier ones, and writes them as
	// one entry. It raises the throughput of many concurrent sends, and delays none. Pulsar delivers
	// and acknowledges the entry as a whole: if one of its messages is not acknowledged when the
	// consumer ends, all of them come again. Each message group has entries of its own.
	Batching bool

	// Prefetch is the number of messages that a receiver of a group asks a partition for before it
	// needs them. Other consumers do not get them meanwhile, and they are in memory: a group with
	// large messages or many partitions needs a lower number. More of them raise the throughput of
	// short handlers. Default: 64.
	Prefetch int

	// Groups returns the settings of a consumer group for a topic, which Pulsar does not have: FIFO,
	// MaxAttempts and Retry, and the others as hints for the consumer. It does not block.
	// MaxAttempts 0 means 17, which are the 16 retries of the TDMQ document, and negative no
	// maximum. Nil means no settings.
	Groups func(group, topic string) transport.ConsumerSettings

	// Naming names the retry topics and the dead letter topics. Default: ByTopic.
	Naming Naming

	// Levels are the delays of the verdict RetryTopic by its level. Default: those of the TDMQ
	// document, 1 s to 2 h.
	Levels []time.Duration

	// NegativeAckDelay is the delay of a verdict NegativeAck without one. Default: 1 min.
	NegativeAckDelay time.Duration

	// DeadLetterSubscription is the subscription of the dead letter topics that the transport
	// creates with them. Pulsar would delete dead letters without one. All receives from the dead
	// letters of a group use it, whatever their group. Default: DefaultDeadLetterSubscription.
	DeadLetterSubscription string

	// Logger receives the events that no call returns, for example a lost connection. Nil means no
	// logging.
	Logger *slog.Logger
}

// DefaultDeadLetterSubscription is the default of Options.DeadLetterSubscription.
const DefaultDeadLetterSubscription = "dead-letters"

const (
	defaultTimeout       = 3 * time.Second
	defaultIdle          = 20 * time.Second
	defaultAttempts      = 17
	defaultBatch         = 256
	defaultPrefetch      = 64
	defaultNegativeDelay = time.Minute
)

// defaultLevels are MESSAGE_DELAYLEVEL of the TDMQ document.
var defaultLevels = []time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute,
	4 * time.Minute, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute,
	10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
}

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
		{"NegativeAckDelay", &o.NegativeAckDelay, defaultNegativeDelay},
	} {
		if *d.value < 0 {
			fault(d.field, "%v is negative; give a positive value, or 0 for %v", *d.value, d.initial)
		}
		if *d.value == 0 {
			*d.value = d.initial
		}
	}
	for _, n := range []struct {
		field   string
		value   *int
		initial int
	}{
		{"MaxBodySize", &o.MaxBodySize, tidegate.MaxBodySize}, {"Prefetch", &o.Prefetch, defaultPrefetch},
	} {
		if *n.value < 0 {
			fault(n.field, "%d is negative; give 1 or more, or 0 for %d", *n.value, n.initial)
		}
		if *n.value == 0 {
			*n.value = n.initial
		}
	}
	if o.Namespace == "" {
		o.Namespace = "public/default"
	}
	if tenant, name, ok := strings.Cut(o.Namespace, "/"); !ok || tenant == "" || name == "" || strings.Contains(name, "/") {
		fault("Namespace", "%q is not a tenant and a namespace; give a pair as public/default", o.Namespace)
	}
	if o.Naming < ByTopic || o.Naming > ByGroupLowerCase {
		fault("Naming", "%d is no naming; give ByTopic, ByGroup or ByGroupLowerCase", o.Naming)
	}
	if o.Levels == nil {
		o.Levels = defaultLevels
	}
	for i, d := range o.Levels {
		if d < minRetryDelay || d > maxRetryDelay {
			fault("Levels", "level %d is %v; give %v to %v", i+1, d, minRetryDelay, maxRetryDelay)
		}
	}
	if len(o.Levels) == 0 {
		fault("Levels", "there is no level; give at least one, or nil for the default")
	}
	if k := o.Credentials; (k.AccessKey == "") != (k.SecretKey == "") || k.SessionToken != "" {
		fault("Credentials", "give AccessKey and SecretKey together and no SessionToken, or none")
	}
	if o.Token != nil && o.Credentials != (tidegate.Credentials{}) {
		fault("Token", "it excludes Credentials; give one of them")
	}
	if o.DeadLetterSubscription == "" {
		o.DeadLetterSubscription = DefaultDeadLetterSubscription
	}
	if err := tidegate.ValidateGroup(o.DeadLetterSubscription); err != nil {
		fault("DeadLetterSubscription", "%v", err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

func bad(subject, format string, args ...any) error {
	return &tidegate.Error{Op: "pulsar.New", Subject: subject, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

const addressForm = "give pulsar://host:port or pulsar+ssl://host:port, with several hosts separated by commas"

// parse returns the hosts and ports of an address, and whether it needs TLS.
func parse(address string) (endpoint string, secure bool, err error) {
	scheme, hosts, ok := strings.Cut(address, "://")
	if !ok {
		scheme, hosts = "pulsar", address
	}
	port := "6650"
	switch scheme {
	case "pulsar":
	case "pulsar+ssl":
		secure, port = true, "6651"
	default:
		return "", false, bad("address", "the scheme is %q; %s", scheme, addressForm)
	}
	var list []string
	for host := range strings.SplitSeq(strings.TrimSuffix(hosts, "/"), ",") {
		u, err := url.Parse("pulsar://" + strings.TrimSpace(host))
		switch {
		case err != nil:
			return "", false, bad("address", "it is not a URL; %s", addressForm)
		case u.User != nil:
			return "", false, bad("address", "it has credentials; give them as Options.Token or Options.Credentials")
		case u.Hostname() == "":
			return "", false, bad("address", "it has no host; %s", addressForm)
		case u.Path != "" || u.RawQuery != "" || u.Fragment != "":
			return "", false, bad("address", "it has more than hosts and ports; %s", addressForm)
		}
		p := u.Port()
		if p == "" {
			p = port
		}
		list = append(list, net.JoinHostPort(u.Hostname(), p))
	}
	return strings.Join(list, ","), secure, nil
}

// full returns the full name of a topic.
func (o Options) full(topic string) string { return "persistent://" + o.Namespace + "/" + topic }

// client returns the options of the client.
func (o Options) client(endpoint string, secure bool, f *faults) pulsar.ClientOptions {
	scheme := "pulsar"
	if secure {
		scheme = "pulsar+ssl"
	}
	c := pulsar.ClientOptions{
		URL: scheme + "://" + endpoint, ConnectionTimeout: o.RequestTimeout, OperationTimeout: o.RequestTimeout,
		KeepAliveInterval: o.IdleTimeout / 2, // the client ends a connection after two intervals of silence
		Logger:            clientLogger{faults: f},
		MetricsRegisterer: prometheus.NewRegistry(), // the client would use the global one
		MemoryLimitBytes:  -1,                       // the client loses memory of closed producers; see Client.memory
	}
	if secure {
		c.TLSConfig = o.TLS.Clone()
		if c.TLSConfig == nil {
			c.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	switch {
	case o.Token != nil:
		c.Authentication = pulsar.NewAuthenticationTokenFromSupplier(o.token)
	case o.Credentials.AccessKey != "":
		c.Authentication, _ = pulsar.NewAuthenticationBasic(o.Credentials.AccessKey, o.Credentials.SecretKey) // both are there
	case secure && hasCertificate(o.TLS):
		c.Authentication = pulsar.NewAuthenticationFromTLSCertSupplier(func() (*tls.Certificate, error) {
			if o.TLS.GetClientCertificate != nil {
				return o.TLS.GetClientCertificate(&tls.CertificateRequestInfo{})
			}
			return &o.TLS.Certificates[0], nil
		})
	}
	return c
}

// token calls Options.Token. A panic is an error.
func (o Options) token() (token string, err error) {
	if fault := guarded("Options.Token", func() { token, err = o.Token() }); fault != nil {
		return "", fault
	}
	return token, err
}

func hasCertificate(c *tls.Config) bool {
	return c != nil && (len(c.Certificates) > 0 || c.GetClientCertificate != nil)
}

// A Naming names the retry topic and the dead letter topic of a group, as the versions of TDMQ for
// Apache Pulsar do. The zero value is ByTopic.
type Naming int

// The namings.
const (
	// ByTopic is the naming of version 2.9.2, and of Apache's clients: TOPIC-GROUP-RETRY and
	// TOPIC-GROUP-DLQ.
	ByTopic Naming = iota

	// ByGroup is the naming of version 2.7.2: GROUP-RETRY and GROUP-DLQ. A group can then receive
	// from one topic only, because its topics would share the retry topic.
	ByGroup

	// ByGroupLowerCase is the naming of version 2.6.1: GROUP-retry and GROUP-dlq, with the same
	// restriction.
	ByGroupLowerCase
)

// Topics returns the names, in the namespace of the topic, of the retry topic and of the dead letter
// topic of a group that receives from the topic. Create both, and the subscription
// Options.DeadLetterSubscription of the latter, if the server does not create topics on demand.
// Topics does not check the names and ignores the topic unless n is ByTopic.
func (n Naming) Topics(topic, group string) (retry, deadLetters string) {
	switch n {
	case ByGroup:
		return group + "-RETRY", group + "-DLQ"
	case ByGroupLowerCase:
		return group + "-retry", group + "-dlq"
	}
	return topic + "-" + group + "-RETRY", topic + "-" + group + "-DLQ"
}

// deadLettersOf returns the name of the dead letter topic of a group, or the pattern of its names.
func (n Naming) deadLettersOf(group string) (name string, pattern bool) {
	if n == ByTopic {
		return ".*-" + regexp.QuoteMeta(group) + "-DLQ$", true
	}
	_, letters := n.Topics("", group)
	return letters, false
}

// shares reports whether the topics of a group share its retry topic.
func (n Naming) shares() bool { return n != ByTopic }
