package interop

import (
	"errors"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// permit returns the properties that permit everything to a role, and only sends to another.
func permit(all, sends string) map[string]string {
	p := map[string]string{}
	for _, permission := range artemis.Permissions {
		p[`securityRoles."#".`+all+"."+permission] = "true"
	}
	p[`securityRoles."#".`+sends+".send"] = "true"
	p[`addressSettings."#".autoCreateAddresses`] = "true"
	return p
}

func code(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

func TestUsersAndPermissions(t *testing.T) {
	p := permit("all", "sends")
	p[`addressSettings."*.DLQ".autoCreateAddresses`] = "false"
	s := start(t, artemis.Options{
		Properties: p,
		Users: map[string]artemis.User{
			"admin": {Password: "a", Roles: []string{"all"}}, "sender": {Password: "s", Roles: []string{"sends"}}, "reader": {Password: "r", Roles: []string{"readers"}},
		},
	})
	as := func(user, password string) *amqp.Client {
		return client(t, s.Address(), amqp.Options{Credentials: tidegate.Credentials{AccessKey: user, SecretKey: password}, RequestTimeout: requestTimeout})
	}
	admin, sender := as("admin", "a"), as("sender", "s")
	if err := send(t.Context(), admin, message("orders", 1)); err != nil {
		t.Errorf("a user with permission: %v", err)
	}
	if err := send(t.Context(), sender, message("orders", 1)); err != nil {
		t.Errorf("a user with permission to send: %v", err)
	}
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute}
	// A receive fails if the dead letters of its group would be lost.
	if _, err := admin.Receive(t.Context(), r); code(err) != tidegate.CodeNotFound || tidegate.Classify(err) != tidegate.ClassPermanent {
		t.Errorf("a receive without a queue for dead letters: %v, want 40400", err)
	}
	a, err := connectAs(t.Context(), s.Address(), goamqp.SASLTypePlain("admin", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.createQueue(t.Context(), "billing.DLQ", "billing.DLQ", "ANYCAST"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Receive(t.Context(), r); err != nil {
		t.Errorf("after the queue was created: %v", err)
	}
	if _, err := sender.Receive(t.Context(), r); !errors.Is(err, tidegate.ErrForbidden) {
		t.Errorf("a receive without permission: %v, want ErrForbidden", err)
	}
	if err := send(t.Context(), as("reader", "r"), message("orders", 1)); !errors.Is(err, tidegate.ErrForbidden) {
		t.Errorf("a send without permission: %v, want ErrForbidden", err)
	}
	for name, c := range map[string]*amqp.Client{"a wrong password": as("admin", "wrong"), "an unknown user": as("nobody", "x"), "no credentials": clientOf(t, s.Address())} {
		err := send(t.Context(), c, message("orders", 1))
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || !errors.Is(err, tidegate.ErrUnauthorized) || e.MaybeStored || e.NotConnected {
			t.Errorf("%s: %v, want ErrUnauthorized and nothing stored", name, err)
		}
	}
}

func TestTLS(t *testing.T) {
	a := newAuthority(t)
	s := start(t, artemis.Options{
		Certificate: a.file("server"), ClientAuthority: a.rootFile(),
		Properties: permit("all", "sends"),
		Users:      map[string]artemis.User{"orders": {DN: "CN=orders", Roles: []string{"all"}}, "p": {Password: "p", Roles: []string{"all"}}},
	})
	address := "amqps://" + s.Address()
	external := client(t, address, amqp.Options{TLS: a.config("orders"), External: true, RequestTimeout: requestTimeout})
	if err := send(t.Context(), external, message("orders", 1)); err != nil {
		t.Errorf("with a client certificate: %v", err)
	}
	plain := client(t, address, amqp.Options{TLS: a.config("orders"), Credentials: tidegate.Credentials{AccessKey: "p", SecretKey: "p"}, RequestTimeout: requestTimeout})
	if err := send(t.Context(), plain, message("orders", 1)); err != nil {
		t.Errorf("with a password: %v", err)
	}
	for name, c := range map[string]struct {
		o    amqp.Options
		code tidegate.Code
	}{
		"an unknown authority":         {amqp.Options{TLS: newAuthority(t).config("orders"), External: true}, tidegate.CodeIllegalAccessPoint},
		"no certificate":               {amqp.Options{TLS: a.config(""), External: true}, tidegate.CodeIllegalAccessPoint},
		"a certificate without a user": {amqp.Options{TLS: a.config("stranger"), External: true}, tidegate.CodeUnauthorized},
	} {
		c.o.RequestTimeout = requestTimeout
		err := send(t.Context(), client(t, address, c.o), message("orders", 1))
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || code(err) != c.code || e.NotConnected || e.MaybeStored {
			t.Errorf("%s: %v, want %d and NotConnected false", name, err, int(c.code))
		}
	}
}
