package endtoend

import (
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkSecureSDK sends messages of 1 KiB to a broker on disk with TLS and signed requests: Send
// from 64 and from 256 goroutines, and SendAsync from one. plain/ratio is the rate divided by that
// of plain text without signatures in the same run.
func BenchmarkSecureSDK(b *testing.B) {
	credentials := tidegate.Credentials{AccessKey: "bench", SecretKey: "a secret of the benchmark"}
	address := serveSecure(b, credentials)
	secure := produceWith(b, address, rocketmq.Options{TLS: &tls.Config{InsecureSkipVerify: true}, Credentials: credentials})
	plain := benchProducer(b, serveTopics(b, 1))
	for _, callers := range []int{64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			alternate(b, callersTo(b, secure, callers, 1), map[string]round{"plain": callersTo(b, plain, callers, 1)})
		})
	}
	b.Run("async", func(b *testing.B) {
		alternate(b, asyncTo(b, secure, 1), map[string]round{"plain": asyncTo(b, plain, 1)})
	})
}

// serveSecure serves a broker on disk with the topic t0 that accepts only clients with credentials.
func serveSecure(b *testing.B, c tidegate.Credentials) string {
	engine := assert.Value(broker.Open(broker.Options{Dir: b.TempDir()}))(b)
	b.Cleanup(func() { engine.Close() })
	assert.Must(b, assert.Err(engine.PutTopic(b.Context(), "t0", settings.Topic{})))
	lis := listenTCP(b)
	rule := server.Rule{Actions: []server.Action{"send"}, Topics: []string{"*"}}
	s := assert.Value(server.New(engine, server.Options{Advertise: lis.Addr().String(), RequireTLS: true, Access: server.AccessConfig{
		Keys: []server.Key{{Name: c.AccessKey, Secrets: []server.Secret{server.NewSecret(c.SecretKey)}, Allow: []server.Rule{rule}}},
	}}))(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func produceWith(b *testing.B, address string, opts rocketmq.Options) *producer.Producer {
	c := assert.Value(rocketmq.New(address, opts))(b)
	b.Cleanup(func() { c.Close() })
	p := assert.Value(producer.New(c, producer.Options{}))(b)
	b.Cleanup(func() { p.Close() })
	return p
}
