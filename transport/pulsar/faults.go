package pulsar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/tidegate/tidegate"
)

// Codes of RocketMQ's protocol without a constant in package tidegate.
const (
	codeIllegalTopic       tidegate.Code = 40002
	codeIllegalPropertyKey tidegate.Code = 40007
)

// A meaning is what a text of the client or of a server means.
type meaning struct {
	text    string
	code    tidegate.Code // 0: a passing failure
	away    bool          // there is no connection
	message string        // for people, in place of the text alone; empty for none
}

// meanings are the texts by which faults are told from each other: the client has no types for
// them. The first text that an error contains counts. Names of one word are those of the errors of
// Pulsar's protocol.
var meanings = []meaning{
	{text: "ProducerBlockedQuotaExceeded", code: tidegate.CodeTooManyRequests, message: "the backlog quota of the topic is reached"},
	{text: "TooManyRequests", code: tidegate.CodeTooManyRequests},
	{text: "TopicNotFound", code: tidegate.CodeTopicNotFound, message: "the topic does not exist, and the server does not create it"},
	{text: "SubscriptionNotFound", code: tidegate.CodeNotFound, message: "the subscription does not exist, and the server does not create it"},
	{text: "TopicTerminated", code: tidegate.CodeForbidden, message: "the topic was terminated and accepts no messages"},
	{text: "AuthorizationError", code: tidegate.CodeForbidden},
	{text: "AuthenticationError", code: tidegate.CodeUnauthorized},
	{text: "InvalidTopicName", code: codeIllegalTopic},
	{text: "IncompatibleSchema", code: tidegate.CodeBadRequest, message: "the topic has a schema that bytes do not fit"},
	{text: "NotAllowedError", code: tidegate.CodeForbidden},
	{text: "UnsupportedVersionError", code: tidegate.CodeNotImplemented},
	{text: "exceeds MaxMessageSize", code: tidegate.CodeMessageBodyTooLarge, message: tooLarge},
	{text: "strconv.Atoi: parsing", code: codeIllegalTopic, message: malformed},
	{text: "connection error", away: true},
	{text: "connection closed", away: true},
}

// names are the full names of topics in an error, which can contain any text.
var names = regexp.MustCompile(`\S*://\S*`)

const malformed = "the client takes the name for that of a partition, because it contains -partition-, and its end is no number; " +
	"give the topic another name, or receive from the topic instead of its partition"

const tooLarge = "the message with its properties is larger than the maxMessageSize of the server"

// rejections are parts of the texts of a server that rejects the credentials of a connection: the
// client does not pass the code on. A connection refused with another text is an outage, for example
// at the maximum number of connections.
var rejections = []string{"authenticate", "Invalid roles"}

// A faults translates the errors of the client. It watches the log of the client, because the error
// of a failed connection has no reason, and comes only after the client's operation timeout. Several
// goroutines may call its methods.
type faults struct {
	logger *slog.Logger

	mu       sync.Mutex
	dial     error           // of the last attempt to connect; nil if it succeeded
	answer   string          // of a server that refused the last connection
	worked   bool            // a server has accepted a request
	hosts    map[string]bool // of New; true: the last attempt to connect to it ended with a lasting fault
	hopeless *hopeless       // of the calls that wait for a connection; nil for none
	rejected string          // the last rejection of a message that no call returned
	when     time.Time       // of it
}

// A hopeless ends the calls that wait for a connection when no host of the cluster accepts one and
// further attempts do not change that.
type hopeless struct {
	done chan struct{}   // closed by note
	err  *tidegate.Error // before done is closed
}

// newFaults returns the faults of a client with an endpoint, hosts and ports separated by commas.
func newFaults(logger *slog.Logger, endpoint string) *faults {
	f := &faults{logger: logger, hosts: map[string]bool{}}
	for host := range strings.SplitSeq(endpoint, ",") {
		f.hosts[host] = false
	}
	return f
}

// waiting returns the end of the calls that begin to wait for a connection now. An attempt to
// connect that fails later closes its done.
func (f *faults) waiting() *hopeless {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hopeless == nil {
		f.hopeless = &hopeless{done: make(chan struct{})}
	}
	return f.hopeless
}

// reason returns the error of a call that ended because of its waiting.
func (h *hopeless) reason() *tidegate.Error {
	e := *h.err
	return &e
}

// connected notes a response of a server to a request.
func (f *faults) connected() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.worked, f.dial, f.answer = true, nil, ""
}

// of returns the error of a call of the client. MaybeStored is false; the caller knows whether it
// was written.
func (f *faults) of(err error) *tidegate.Error {
	switch {
	case errors.Is(err, pulsar.ErrMessageTooLarge), errors.Is(err, pulsar.ErrMetaTooLarge):
		return &tidegate.Error{Code: tidegate.CodeMessageBodyTooLarge, Err: err, Message: tooLarge}
	case errors.Is(err, pulsar.ErrSendQueueIsFull), errors.Is(err, pulsar.ErrMemoryBufferIsFull):
		return &tidegate.Error{Code: tidegate.CodeTooManyRequests, Err: err, Message: "the client has too many sends in flight"}
	}
	text := names.ReplaceAllString(err.Error(), "")
	for _, m := range meanings {
		if !strings.Contains(text, m.text) {
			continue
		}
		if m.away {
			return f.noConnection(err)
		}
		e := &tidegate.Error{Code: m.code, Err: plain{err}, Message: m.message}
		if m.code == tidegate.CodeUnauthorized {
			e.Lapsed = f.hasWorked()
		}
		return e
	}
	return &tidegate.Error{Err: unavailable{plain{err}}}
}

// noConnection returns the error of a call for which the client has no connection.
func (f *faults) noConnection(err error) *tidegate.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return reason(err, f.dial, f.answer, f.worked)
}

// reason returns the error of a call that failed with err because the client has no connection, by
// its last attempt to connect. An error with a code that has not lapsed is a lasting fault: the
// credentials or TLS. At an address that has worked before with the same options, it is an outage.
func reason(err, dial error, answer string, worked bool) *tidegate.Error {
	rejects := func(text string) bool { return strings.Contains(answer, text) }
	switch {
	case slices.ContainsFunc(rejections, rejects):
		return &tidegate.Error{Code: tidegate.CodeUnauthorized, Lapsed: worked, Message: "the server rejected the credentials: " + answer}
	case answer != "":
		err = errors.New(answer)
	case isTLS(dial) && !worked:
		return &tidegate.Error{Code: tidegate.CodeIllegalAccessPoint, Err: dial,
			Message: "the connection cannot be encrypted; check the address, Options.TLS and the certificate"}
	case dial != nil:
		err = dial
	}
	return &tidegate.Error{Err: unavailable{plain{err}}, NotConnected: true}
}

// interrupted returns the error of a call that ended before the client had a response. The cause is
// that of its context. If the client has no connection, the error is also that of noConnection: the
// client tries to connect for as long as most contexts last.
func (f *faults) interrupted(cause error) *tidegate.Error {
	f.mu.Lock()
	failed := f.dial != nil || f.answer != ""
	f.mu.Unlock()
	if !failed || errors.Is(cause, context.Canceled) {
		return &tidegate.Error{Err: cause, NotConnected: failed}
	}
	e := f.noConnection(cause)
	if e.Message == "" {
		e.Message = "no connection: " + e.Err.Error()
	}
	e.Err = cause
	return e
}

func (f *faults) hasWorked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.worked
}

// note notes the end of an attempt to connect to a host. After a lasting fault at each host of New
// it ends the calls that wait for a connection. Faults at the hosts that a lookup returned do not:
// they concern some topics only.
func (f *faults) note(host string, dial error, answer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dial, f.answer = dial, answer
	if _, ok := f.hosts[host]; !ok {
		return
	}
	e := reason(nil, dial, answer, f.worked)
	f.hosts[host] = e.Code != 0 && !e.Lapsed
	for _, lasts := range f.hosts {
		if !lasts {
			return
		}
	}
	if f.hopeless != nil {
		f.hopeless.err = e
		close(f.hopeless.done)
		f.hopeless = nil
	}
}

// rejection returns the text of a rejected message since a time, whose send has no other response;
// empty if there was none. Which send it was is not known.
func (f *faults) rejection(since time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.when.Before(since) {
		return ""
	}
	return f.rejected
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	// crypto/tls exports no type for an alert. Of one that comes after the handshake of TLS, which is
	// how a server of TLS 1.3 rejects a client certificate, the client keeps the text alone.
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "remote error" || op.Op == "local error") {
		return true
	}
	return err != nil && strings.Contains(err.Error(), "remote error: tls: ")
}

// A plain hides the end of a context of the client, which is not the caller's.
type plain struct{ error }

func (p plain) Unwrap() error {
	if errors.Is(p.error, context.Canceled) || errors.Is(p.error, context.DeadlineExceeded) {
		return nil
	}
	return p.error
}

// Error returns the text in one line.
func (p plain) Error() string { return strings.ReplaceAll(p.error.Error(), "\n", ": ") }

// An unavailable is an error that also matches tidegate.ErrUnavailable.
type unavailable struct{ error }

func (u unavailable) Unwrap() []error { return []error{tidegate.ErrUnavailable, u.error} }

// A clientLogger is the logger of the client. It passes the client's warnings on and notes the ends
// of attempts to connect.
type clientLogger struct {
	faults *faults
	attrs  []any
	host   string // of the connection
	err    error  // of WithError
}

// The messages of the client about attempts to connect, and the field with their host; and that
// about a rejected message.
const (
	logHost      = "remote_addr"
	logConnected = "Connection is ready"
	logDial      = "Failed to connect to broker."
	logTLS       = "Failed to configure TLS "
	logHandshake = "Failed to perform initial handshake"
	logRefused   = "Failed to establish connection with broker: '%s'"
	logAuth      = "Failed to load auth credentials"
	logRejected  = "Received send error from server: [%v] : [%s]"
)

func (l clientLogger) note(format string, args []any) {
	switch format {
	case logConnected:
		l.faults.note(l.host, nil, "")
	case logDial, logTLS, logHandshake, logAuth:
		l.faults.note(l.host, l.err, "")
	case logRefused:
		l.faults.note(l.host, nil, fmt.Sprint(args...))
	case logRejected:
		l.faults.mu.Lock()
		l.faults.rejected, l.faults.when = fmt.Sprint(args[len(args)-1]), time.Now()
		l.faults.mu.Unlock()
	}
}

func (l clientLogger) with(key string, value any) clientLogger {
	l.attrs = append(slices.Clip(l.attrs), key, value)
	if u, ok := value.(*url.URL); ok && key == logHost {
		l.host = u.Host
	}
	return l
}

func (l clientLogger) print(level slog.Level, args []any) {
	if text, ok := args[0].(string); ok && len(args) == 1 {
		l.note(text, nil)
	}
	l.log(level, func() string { return fmt.Sprint(args...) })
}

func (l clientLogger) printf(level slog.Level, format string, args []any) {
	l.note(format, args)
	l.log(level, func() string { return fmt.Sprintf(format, args...) })
}

func (l clientLogger) log(level slog.Level, text func() string) {
	ctx := context.Background() // the client logs without one
	if l.faults.logger.Enabled(ctx, level) {
		l.faults.logger.Log(ctx, level, text(), l.attrs...)
	}
}

// SubLogger implements log.Logger.
func (l clientLogger) SubLogger(fields log.Fields) log.Logger { return l.withFields(fields) }

// WithFields implements log.Logger and log.Entry.
func (l clientLogger) WithFields(fields log.Fields) log.Entry { return l.withFields(fields) }

func (l clientLogger) withFields(fields log.Fields) clientLogger {
	for k, v := range fields {
		l = l.with(k, v)
	}
	return l
}

// WithField implements log.Logger and log.Entry.
func (l clientLogger) WithField(name string, value any) log.Entry { return l.with(name, value) }

// WithError implements log.Logger.
func (l clientLogger) WithError(err error) log.Entry {
	l = l.with("error", err)
	l.err = err
	return l
}

// The client reports errors of calls here too, in lines that begin with reported.

const reported = "Failed to "

// Debug implements log.Logger and log.Entry.
func (clientLogger) Debug(...any) {} // it has a line for each message

// Info implements log.Logger and log.Entry.
func (l clientLogger) Info(args ...any) { l.print(slog.LevelDebug, args) }

// Warn implements log.Logger and log.Entry.
func (l clientLogger) Warn(args ...any) { l.print(slog.LevelDebug, args) }

// Error implements log.Logger and log.Entry.
func (l clientLogger) Error(args ...any) { l.print(levelOf(fmt.Sprint(args...)), args) }

// Debugf implements log.Logger and log.Entry.
func (clientLogger) Debugf(string, ...any) {}

// Infof implements log.Logger and log.Entry.
func (l clientLogger) Infof(format string, args ...any) { l.printf(slog.LevelDebug, format, args) }

// Warnf implements log.Logger and log.Entry.
func (l clientLogger) Warnf(format string, args ...any) { l.printf(slog.LevelDebug, format, args) }

// Errorf implements log.Logger and log.Entry.
func (l clientLogger) Errorf(format string, args ...any) { l.printf(levelOf(format), format, args) }

func levelOf(text string) slog.Level {
	if strings.HasPrefix(text, reported) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
