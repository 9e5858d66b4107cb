package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// printed returns n messages with the IDs from first on.
func printed(first, n int) []*tidegate.Delivery {
	ds := make([]*tidegate.Delivery, n)
	for i := range ds {
		ds[i] = &tidegate.Delivery{Message: tidegate.Message{ID: fmt.Sprint(first + i)}}
	}
	return ds
}

func ids(ds []*tidegate.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, d.ID)
	}
	return all
}

// Acknowledgements are of whole receives, and begin while others are under way, up to a number. The
// end waits for the last one.
func TestAcknowledgementsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var calls [][]string
		answer := make(chan struct{})
		a := newAcknowledger(func(ds []*tidegate.Delivery) []error {
			mu.Lock()
			calls = append(calls, ids(ds))
			mu.Unlock()
			<-answer
			return make([]error, len(ds))
		}, func() { t.Error("a failure") })
		printing := make(chan struct{})
		go func() {
			defer close(printing)
			for i := range 2 * maxUnderWay {
				a.acknowledge(printed(2*i, 2))
			}
		}()
		synctest.Wait()
		assert.Equal(t, "acknowledgements are under way", len(calls), maxUnderWay)
		close(answer)
		<-printing
		rest, err := a.end()
		all := slices.Concat(calls...)
		slices.Sort(all)
		if n := len(slices.Compact(all)); n != 4*maxUnderWay || len(calls) != 2*maxUnderWay || len(rest) > 0 || err != nil {
			t.Errorf("%d messages in %d acknowledgements, %d are left, %v", n, len(calls), len(rest), err)
		}
	})
}

// No acknowledgement begins after a failure: the messages that are printed later are left, in their
// order. The error names the failed message that was printed first, and counts the others, although
// a later acknowledgement failed before.
func TestAcknowledgeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		failures, calls := 0, 0
		a := newAcknowledger(func(ds []*tidegate.Delivery) []error {
			errs := make([]error, len(ds))
			if calls++; ds[0].ID == "0" {
				time.Sleep(2 * time.Second)
				errs[1], errs[2] = away, away
			} else {
				time.Sleep(time.Second)
				errs[0] = away
			}
			return errs
		}, func() { failures++ })
		a.acknowledge(printed(0, 3))
		synctest.Wait()
		a.acknowledge(printed(3, 32))
		time.Sleep(1500 * time.Millisecond)
		a.acknowledge(printed(1000, 1))
		a.acknowledge(printed(2000, 2))
		rest, err := a.end()
		if !errors.Is(err, away) || !strings.Contains(err.Error(), "message 1 was printed and not settled: away; 2 more like it") {
			t.Errorf("the error is %v", err)
		}
		if !slices.Equal(ids(rest), []string{"1000", "2000", "2001"}) || failures != 1 || calls != 2 {
			t.Errorf("%q are left after %d failures and %d acknowledgements", ids(rest), failures, calls)
		}
	})
}

// A slowWriter takes two seconds for each write.
type slowWriter struct{}

func (slowWriter) Write(b []byte) (int, error) {
	<-time.After(2 * time.Second)
	return len(b), nil
}

// An acknowledgement fails while the next message is printed: that message is released.
func TestPrintedMessageIsReleasedAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &tidegate.Error{Code: tidegate.CodeInternalServerError}
		fake := &transporttest.Fake{Announces: transport.Capabilities{Verdicts: transport.Snooze}}
		fake.OnAck = func(context.Context, int, []*tidegate.Delivery) []error {
			time.Sleep(time.Second)
			return []error{away}
		}
		for i := range 33 { // two receives
			fake.Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: fmt.Sprint(i), Topic: "orders"}})
		}
		r := &receiveCommand{
			Call: &Call{App: &App{Out: slowWriter{}}, Timeout: time.Minute},
			then: "ack", raw: true, max: 33, wait: 5 * time.Second, lease: time.Minute,
		}
		err := r.look(t.Context(), fake, consumer.Subscription{Group: "billing", Topic: "orders"}, fate{name: "ack"})
		acks, settled := fake.Calls("Ack"), fake.Calls("Settle")
		if !errors.Is(err, away) || len(acks) != 1 || len(settled) != 1 ||
			settled[0].Deliveries[0].ID != "32" || settled[0].Verdict.Kind != transport.Snooze {
			t.Errorf("%v after %d acknowledgements; settled: %+v, want message 32 released", err, len(acks), settled)
		}
	})
}

// The oldest message is released first, so that a receive that waits gets them in their order.
func TestReleasesKeepTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &transporttest.Fake{Announces: transport.Capabilities{Verdicts: transport.Snooze}}
		r := &receiveCommand{Call: &Call{App: &App{}, Timeout: time.Minute}}
		assert.Must(t, r.release(t.Context(), fake, printed(1, 5)))
		var released []string
		for _, c := range fake.Calls("Settle") {
			released = append(released, ids(c.Deliveries)...)
		}
		assert.Equal(t, "released", fmt.Sprint(released), "[1 2 3 4 5]")
	})
}

// --wait ends a worker when nothing has begun for a time, but not while a program runs, however
// long.
func TestWaitDoesNotStopAProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{}
		w.running, w.stop = context.WithCancel(t.Context())
		w.begun.Store(1)
		w.active.Store(1) // its program runs
		go w.stopIdle(5 * time.Second)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.That(t, w.running.Err() == nil, "the worker was stopped while a program ran")
		w.begun.Add(1) // another message, at the end of the first program
		time.Sleep(6 * time.Second)
		w.active.Store(0)
		began := time.Now()
		<-w.running.Done()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the worker ended %v after its last program", took)
		}
	})
}

// Every fate of a printed message outlives a server that is away with --follow, and is settled
// after Ctrl-C. A handle that is unknown at a repetition is that of a settlement whose response was
// lost.
func TestPersistentFates(t *testing.T) {
	away := tidegate.ErrUnavailable
	for _, fate := range []fate{{name: "retry"}, {name: "dead"}} {
		for name, c := range map[string]struct {
			follow, interrupted bool
			results             []error
			calls               int
			err                 error
		}{
			"without --follow":     {false, false, []error{away, nil}, 1, away},
			"with --follow":        {true, false, []error{away, away, nil}, 3, nil},
			"the response is lost": {true, false, []error{away, tidegate.ErrInvalidHandle}, 2, nil},
			"an unknown handle":    {true, false, []error{tidegate.ErrInvalidHandle}, 1, tidegate.ErrInvalidHandle},
			"after Ctrl-C":         {false, true, []error{nil}, 1, nil},
			"both":                 {true, true, []error{away, nil}, 2, nil},
		} {
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				if c.interrupted {
					interrupt()
				}
				calls := 0
				s := &transporttest.Fake{OnSettle: func(ctx context.Context, _ int, _ *tidegate.Delivery, _ transport.Verdict) (r transport.RetryResult, err error) {
					if ctx.Err() != nil {
						return r, context.Cause(ctx)
					}
					calls++
					return r, c.results[calls-1]
				}}
				r := &receiveCommand{Call: &Call{App: &App{}, Timeout: 10 * time.Second}, follow: c.follow, lease: 30 * time.Second}
				if err := r.settle(ctx, s, printed(1, 1)[0], fate); !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || calls != c.calls {
					t.Errorf("%s, %s: %v after %d calls", fate.name, name, err, calls)
				}
			})
		}
	}
}

// An acknowledgement that no server answered is repeated until the lease has ended, and a last time
// after Ctrl-C: the server may have come back.
func TestPersistentAcknowledgements(t *testing.T) {
	for name, c := range map[string]struct {
		back, interrupted time.Duration
		calls             int
		fails             bool
	}{
		"the server comes back":              {back: 2500 * time.Millisecond, interrupted: time.Hour, calls: 4},
		"Ctrl-C after the server came back":  {back: 1200 * time.Millisecond, interrupted: 1500 * time.Millisecond, calls: 3},
		"Ctrl-C before the server came back": {back: time.Hour, interrupted: 1500 * time.Millisecond, calls: 3, fails: true},
		"the lease ends":                     {back: time.Hour, interrupted: time.Hour, calls: 11, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.interrupted)
				defer cancel()
				start, calls := time.Now(), 0
				errs := persistent(ctx, 10*time.Second, func(ds []*tidegate.Delivery) []error {
					calls++
					if calls > 1 && len(ds) != 1 {
						t.Errorf("call %d is for %v, want the message without an answer", calls, ids(ds))
					}
					errs := make([]error, len(ds))
					if time.Since(start) < c.back {
						errs[0] = tidegate.ErrUnavailable
					}
					return errs
				})(printed(0, 2))
				assert.That(t, calls == c.calls && errs[1] == nil && (errs[0] != nil) == c.fails, "%d calls, %v", calls, errs)
			})
		})
	}
}

// The fates of --then, and those of an answer of --exec-lines, which has no other fields.
func TestFates(t *testing.T) {
	type fated struct {
		dead, delayed bool
		delay         time.Duration
	}
	for then, want := range map[string]*fated{
		"ack": {}, "retry": {}, "retry=5s": {delayed: true, delay: 5 * time.Second}, "retry=0s": {delayed: true}, "dead": {dead: true}, "dead=no such account": {dead: true},
		"": nil, "ack=1": nil, "retry=-5s": nil, "retry=5": nil, "retry=": nil, "keep": nil, "ask": nil, "Ack": nil, "release=1": nil, "release": nil,
	} {
		e, err := verdictOf(fmt.Appendf(nil, `{"id":"1","then":%q}`, then), "1")
		if (err == nil) != (want != nil) {
			t.Errorf("the answer %q: %v", then, err)
		} else if want != nil && (fated{e.dead, e.delayed, e.delay} != *want || (e.err == nil) != (then == "ack")) {
			t.Errorf("the answer %q is %+v, want %+v", then, e, *want)
		}
		if _, err := parseFate(then); (err == nil) != (want != nil || then == "release") {
			t.Errorf("--then %q: %v", then, err)
		}
	}
	for _, answer := range []string{`{"id":"1","then":"ack","delay":"5s"}`, `{"id":"1","Then":"ack","retry":1}`, `{"id":"2","then":"ack"}`, `{"then":"ack"}`, `{"id":"1"}`, `["ack"]`, ``} {
		assert.That(t, assert.Err(verdictOf([]byte(answer), "1")) != nil, "the answer %s is accepted", answer)
	}
}

// The text of an error has the fault of a connection without the words and the quotes of gRPC.
func TestTextOfAFault(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{
		"dial tcp 127.0.0.1:1: connect: connection refused",
		`x509: certificate signed by unknown authority (possibly because of "x509: invalid signature" while trying to verify candidate authority certificate "C:\\CA")`,
	} {
		for _, before := range []string{"", "Error while dialing: "} {
			connection := fmt.Sprintf("connection error: desc = %q", "transport: "+before+fault)
			err := fmt.Errorf("send: rpc error: code = Unavailable desc = %s; retry", connection)
			if got, want := text(err), "send: "+fault+"; retry"; got != want {
				t.Errorf("the text is %s, want %s", got, want)
			}
		}
	}
}

// A journal that another program has changed to UTF-16, or given a byte order mark, is rejected
// with that reason, and stays as it is.
func TestJournalOfAnotherEncoding(t *testing.T) {
	for text, want := range map[string]string{
		"\xef\xbb\xbf" + `{"time":"2026-01-02T03:04:05Z","event":"job","why":"j"}` + "\n": "byte order mark",
		"\xef\xbb\xbf" + `{"time":`:      "byte order mark",
		"\xff\xfe{\x00\"\x00e\x00\n\x00": "UTF-16",
		"\xfe\xff\x00{\x00\"\x00e":       "UTF-16BE",
		"a note":                         "is not a journal",
		`{"time":"2026-01-02T03:04:05Z","event":"job","why":"other"}` + "\n": "another job",
	} {
		path := filepath.Join(t.TempDir(), "journal")
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
		err := begin(path, "j")
		if _, ok := errors.AsType[*otherError](err); !ok || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %q and the path", text, err, want)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != text {
			t.Errorf("%q became %q, %v", text, after, err)
		}
	}
}

// Host is the first host, and has a port: that of the scheme if the address of a foreign server has
// none.
func TestHost(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"amqp://mq.example:61616":              "mq.example:61616",
		"amqp://mq.example":                    "mq.example:5672",
		"amqps://mq.example":                   "mq.example:5671",
		"amqps://[::1]":                        "[::1]:5671",
		"pulsar://mq.example:7650,mq2.example": "mq.example:7650",
		"pulsar://mq.example,mq2:7":            "mq.example:6650",
		"pulsar+ssl://mq.example":              "mq.example:6651",
	} {
		kind, _, _ := strings.Cut(address, ":")
		c := Context{Kind: amqp, AMQP: address}
		if strings.HasPrefix(kind, "pulsar") {
			c = Context{Kind: pulsar, Pulsar: address}
		}
		if got := (Server{Context: c}).Host(); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
	assert.Equal(t, "all hosts are", strings.Join((Server{Context: Context{Kind: pulsar, Pulsar: "pulsar://a:7,b/"}}).Hosts(), " "), "a:7 b:6650")
	assert.Equal(t, "the addresses for gRPC are", (Server{Context: Context{GRPC: "a:1;b:2"}}).Host(), "a:1;b:2")
}

// A file of contexts that can only be read in part is invalid: the next change of it would remove
// the rest.
func TestContextsAreReadWhole(t *testing.T) {
	t.Parallel()
	const one = "contexts:\n  a: {grpc: 127.0.0.1:1}\n"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"one document": {one, true}, "its end is marked": {"---\n" + one + "...\n", true}, "empty": {"", true},
		"two documents": {one + "---\n" + one, false}, "the same name": {one + "  a: {grpc: 127.0.0.1:2}\n", false}, "the same key": {"contexts:\n  a: {grpc: x, grpc: y}\n", false},
		"not YAML behind it": {one + "---\n{", false}, "byte order mark": {"\xef\xbb\xbf" + one, true},
	} {
		path := filepath.Join(t.TempDir(), "contexts.yaml")
		assert.Must(t, os.WriteFile(path, []byte(c.text), 0o600))
		if f, _, err := readFile(path); (err == nil) != c.ok || c.ok && c.text != "" && len(f.Contexts) != 1 {
			t.Errorf("%s: %v, %v", name, f.Contexts, err)
		}
	}
}

// A client certificate needs its key, and a key its certificate: a forgotten half is an error, and
// not a connection without the certificate.
func TestCertificateAndKeyBelongTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []Context{{Cert: "client.pem"}, {CertKey: "client.key"}} {
		if _, err := (Server{Context: c}).TLSConfig(); err == nil || !strings.Contains(err.Error(), "give both") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if c, err := (Server{}).TLSConfig(); err != nil || len(c.Certificates) != 0 || c.InsecureSkipVerify {
		t.Errorf("without files: %+v, %v", c, err)
	}
}

// The days of a certificate are whole ones, and negative from its end on.
func TestCertificateDays(t *testing.T) {
	t.Parallel()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	for left, want := range map[time.Duration]int64{36 * time.Hour: 1, 12 * time.Hour: 0, -12 * time.Hour: -1, -36 * time.Hour: -2} {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-100 * time.Hour), NotAfter: time.Now().Add(left)}
		text := assert.Value(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(t)
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{text}, PrivateKey: key}}}
		s.StartTLS()
		if got, err := (Server{Context: Context{HTTP: s.URL}}).CertificateDays(t.Context()); err != nil || got != want {
			t.Errorf("%v before its end: %d days, %v; want %d", left, got, err, want)
		}
		s.Close()
	}
	if days, err := (Server{Context: Context{HTTP: "http://127.0.0.1:1"}}).CertificateDays(t.Context()); err == nil {
		t.Errorf("without TLS: %d days", days)
	}
}

// A look prints one line after a second if no address accepts a connection, and nothing otherwise.
func TestLook(t *testing.T) {
	refused := errors.New("connection refused")
	hangs := func(ctx context.Context, _ string) error { <-ctx.Done(); return errors.New("i/o timeout") }
	for name, c := range []struct {
		addresses string
		dial      func(context.Context, string) error
		response  time.Duration // of the request
		want      string
		after     time.Duration
	}{
		{"a:1", func(context.Context, string) error { return refused }, time.Minute, "not connected to a:1: connection refused; trying again for 10s (--timeout), Ctrl-C ends it\n", time.Second},
		{"a:1", func(context.Context, string) error { return refused }, 900 * time.Millisecond, "", 900 * time.Millisecond},
		{"a:1", func(context.Context, string) error { return nil }, time.Minute, "", time.Second},
		{"a:1", hangs, time.Minute, "not connected to a:1: i/o timeout; trying again for 10s (--timeout), Ctrl-C ends it\n", 2 * time.Second},
		{"a:1", hangs, 1500 * time.Millisecond, "", 1500 * time.Millisecond},
		{"a:1;b:2", func(_ context.Context, a string) error {
			if a == "b:2" {
				return nil
			}
			return refused
		}, time.Minute, "", time.Second},
		{"a:1", hangs, time.Minute, "not connected to a:1: i/o timeout; trying again, Ctrl-C ends it\n", 2 * time.Second},
		{"", func(context.Context, string) error { return refused }, time.Minute, "", time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.response)
			defer cancel()
			var out strings.Builder
			began := time.Now()
			look := &waitingLook{Out: &out, Noted: new(sync.Once), Address: func() string { return c.addresses }, Bound: 10 * time.Second, Dial: c.dial}
			if strings.Contains(c.want, "trying again,") {
				look.Bound = 0
			}
			err := look.Watch(ctx)
			if out.String() != c.want || (err != nil) != (c.want != "") || time.Since(began) != c.after {
				t.Errorf("%d: %q and %v after %v, want %q after %v", name, out.String(), err, time.Since(began), c.want, c.after)
			}
		})
	}
}

// The looks of a command print one line in all. Each returns the fault.
func TestLooksPrintOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		var out strings.Builder
		var noted sync.Once
		for range 3 {
			look := waitingLook{Out: &out, Noted: &noted, Address: func() string { return "a:1" }, Dial: func(context.Context, string) error { return refused }}
			assert.Is(t, "the fault is", look.Watch(t.Context()), refused)
		}
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Errorf("%d lines: %s", n, out.String())
		}
	})
}

// A note informs about messages under way, not about a wait for input.
func TestNoteWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out strings.Builder
		began := time.Now()
		(&note{Out: &out, Address: "a:1", Bound: 30 * time.Second}).Watch(ctx, func() (results, underWay int64) {
			if time.Since(began) < 10*time.Second {
				assert.That(t, out.Len() <= 0, "without a message it prints %q", out.String())
				return 1, 0
			}
			return 1, 1
		})
		if want := "waiting for a:1: no response yet; each message is tried for 30s (--ack-timeout), Ctrl-C ends it\n"; out.String() != want {
			t.Errorf("the notes are %q, want %q", out.String(), want)
		}
	})
}
