package rocketmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// forever replaces longer durations: 73 years. The sum of three such durations still fits into a
// time.Duration.
const forever = time.Duration(1 << 61)

// Options configure a [Client]. The zero value is a plain-text client without credentials.
type Options struct {
	// TLS configures encrypted connections. Set its InsecureSkipVerify for a server with a
	// self-signed certificate. Nil means plain text.
	TLS *tls.Config

	// Credentials sign every request. Zero means unsigned requests.
	Credentials tidegate.Credentials

	// Namespace is the prefix of the names of topics and groups on servers with namespaces. Empty
	// means none.
	Namespace string

	// ClientID identifies this client to the server. The session of a consumer group appends "@"
	// and the group's name, and that of a simple consumer also "@simple". Two clients must not have
	// the same ID. Empty means host@process@number@random, as in RocketMQ's clients.
	ClientID string

	// RequestTimeout bounds every request, in addition to the caller's ctx. A receive has it in
	// addition to its waiting time. A send with a deadline has that deadline instead, for a
	// producer its AttemptTimeout. Default: 3 s.
	RequestTimeout time.Duration

	// ConnectBackoff paces attempts to connect and to reopen a lost session. Calls of a consumer do
	// not wait for it: they try at once, at most about twice a second for each server, because the
	// consumer has its own waits between receives. Zero means backoff.Default().
	ConnectBackoff backoff.Exponential

	// Dialer makes connections, for in-memory networks and the like; addr is
	// host:port. Nil means TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)

	// HeartbeatInterval is how often a session sends a heartbeat. On a tidegate broker the sessions
	// take turns: one of them sends a heartbeat for all. Default: 10 s.
	HeartbeatInterval time.Duration

	// RouteRefresh is the time between two queries for the route of a topic in use. Default: 30 s.
	RouteRefresh time.Duration

	// SettingsSync is the time between two transmissions of a session's settings. A topic leaves
	// the settings after twice that time without use. An unused session ends after twice that time,
	// but not before its deliveries can no longer be settled. Default: 5 min.
	SettingsSync time.Duration

	// MaxReceiveSize bounds a received body, before and after decompression, and every response
	// except that of a receive, in bytes. A message with a larger body is logged and skipped. If
	// the body is also larger than 64 MiB, the receive fails, and the later messages arrive with
	// the next receives. Default: 32 MiB.
	MaxReceiveSize int

	// Compression is the size in bytes above which bodies are compressed with gzip, if that makes
	// them smaller. It costs about 15 to 25 µs of CPU for 1 KiB of JSON, and a third of that for
	// bytes that do not shrink (BenchmarkGzip of internal/wire). Zero means never.
	Compression int

	// FixedEndpoint sends every request to the endpoints given to New and ignores the addresses in
	// routes. Set it for servers behind NAT or mapped ports, for example a broker in a container.
	// False means the addresses of the route.
	FixedEndpoint bool

	// KeepOrder tries several addresses of one server in the order of the list, so that the first
	// one that works gets the connections of all clients. False means a random order, chosen for
	// each connection that the client opens to the list.
	KeepOrder bool

	// Logger receives the events that no call returns, for example lost sessions and corrupt
	// messages. Nil means no logging.
	Logger *slog.Logger
}

// withDefaults returns o with a default in each zero field, or an error that names all invalid
// fields.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	fault := func(field string, value any, want string) {
		errs = append(errs, &tidegate.Error{Op: "rocketmq.New", Subject: "Options." + field, Code: tidegate.CodeBadRequest,
			Message: fmt.Sprintf("%v is not allowed; give %s", value, want)})
	}
	duration := func(field string, d *time.Duration, def time.Duration) {
		if *d < 0 {
			fault(field, *d, fmt.Sprintf("0 for %v, or more", def))
		}
		if *d == 0 {
			*d = def
		}
		*d = min(*d, forever)
	}
	size := func(field string, n *int, def int) {
		if *n < 0 {
			fault(field, *n, "0 or more bytes")
		}
		if *n == 0 {
			*n = def
		}
	}
	duration("RequestTimeout", &o.RequestTimeout, 3*time.Second)
	duration("HeartbeatInterval", &o.HeartbeatInterval, 10*time.Second)
	duration("RouteRefresh", &o.RouteRefresh, 30*time.Second)
	duration("SettingsSync", &o.SettingsSync, 5*time.Minute)
	size("MaxReceiveSize", &o.MaxReceiveSize, 32<<20)
	size("Compression", &o.Compression, 0)
	o.ConnectBackoff = o.ConnectBackoff.Filled()
	if err := o.ConnectBackoff.Validate(); err != nil {
		errs = append(errs, &tidegate.Error{Op: "rocketmq.New", Subject: "Options.ConnectBackoff", Code: tidegate.CodeBadRequest, Err: err})
	}
	for _, h := range []struct{ field, value string }{
		{"Namespace", o.Namespace}, {"ClientID", o.ClientID},
		{"Credentials.AccessKey", o.Credentials.AccessKey}, {"Credentials.SessionToken", o.Credentials.SessionToken},
	} {
		if !headerSafe(h.value) {
			fault(h.field, strconv.Quote(h.value), "printable ASCII without spaces, because it is sent in a header")
		}
	}
	if k := o.Credentials; (k.AccessKey == "") != (k.SecretKey == "") || k.AccessKey == "" && k.SessionToken != "" {
		fault("Credentials", "a part of the keys", "AccessKey and SecretKey together, or none")
	}
	if o.ClientID == "" {
		o.ClientID = newClientID()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

func headerSafe(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

var clientNumber atomic.Int64

// newClientID returns an ID in the form of RocketMQ's clients.
func newClientID() string {
	host := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, hostname())
	return fmt.Sprintf("%s@%d@%d@%s", host, os.Getpid(), clientNumber.Add(1)-1,
		strconv.FormatInt(time.Now().UnixMicro(), 36))
}

func hostname() string {
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "unknown"
}
