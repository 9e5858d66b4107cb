package interop

import (
	"errors"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
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
	assert.NoError(t, send(t.Context(), admin, message("orders", 1)), "a user with permission")
	assert.NoError(t, send(t.Context(), sender, message("orders", 1)), "a user with permission to send")
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute}
	// A receive fails if the dead letters of its group would be lost.
	if _, err := admin.Receive(t.Context(), r); code(err) != tidegate.CodeNotFound || tidegate.Classify(err) != tidegate.ClassPermanent {
		t.Errorf("a receive without a queue for dead letters: %v, want 40400", err)
	}
	a := assert.Value(connectAs(t.Context(), s.Address(), goamqp.SASLTypePlain("admin", "a")))(t)
	assert.Must(t, a.createQueue(t.Context(), "billing.DLQ", "billing.DLQ", "ANYCAST"))
	assert.NoError(t, assert.Err(admin.Receive(t.Context(), r)), "after the queue was created")
	assert.Is(t, "a receive without permission", assert.Err(sender.Receive(t.Context(), r)), tidegate.ErrForbidden)
	err := send(t.Context(), as("reader", "r"), message("orders", 1))
	assert.That(t, errors.Is(err, tidegate.ErrForbidden), "a send without permission: %v, want ErrForbidden", err)
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
	assert.NoError(t, send(t.Context(), external, message("orders", 1)), "with a client certificate")
	plain := client(t, address, amqp.Options{TLS: a.config("orders"), Credentials: tidegate.Credentials{AccessKey: "p", SecretKey: "p"}, RequestTimeout: requestTimeout})
	assert.NoError(t, send(t.Context(), plain, message("orders", 1)), "with a password")
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
