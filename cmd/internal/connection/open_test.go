package connection

import "testing"

// Host has a port, that of the scheme if the address of an Artemis has none.
func TestHost(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"amqp://mq.example:61616": "mq.example:61616",
		"amqp://mq.example":       "mq.example:5672",
		"amqps://mq.example":      "mq.example:5671",
		"amqps://[::1]":           "[::1]:5671",
	} {
		if got := (Server{Context: Context{AMQP: address}}).Host(); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
	if got := (Server{Context: Context{GRPC: "a:1;b:2"}}).Host(); got != "a:1;b:2" {
		t.Errorf("the addresses for gRPC are %s", got)
	}
}
