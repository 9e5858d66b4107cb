// Package rest is a transport over the HTTP API of a tidegate broker, for
// networks that let HTTP pass and gRPC not, and for programs that are to link
// no gRPC. Producers and consumers run on it unchanged:
//
//	c, err := rest.New("https://broker.example:8082", rest.Options{Credentials: keys})
//	if err != nil { ... }
//	defer c.Close()
//	p, err := producer.New(c, producer.Options{})
//
// Prefer transport/rocketmq where gRPC is available: it costs less for each message
// and can do more.
//
// # One attempt
//
// A call makes one attempt. github.com/hashicorp/go-retryablehttp redials while no
// connection could be made, once a second, for calls whose ctx comes from
// transport.AwaitConnection; it never repeats a request that had a connection,
// and never handles a throttled response.
//
// # Differences from transport/rocketmq
//
// The HTTP API has no counterpart for some of what gRPC carries:
//
//   - A change of an invisible duration whose response was lost cannot be repeated
//     (no transport.ChangeRepeater): the delivery is over with its lease.
//   - There are no transactions, since a broker asks about them over a stream.
//   - Settings of topics and groups need the right to observe them. Without it, defaults hold.
//   - The broker's address for producers and consumers is the one given to New: there
//     are no routes.
package rest
