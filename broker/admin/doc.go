// Package admin is a typed client of the HTTP API with which a tidegate broker
// is administered: topics, consumer groups, address settings, throttles, positions,
// parked message groups and dead letters. GET /v1/openapi.yaml of a broker describes
// the API; sending and receiving over HTTP is package transport/rest.
//
//	c, err := admin.New("http://127.0.0.1:8082", admin.Options{})
//	if err != nil { ... }
//	defer c.Close()
//	topic, err := c.PutTopic(ctx, "orders", admin.TopicConfig{Queues: 4})
//
// # Retries
//
// Requests are repeated by github.com/hashicorp/go-retryablehttp, under the
// policy of [Options].Backoff and never before the time that the broker asks for in
// Retry-After. A wait that would end after the deadline of the caller's ctx is not begun:
// the error is returned at once.
//
//   - An attempt without a connection, or with status 429 (reply code 530): every request is
//     repeated, since nothing was done.
//   - An attempt without a whole response, or with status 500, 502, 503 or 504: reads, PUT and
//     DELETE are repeated. A POST and a purge of dead letters are not: the broker may have carried
//     them out.
//   - Any other status, and a certificate that is not trusted: the error is returned.
//
// A DELETE whose repetition finds nothing succeeds if an earlier attempt may have
// deleted it.
//
// # Errors
//
// The error of every method is an [*Error], with the HTTP status and the broker's code and
// text. It matches the sentinels of package tidegate by its code, for example
// tidegate.ErrNotFound, and wraps context.Cause(ctx) if ctx ended.
//
// The package links neither the storage engine nor gRPC.
package admin
