package artemis

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestAcceptor(t *testing.T) {
	o := Options{Certificate: "/c.pem", Acceptor: map[string]string{"amqpIdleTimeout": "1000"}}
	want := "tcp://127.0.0.1:5672?amqpIdleTimeout=1000;keyStorePath=/c.pem;keyStoreType=PEM;protocols=AMQP;sslEnabled=true"
	assert.Equal(t, "o.acceptor(5672)", o.acceptor(5672), want)
}
