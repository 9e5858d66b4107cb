package main

import (
	"crypto/tls"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
)

// newAdmin returns a client for host:port or, for a broker with TLS on its HTTP port, for an https
// URL.
func newAdmin(at string) (*admin.Client, error) {
	o := admin.Options{Credentials: tidegate.Credentials{AccessKey: keys.AccessKey, SecretKey: keys.AccessSecret}}
	if strings.HasPrefix(at, "https://") {
		// As the official client does over gRPC. A program of yours verifies.
		o.TLS = &tls.Config{InsecureSkipVerify: true}
	}
	return admin.New(at, o)
}
