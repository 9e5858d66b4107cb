//go:build !linux

package serve

import "syscall"

// userTimeout is for Linux alone, as gRPC's is.
var userTimeout func(network, address string, c syscall.RawConn) error
