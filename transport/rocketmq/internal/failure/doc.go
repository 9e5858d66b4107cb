// Package failure makes a tidegate.Error of a status that is not OK, and of a call that gRPC
// failed. The codes decide what a producer or consumer does next.
package failure
