// Package rest is a transport over the HTTP API of a tidegate broker. It is for networks that
// permit HTTP but not gRPC, and for programs that must not link gRPC. Producers and consumers need
// no change:
//
//	c, err := rest.New("https://broker.example:8082", rest.Options{Credentials: keys})
//	if err != nil { ... }
//	defer c.Close()
//	p, err := producer.New(c, producer.Options{})
//
// Use transport/rocketmq where gRPC is available: it costs less for each message and has more
// features.
//
// # One attempt
//
// A call makes one attempt. For calls whose ctx comes from transport.AwaitConnection,
// github.com/hashicorp/go-retryablehttp tries to connect once a second until it succeeds or ctx
// ends. It never repeats a request that reached a connection, and never retries a throttled
// response.
//
// # Differences from transport/rocketmq
//
// The HTTP API lacks some features of gRPC:
//
//   - A change of an invisible duration whose response was lost cannot be repeated
//     (no Capabilities.RepeatChange): the broker redelivers the message when the lease ends.
//   - There are no transactions, because the broker sends transaction checks over a gRPC stream.
//   - A client reads the settings of topics and groups only with the permission to observe them.
//     Without it, the client uses defaults.
//   - There are no routes: all requests go to the address given to New.
//   - A receive cannot select one queue.
package rest
