package main

import (
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
)

// The command runs with a broker of its own, and on a broker elsewhere, also twice.
func TestLiteTopics(t *testing.T) {
	b := assert.Value(broker.Open(broker.Options{}))(t)
	defer b.Close()
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), requests, settings.Topic{})))
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), replies, settings.Topic{Type: settings.TopicLite})))
	lis := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := assert.Value(server.New(b, server.Options{Advertise: lis.Addr().String()}))(t)
	defer s.Close()
	go func() { _ = s.Serve(lis) }() // it ends with Close
	for _, endpoint := range []string{"", lis.Addr().String(), lis.Addr().String()} {
		var out strings.Builder
		if err := run(t.Context(), endpoint, &out); err != nil {
			t.Fatalf("endpoint %q: %v\n%s", endpoint, err, out.String())
		}
		pairs := regexp.MustCompile(`request (\d of session-\d) → REQUEST (\d OF SESSION-\d)`).FindAllStringSubmatch(out.String(), -1)
		assert.Equal(t, "replies", len(pairs), 9)
		for _, pair := range pairs {
			assert.Equal(t, "the reply", pair[2], strings.ToUpper(pair[1]))
		}
		assert.That(t, strings.Contains(out.String(), "each of 9 requests got its reply"), "it does not print its end:\n%s", out.String())
	}
}
