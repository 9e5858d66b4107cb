package main

import (
	"math"
	"net"

	"golang.org/x/net/netutil"
)

// Bounds of what maxConnections chooses.
const (
	leastConnections = 64
	mostConnections  = 1 << 16
)

// maxConnections is how many connections an address takes at a time if no
// setting says it, by how many files the process may have open: a quarter of
// them. So those of both addresses leave half of the files to the store, which
// could not go on without. 0 files: it is not known, or there is no limit.
func maxConnections(files uint64) int {
	if files == 0 {
		return mostConnections
	}
	return int(min(max(files/4, leastConnections), mostConnections))
}

// listen listens at an address. Connections beyond the most wait to be
// accepted until another one ends. 0: as many as maxConnections says.
func listen(address string, most int) (net.Listener, error) {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	if most == 0 {
		most = maxConnections(min(openFiles(), math.MaxInt32))
	}
	return netutil.LimitListener(lis, most), nil
}
