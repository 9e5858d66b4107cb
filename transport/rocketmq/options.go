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

// forever stands for the times that are longer: 73 years, of which two and some
// more can be added up.
const forever = time.Duration(1 << 61)

// Options are the choices of a [Client]. The zero value is a plain-text client
// without credentials.
type Options struct {
	// TLS configures encrypted connections. Set its InsecureSkipVerify for a server with a
	// self-signed certificate. Nil means plain text.
	TLS *tls.Config

	// Credentials sign every request. Zero means unsigned requests.
	Credentials Credentials

	// Namespace is the prefix of the names of topics and groups on servers with namespaces. Empty
	// means none.
	Namespace string

	// ClientID identifies this client to the server. The session of a consumer group has the ID,
	// "@" and the group's name. Two clients must not have the same ID. Empty means
	// host@process@number@random, as in RocketMQ's clients.
	ClientID string

	// RequestTimeout bounds every request, in addition to the caller's ctx. A receive has it in
	// addition to its waiting time. A send with a deadline has that deadline instead, for a
	// producer its AttemptTimeout. Default: 3 s.
	RequestTimeout time.Duration

	// ConnectBackoff paces attempts to connect, and to re-open a session that
	// was lost. A consumer that asks is not kept waiting by it: its own waits
	// between receives say when to try, at most about twice a second for each server.
	// Zero means backoff.Default().
	ConnectBackoff backoff.Exponential

	// Dialer makes connections, for in-memory networks and the like; addr is
	// host:port. Nil means TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)

	// HeartbeatInterval is how often a session sends a heartbeat. Default: 10 s.
	HeartbeatInterval time.Duration

	// RouteRefresh is how often the route of a topic in use is asked for. Default: 30 s.
	RouteRefresh time.Duration

	// SettingsSync is how often a session repeats its settings. For twice that
	// it remembers a topic that is not used, and for twice that, or until what it
	// received cannot be settled any more, the session stays when no call uses it.
	// Default: 5 min.
	SettingsSync time.Duration

	// MaxReceiveSize bounds, in bytes, a received body, before and after
	// decompression, and every answer but a receive's. A message whose body is
	// larger is logged and not returned; if it is larger than 64 MiB too, the
	// receive fails, and the messages behind it come later. Default: 32 MiB.
	MaxReceiveSize int

	// Compression is the size in bytes above which bodies are sent gzipped,
	// if that makes them smaller. Zero means never.
	Compression int

	// FixedEndpoint sends everything to the endpoints given to New, whatever
	// addresses a route names: for servers behind NAT or mapped ports, whose
	// routes name addresses that cannot be reached. False means the addresses of the route.
	FixedEndpoint bool

	// Logger gets the events that no call returns: lost sessions, corrupt messages.
	// Nil means silence.
	Logger *slog.Logger
}

// Credentials are the keys of RocketMQ's ACL.
type Credentials struct {
	AccessKey    string
	SecretKey    string
	SessionToken string // of temporary keys; empty means none
}

// withDefaults returns o with every zero field replaced, or an error that
// names all fields at fault.
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
			fault(h.field, strconv.Quote(h.value), "printable ASCII without spaces, since it goes into a header")
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

// newClientID has the form that RocketMQ's clients use.
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
