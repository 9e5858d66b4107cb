package pulsar

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/transport"
)

// faultCases are errors of pulsar-client-go v0.19 with their full texts, and their meanings.
var faultCases = []struct {
	err   error
	class tidegate.Class
	code  tidegate.Code
	away  bool
}{
	{errors.New("server error: ProducerBlockedQuotaExceededException: Cannot create producer on topic with backlog quota exceeded"), tidegate.ClassThrottled, 42900, false},
	{errors.New("server error: ProducerBlockedQuotaExceededError: Cannot create producer on topic with backlog quota exceeded"), tidegate.ClassThrottled, 42900, false},
	{errors.Join(pulsar.ErrProducerBlockedQuotaExceeded, errors.New("server error: ProducerBlockedQuotaExceededException: Cannot create producer")), tidegate.ClassThrottled, 42900, false},
	{errors.New("TooManyRequests"), tidegate.ClassThrottled, 42900, false},
	{pulsar.ErrSendQueueIsFull, tidegate.ClassThrottled, 42900, false},
	{pulsar.ErrMemoryBufferIsFull, tidegate.ClassThrottled, 42900, false},
	{errors.New("TopicNotFound"), tidegate.ClassPermanent, 40402, false},
	{errors.New("server error: TopicNotFound: Topic persistent://public/default/orders does not exist"), tidegate.ClassPermanent, 40402, false},
	{errors.New("server error: SubscriptionNotFound: Subscription does not exist"), tidegate.ClassPermanent, 40400, false},
	{errors.New("server error: TopicTerminatedError: Topic was already terminated"), tidegate.ClassPermanent, 40300, false},
	{errors.New("server error: AuthorizationError: Client is not authorized to Produce"), tidegate.ClassPermanent, 40300, false},
	{errors.New("server error: AuthenticationError: Unable to authenticate"), tidegate.ClassPermanent, 40100, false},
	{errors.New("Topic name is required for producer: InvalidTopicName"), tidegate.ClassPermanent, 40002, false},
	{errors.New("invalid topic name: persistent://public/default/orders-partition-3-billing-DLQ: strconv.Atoi: parsing \"DLQ\": invalid syntax"), tidegate.ClassPermanent, 40002, false},
	{errors.New("unable to subscribe to topic=persistent://public/default/AuthorizationErrors: request timed out"), tidegate.ClassTransient, 0, false},
	{errors.New("server error: IncompatibleSchema: Producers cannot connect or send message without a schema to topics with a schema"), tidegate.ClassPermanent, 40000, false},
	{errors.New("server error: NotAllowedError: Create topic under invalid namespace"), tidegate.ClassPermanent, 40300, false},
	{errors.New("server error: UnsupportedVersionError: Unsupported protocol version"), tidegate.ClassPermanent, 50100, false},
	{pulsar.ErrMessageTooLarge, tidegate.ClassPermanent, 41301, false},
	{pulsar.ErrMetaTooLarge, tidegate.ClassPermanent, 41301, false},
	{errors.Join(context.DeadlineExceeded, errors.New("connection error")), tidegate.ClassTransient, 0, true},
	{errors.New("connection closed"), tidegate.ClassTransient, 0, true},
	{pulsar.ErrProducerClosed, tidegate.ClassTransient, 0, false},
	{errors.New("request timed out"), tidegate.ClassTransient, 0, false},
	{errors.Join(context.Canceled, errors.New("request timed out")), tidegate.ClassTransient, 0, false},
	{errors.New("server error: ServiceNotReady: Namespace bundle for topic is not served by this instance"), tidegate.ClassTransient, 0, false},
	{errors.New("server error: PersistenceError: Failed to write to bookies"), tidegate.ClassTransient, 0, false},
	{errors.New("ack response error: MetadataError: Failed to update the cursor"), tidegate.ClassTransient, 0, false},
}

// Each error of the client has its class and code. The end of a context of the client is not taken
// for that of the caller's, and the text has one line.
func TestFaults(t *testing.T) {
	for _, c := range faultCases {
		f := newFaults(slog.New(slog.DiscardHandler), "pulsar:6650")
		e := f.of(c.err)
		expected{class: c.class, code: c.code, notConnected: c.away}.check(t, c.err.Error(), e)
		assert.That(t, !errors.Is(e, context.DeadlineExceeded) && !errors.Is(e, context.Canceled), "%v is the end of a context of the caller", e)
		assert.That(t, !strings.Contains(e.Error(), "\n"), "%q has several lines", e.Error())
		assert.That(t, c.class != tidegate.ClassTransient || errors.Is(e, tidegate.ErrUnavailable), "%v does not match ErrUnavailable", e)
	}
	for _, m := range meanings {
		known := false
		for _, c := range faultCases {
			known = known || strings.Contains(c.err.Error(), m.text)
		}
		assert.That(t, known, "no case has the text %q", m.text)
	}
}

// onServer has the test of ./interop in which a real server produces each text of meanings, or the
// reason for which there is none.
var onServer = map[string]string{
	"ProducerBlockedQuotaExceeded": "TestQuotaThrottles",
	"TooManyRequests":              "TestServerLimits",
	"TopicNotFound":                "TestFaults",
	"SubscriptionNotFound":         "TestPolicies",
	"TopicTerminated":              "TestFaults",
	"AuthorizationError":           "TestTokensAndPermissions",
	"AuthenticationError":          "a broker sends it at the begin of a connection only, and the client logs its text; see TestTokensAndPermissions",
	"InvalidTopicName":             "TestPolicies",
	"IncompatibleSchema":           "TestPolicies",
	"NotAllowedError":              "TestPolicies",
	"UnsupportedVersionError":      "a broker sends it to clients of an older protocol than that of pulsar-client-go v0.19",
	"exceeds MaxMessageSize":       "TestServerLimits",
	"strconv.Atoi: parsing":        "TestPolicies",
	"connection error":             "TestServerAway",
	"connection closed":            "TestSilentNetwork",
}

// A new row of meanings needs a test on a real server, or a reason.
func TestMeaningsOnAServer(t *testing.T) {
	tests := servertest.Tests(t, "interop")
	for _, m := range meanings {
		test := onServer[m.text]
		assert.That(t, tests[test] || test != "" && !strings.HasPrefix(test, "Test"), "%q: test %q of a real server does not exist", m.text, test)
	}
	assert.Equal(t, "rows of onServer", len(onServer), len(meanings))
}

// CASES.md names tests that exist.
func TestCases(t *testing.T) { servertest.Cases(t, ".", 40) }

// Credentials that the server has accepted before have lapsed.
func TestLapsedCredentials(t *testing.T) {
	f := newFaults(slog.New(slog.DiscardHandler), "pulsar:6650")
	f.connected()
	e := f.of(errors.New("server error: AuthenticationError: Token expired"))
	expected{class: tidegate.ClassTransient, code: 40100}.check(t, "expired token", e)
	assert.That(t, e.Lapsed, "the token has not lapsed: %v", e)
}

// What the client logs about its attempts to connect is the reason of "connection error". At an
// address that has worked, a fault of TLS or of the credentials passes.
func TestNotedFaults(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	unknown := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	alert := &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}
	for _, c := range []struct {
		name  string
		log   func(l log.Logger)
		first expected
		later expected // at an address that has worked
		cause error
	}{
		{
			"refused connection", func(l log.Logger) { l.WithError(refused).Warn("Failed to connect to broker.") },
			expected{class: tidegate.ClassTransient, notConnected: true}, expected{class: tidegate.ClassTransient, notConnected: true}, syscall.ECONNREFUSED,
		},
		{
			"unknown authority", func(l log.Logger) { l.WithError(unknown).Warn("Failed to connect to broker.") },
			expected{class: tidegate.ClassPermanent, code: 40001}, expected{class: tidegate.ClassTransient, notConnected: true}, unknown,
		},
		{
			"no TLS", func(l log.Logger) {
				l.WithError(tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}).Warn("Failed to connect to broker.")
			},
			expected{class: tidegate.ClassPermanent, code: 40001}, expected{class: tidegate.ClassTransient, notConnected: true}, nil,
		},
		{
			"alert", func(l log.Logger) { l.WithError(alert).Warn("Failed to connect to broker.") },
			expected{class: tidegate.ClassPermanent, code: 40001}, expected{class: tidegate.ClassTransient, notConnected: true}, alert,
		},
		{
			"alert during the handshake of Pulsar", func(l log.Logger) {
				l.WithError(errors.New("unable to read frame size: remote error: tls: certificate required")).Warn("Failed to perform initial handshake")
			},
			expected{class: tidegate.ClassPermanent, code: 40001}, expected{class: tidegate.ClassTransient, notConnected: true}, nil,
		},
		{
			"handshake", func(l log.Logger) {
				l.WithError(errors.New("unable to read frame size: EOF")).Warn("Failed to perform initial handshake")
			},
			expected{class: tidegate.ClassTransient, notConnected: true}, expected{class: tidegate.ClassTransient, notConnected: true}, nil,
		},
		{
			"credentials", func(l log.Logger) {
				l.Warnf("Failed to establish connection with broker: '%s'", "Unable to authenticate")
			},
			expected{class: tidegate.ClassPermanent, code: 40100}, expected{class: tidegate.ClassTransient, code: 40100}, nil,
		},
		{
			"no token", func(l log.Logger) { l.WithError(errors.New("vault is sealed")).Warn("Failed to load auth credentials") },
			expected{class: tidegate.ClassTransient, notConnected: true}, expected{class: tidegate.ClassTransient, notConnected: true}, nil,
		},
		{
			"too many connections", func(l log.Logger) {
				l.Warnf("Failed to establish connection with broker: '%s'", "Reached the maximum number of connections")
			},
			expected{class: tidegate.ClassTransient, notConnected: true}, expected{class: tidegate.ClassTransient, notConnected: true}, nil,
		},
	} {
		f := newFaults(slog.New(slog.DiscardHandler), "pulsar:6650")
		l := clientLogger{faults: f}.SubLogger(log.Fields{"remote_addr": "pulsar:6650"})
		c.log(l)
		e := f.of(errors.New("connection error"))
		c.first.check(t, c.name, e)
		assert.That(t, c.cause == nil || errors.Is(e, c.cause), "%s: %v lacks the cause %v", c.name, e, c.cause)
		c.first.check(t, c.name+", at the end of a ctx", f.interrupted(context.DeadlineExceeded))
		expected{class: tidegate.ClassCancelled, notConnected: true}.check(t, c.name+", cancelled", f.interrupted(context.Canceled))
		f.connected()
		expected{class: tidegate.ClassTransient}.check(t, c.name+", end of a ctx at a connection", f.interrupted(context.DeadlineExceeded))
		c.log(l)
		c.later.check(t, c.name+", later", f.of(errors.New("connection error")))
		l.Info("Connection is ready")
		e = f.of(errors.New("connection closed"))
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, c.name+", lost connection", e)
		assert.That(t, c.cause == nil || !errors.Is(e, c.cause), "%s: %v has a cause that is over", c.name, e)
	}
}

// The first attempts to connect that fail for a lasting reason end all calls that wait for a
// connection, long before the client gives up. The next call uses the new token, and nothing is
// stored of the calls that ended.
func TestRejectedCredentials(t *testing.T) {
	for name, call := range map[string]func(context.Context, *Client) error{
		"Send":         func(ctx context.Context, c *Client) error { return send(ctx, c, "ended") },
		"waiting Send": func(ctx context.Context, c *Client) error { return send(transport.AwaitConnection(ctx), c, "ended") },
		"Receive":      func(ctx context.Context, c *Client) error { return assert.Err(c.Receive(ctx, request("billing"))) },
		"Ping":         func(ctx context.Context, c *Client) error { return c.Ping(ctx) },
		"Queues":       func(ctx context.Context, c *Client) error { return assert.Err(c.Queues(ctx, "billing", "orders")) },
	} {
		inBubble(t, Options{RequestTimeout: time.Minute}, func(t *testing.T, s *fakeServer, c *Client) {
			rejection := "Failed to authenticate"
			s.reject = func() string { return rejection }
			start := time.Now()
			for range 3 {
				err := call(t.Context(), c)
				expected{class: tidegate.ClassPermanent, code: tidegate.CodeUnauthorized}.check(t, name, err)
				assert.Contains(t, name, err.Error(), rejection)
			}
			assert.That(t, time.Since(start) <= time.Second, "%s: three calls took %v", name, time.Since(start))
			s.with(func(*fakeServer) { rejection = "" })
			mustSend(t, c, "accepted")
			ack(t, c, one(t, c, request("billing"), "accepted", 1))
			assert.That(t, time.Since(start) <= 2*time.Second, "%s: the rotated token took %v", name, time.Since(start))
			time.Sleep(time.Hour)
			wantBodies(t, s, "accepted")
		})
	}
}

// A refusal that passes does not end a call before its time: the client goes on until the server
// accepts a connection. The same holds for credentials that the server has accepted before.
func TestPassingRefusals(t *testing.T) {
	for _, text := range []string{"Reached the maximum number of connections", "Failed due to pulsar service is not ready"} {
		inBubble(t, Options{RequestTimeout: time.Minute}, func(t *testing.T, s *fakeServer, c *Client) {
			start := time.Now()
			s.reject = func() string {
				if time.Since(start) < 50*time.Second {
					return text
				}
				return ""
			}
			mustSend(t, c, "x")
		})
	}
	inBubble(t, Options{RequestTimeout: time.Minute}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.disconnect(false)
		rejection := "Failed to authenticate"
		s.with(func(s *fakeServer) { s.reject = func() string { return rejection } })
		time.AfterFunc(50*time.Second, func() { s.with(func(*fakeServer) { rejection = "" }) })
		synctest.Wait()
		mustSend(t, c, "1")
	})
}

// The calls that wait end once the last attempt to connect to each host of New failed for a lasting
// reason, and not by attempts before they began.
func TestLastingFaults(t *testing.T) {
	type attempt struct{ host, fails string }
	const rejected, full = "Failed to authenticate", "Reached the maximum number of connections"
	for _, c := range []struct {
		name          string
		before, while []attempt
		want          bool
	}{
		{"one of two hosts", nil, []attempt{{"a:1", rejected}, {"a:1", rejected}}, false},
		{"both hosts", nil, []attempt{{"a:1", rejected}, {"b:2", rejected}}, true},
		{"one host is full", nil, []attempt{{"a:1", rejected}, {"b:2", full}}, false},
		{"both hosts, the second later", nil, []attempt{{"b:2", full}, {"a:1", rejected}, {"b:2", rejected}}, true},
		{"a host accepts a connection meanwhile", nil, []attempt{{"a:1", rejected}, {"a:1", ""}, {"b:2", rejected}}, false},
		{"attempts before the call", []attempt{{"a:1", rejected}, {"b:2", rejected}}, nil, false},
		{"the host of a lookup", []attempt{{"a:1", rejected}, {"b:2", rejected}}, []attempt{{"c:3", rejected}}, false},
	} {
		for _, worked := range []bool{false, true} {
			f := newFaults(slog.New(slog.DiscardHandler), "a:1,b:2")
			if worked {
				f.connected()
			}
			connect := func(attempts []attempt) {
				for _, a := range attempts {
					l := clientLogger{faults: f}.SubLogger(log.Fields{"remote_addr": &url.URL{Host: a.host}})
					if a.fails == "" {
						l.Info("Connection is ready")
					} else {
						l.Warnf("Failed to establish connection with broker: '%s'", a.fails)
					}
				}
			}
			connect(c.before)
			h := f.waiting()
			connect(c.while)
			assert.Equal(t, c.name+": ended", ended(h), c.want && !worked)
			assert.That(t, !ended(f.waiting()), "%s: a call ended that began later", c.name)
			if ended(h) {
				expected{class: tidegate.ClassPermanent, code: tidegate.CodeUnauthorized}.check(t, c.name, h.reason())
			}
		}
	}
}

func ended(h *hopeless) bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// The client's log goes to Options.Logger without its lines for each message: its errors as
// warnings, unless a call reports them, and the rest for debugging.
func TestClientLogger(t *testing.T) {
	var out bytes.Buffer
	f := &faults{logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))}
	l := clientLogger{faults: f}.SubLogger(log.Fields{"topic": "orders"})
	l.WithField("cnx", 1).Error("broken")
	l.WithError(errors.New("e")).WithField("n", 2).Warnf("%d of %d", 1, 2)
	l.WithFields(log.Fields{"a": "b"}).Info("Created producer")
	l.Debug("Received send request")
	l.Debugf("%s", "x")
	l.Infof("%s", "closed")
	l.Errorf("%s", "worse")
	l.WithField("cnx", 2).Error("Failed to create producer")
	want := `level=WARN msg=broken topic=orders cnx=1
level=DEBUG msg="1 of 2" topic=orders error=e n=2
level=DEBUG msg="Created producer" topic=orders a=b
level=DEBUG msg=closed topic=orders
level=WARN msg=worse topic=orders
level=DEBUG msg="Failed to create producer" topic=orders cnx=2
`
	assert.Equal(t, "log", out.String(), want)
}

// A peer accepts connections on the loopback interface.
func peer(t *testing.T, config *tls.Config, serve func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	if config != nil {
		l = tls.NewListener(l, config)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if serve != nil {
					serve(conn)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// refuseAs responds to the CONNECT command with an ERROR command: AuthenticationError and a text.
func refuseAs(text string) func(net.Conn) {
	return func(conn net.Conn) {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(size[:]))); err != nil {
			return
		}
		body := append([]byte{8, 0, 16, 3, 26, byte(len(text))}, text...)     // request_id, error, message
		command := append([]byte{8, 14, 14<<3 | 2, byte(len(body))}, body...) // type ERROR, error
		frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))   // with the next size
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))    // of the command
		_, _ = conn.Write(append(frame, command...))
	}
}

// once returns a token the first time, which is for New, and then what f returns.
func once(f func() (string, error)) func() (string, error) {
	var used atomic.Bool
	return func() (string, error) {
		if used.CompareAndSwap(false, true) {
			return "secret", nil
		}
		return f()
	}
}

// The real client reports faults of its connections with the texts that this package knows.
func TestRealClient(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	trust := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}
	trust.RootCAs.AddCert(web.Certificate())
	server := &tls.Config{Certificates: web.TLS.Certificates}
	closed := peer(t, nil, nil)
	for name, c := range map[string]struct {
		address string
		o       Options
		want    expected
		text    string
	}{
		"no server":         {"pulsar://127.0.0.1:1", Options{}, expected{class: tidegate.ClassTransient, notConnected: true}, "connection refused"},
		"closed connection": {"pulsar://" + closed, Options{}, expected{class: tidegate.ClassTransient, notConnected: true}, ""},
		"no TLS": {
			"pulsar+ssl://" + peer(t, nil, func(c net.Conn) { _, _ = c.Write([]byte("plain text")) }), Options{TLS: trust},
			expected{class: tidegate.ClassPermanent, code: 40001}, "TLS",
		},
		"unknown authority": {
			"pulsar+ssl://" + peer(t, server, refuseAs("never")), Options{},
			expected{class: tidegate.ClassPermanent, code: 40001}, "unknown authority",
		},
		"no client certificate": {
			"pulsar+ssl://" + peer(t, &tls.Config{Certificates: web.TLS.Certificates, ClientAuth: tls.RequireAnyClientCert}, refuseAs("never")),
			Options{TLS: trust}, expected{class: tidegate.ClassPermanent, code: 40001}, "certificate",
		},
		"refused token": {
			"pulsar://" + peer(t, nil, refuseAs("Unable to authenticate")), Options{Token: func() (string, error) { return "secret", nil }},
			expected{class: tidegate.ClassPermanent, code: 40100}, "Unable to authenticate",
		},
		"refused over TLS": {
			"pulsar+ssl://" + peer(t, server, refuseAs("Unable to authenticate")), Options{TLS: trust},
			expected{class: tidegate.ClassPermanent, code: 40100}, "Unable to authenticate",
		},
		"no token": {
			"pulsar://" + closed, Options{Token: once(func() (string, error) { return "", errSealed })},
			expected{class: tidegate.ClassTransient, notConnected: true}, errSealed.Error(),
		},
		"panicking token": {
			"pulsar://" + closed, Options{Token: once(func() (string, error) { panic("sealed") })},
			expected{class: tidegate.ClassTransient, notConnected: true}, "Options.Token panicked: sealed",
		},
		"too many connections": {
			"pulsar://" + peer(t, nil, refuseAs("Reached the maximum number of connections")), Options{},
			expected{class: tidegate.ClassTransient, notConnected: true}, "maximum number of connections",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the client tries for RequestTimeout
			c.o.RequestTimeout = 2 * time.Second
			client, err := New(c.address, c.o)
			assert.Must(t, err)
			defer client.Close()
			c.want.eventually(t, "Send", c.text, func() error { return send(t.Context(), client, "x") })
			c.want.eventually(t, "Queues", c.text, func() error { return assert.Err(client.Queues(t.Context(), "billing", "orders")) })
		})
	}
}

// eventually repeats a call until its error is the expected one: on a busy machine an attempt to
// connect can take too long.
func (want expected) eventually(t *testing.T, what, text string, call func() error) {
	t.Helper()
	err := call()
	for start := time.Now(); !(want.matches(err) && strings.Contains(err.Error(), text)) && time.Since(start) < time.Minute; {
		err = call()
	}
	want.check(t, what, err)
	assert.Contains(t, what, err.Error(), text)
}
