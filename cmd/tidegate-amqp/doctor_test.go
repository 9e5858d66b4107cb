package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each fault ends the examination in its step, with the exit code of its class and the remedy.
func TestDoctor(t *testing.T) {
	refuse := func(address string, receives bool, condition, text string) *amqppeer.Peer {
		return &amqppeer.Peer{Refuse: func(at string, receiver bool) *amqppeer.Fault {
			if at == address && receiver == receives {
				return &amqppeer.Fault{Condition: condition, Description: text}
			}
			return nil
		}}
	}
	const missing, forbidden = "amqp:not-found", "amqp:unauthorized-access"
	for _, c := range []struct {
		name string
		peer *amqppeer.Peer
		code int
		step string // the last one
		want string // the remedy
	}{
		{"all is well", &amqppeer.Peer{}, 0, "ok       group", ""},
		{"wrong password", &amqppeer.Peer{Users: map[string]string{"app": "other"}}, 4, "failed   credentials", "--secret-file"},
		{"no address", refuse("orders", false, missing, "AMQ119002: target address orders does not exist"), 3, "failed   topic", "artemis address create --name orders --multicast"},
		{"may not send", refuse("orders", false, forbidden, "AMQ229032: no permission='SEND'"), 4, "failed   topic", "permission send"},
		{"dead letters without a queue", refuse("billing.DLQ", true, missing, "AMQ119010: source address billing.DLQ does not exist"), 3, "failed   dead letters", "artemis queue create --name billing.DLQ"},
		{"no queue", refuse("orders::orders.billing", true, missing, "AMQ119010: does not exist"), 3, "failed   group", "artemis queue create --name orders.billing"},
		{"may not consume", refuse("orders::orders.billing", true, forbidden, "AMQ229032: no permission='CONSUME'"), 4, "failed   group", "permission consume"},
		{"full address", &amqppeer.Peer{NoCredit: []string{"orders"}}, 5, "failed   send", "max-size-bytes"},
		{"rejected by a full address", &amqppeer.Peer{Reject: func(string) *amqppeer.Fault {
			return &amqppeer.Fault{Condition: "amqp:resource-limit-exceeded", Description: "AMQ229102: Address is full"}
		}}, 5, "failed   send", "max-size-bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tl := onPeer(t, c.peer)
			tl.env["TIDEGATE_ACCESS_KEY"], tl.env["TIDEGATE_SECRET"] = "app", "sesame"
			if c.peer.Users == nil {
				c.peer.Users = map[string]string{"app": "sesame"}
			}
			r := tl.run("doctor", "--topic", "orders", "--group", "billing", "--send")
			steps := strings.Split(strings.TrimSpace(r.stdout), "\n")
			last := len(steps) - 1
			if c.want != "" {
				last--
			}
			if r.code != c.code || last < 0 || !strings.HasPrefix(steps[last], c.step) || !strings.Contains(steps[len(steps)-1], c.want) {
				t.Errorf("exit code %d, want %d with %q and %q:\n%s%s", r.code, c.code, c.step, c.want, r.stdout, r.stderr)
			}
			assert.That(t, !strings.Contains(r.stdout+r.stderr, "sesame"), "the password is printed")
		})
	}
}

// If a port speaks another protocol than its address has, the doctor names the protocol.
func TestDoctorOfAnotherPort(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	plain, secure := httptest.NewServer(page), httptest.NewUnstartedServer(page)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshakes that the test breaks
	secure.StartTLS()
	defer plain.Close()
	defer secure.Close()
	silent := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("AMQP\x00\x00\x09\x01")) // as a server of AMQP 0.9.1
			c.Close()
		}
	}()
	for _, c := range []struct {
		name, address string
		code          int
		want          string
	}{
		{"the web console", "amqp://" + plain.Listener.Addr().String(), 2, "web console"},
		{"TLS", "amqp://" + secure.Listener.Addr().String(), 2, "amqps://"},
		{"no TLS", "amqps://" + plain.Listener.Addr().String(), 2, "amqp://"},
		{"an unknown authority", "amqps://" + secure.Listener.Addr().String(), 2, "--cacert"},
		{"AMQP 0.9.1", "amqp://" + silent.Addr().String(), 2, "RabbitMQ"},
		{"no server", "amqp://127.0.0.1:1", 6, "5672"},
	} {
		if r := on(t, "unused").run("doctor", "--amqp", c.address); r.code != c.code || !strings.Contains(r.stdout, c.want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", c.name, r.code, c.code, c.want, r.stdout, r.stderr)
		}
	}
}

// The address is that of a flag, the environment, a context or the default, in this order.
func TestAddress(t *testing.T) {
	tl := on(t, "env.example")
	show := func(want string, args ...string) {
		t.Helper()
		if r := tl.must(append([]string{"context", "show"}, args...)...); !strings.Contains(r.stdout, want) {
			t.Errorf("%q: %s, want %s", args, r.stdout, want)
		}
	}
	show("amqp://env.example (TIDEGATE_SERVER_AMQP)")
	show("amqps://flag.example (--amqp)", "--amqp", "amqps://flag.example")
	show("127.0.0.1:9 (--grpc)", "--grpc", "127.0.0.1:9") // of a tidegate or RocketMQ
	delete(tl.env, "TIDEGATE_SERVER_AMQP")
	show("amqp://127.0.0.1:5672 (default)")
	tl.must("context", "add", "artemis", "--amqp", "amqp://context.example")
	show("amqp://context.example (context artemis)")
}
