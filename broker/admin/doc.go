// Package admin is a typed client of the administrative HTTP API of a tidegate broker: topics,
// consumer groups, address settings, throttles, positions, parked message groups and dead letters.
// GET /v1/openapi.yaml of a broker describes the API. To send and receive over HTTP, use package
// transport/rest.
//
//	c, err := routes.NewAdmin("http://127.0.0.1:8082", admin.Options{})
//	if err != nil { ... }
//	defer c.Close()
//	topic, err := c.PutTopic(ctx, "orders", settings.Topic{Queues: 4})
//
// # Retries
//
// github.com/hashicorp/go-retryablehttp repeats requests after the waits of [Options].Backoff, and
// never before the time in Retry-After. If a wait would end after the deadline of the caller's ctx,
// the call returns the error at once.
//
//   - An attempt without a connection, or with status 429 or 530 (reply code 530), had no effect:
//     every request is repeated.
//   - An attempt without a complete response, or with status 500, 502, 503 or 504: reads, PUT,
//     PATCH and DELETE are repeated. A POST and a purge of dead letters are not: the broker may
//     have carried them out. Nor are a PUT and a PATCH of [Client.IfRevision].
//   - Any other status, and a certificate that is not trusted: the error is returned.
//
// If the repetition of a DELETE finds nothing, and an earlier attempt may have deleted the object,
// the call succeeds.
//
// # Errors
//
// The error of every method is an [*Error], with the HTTP status and the broker's code and
// text. It matches the sentinels of package tidegate by its code, for example
// tidegate.ErrNotFound, and wraps context.Cause(ctx) if ctx ended.
//
// The package links neither the storage engine nor gRPC.
package admin
