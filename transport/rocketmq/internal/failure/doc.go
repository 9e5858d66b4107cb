// Package failure converts statuses other than OK, and the errors of gRPC calls, to tidegate.Error.
// Producers and consumers decide by the codes.
package failure
