package main

import (
	"crypto/tls"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/server"
)

// tlsSettings are the settings below tls.
type tlsSettings struct {
	cert, key          string
	clientCA           string
	clientCertificates string
	minVersion         string
	allowPlainText     bool
}

// accessRules are the settings of TLS and of access that are single values;
// the keys are read in access.go.
var accessRules = []rule[settings]{
	text("tls.cert", "", "`file` with the certificate for TLS (default: a self-signed one, and plain text on the same port)",
		func(s *settings) *string { return &s.tls.cert }, nil),
	text("tls.key", "", "`file` with the private key of --tls-cert",
		func(s *settings) *string { return &s.tls.key }, nil),
	text("tls.client_ca", "", "`file` with the CAs of clients' certificates",
		func(s *settings) *string { return &s.tls.clientCA }, nil),
	text("tls.client_certificates", "none", "`what` clients show: none, request (verified if there is one) or require",
		func(s *settings) *string { return &s.tls.clientCertificates }, oneOf("none", "request", "require")),
	text("tls.min_version", "1.2", "oldest `version` of TLS: 1.2 or 1.3",
		func(s *settings) *string { return &s.tls.minVersion }, oneOf("1.2", "1.3")),
	yesNo("tls.allow_plain_text", "take clients (gRPC) in plain text although there is --tls-cert",
		func(s *settings) *bool { return &s.tls.allowPlainText }),
	skewRule,
	{
		key: "access.time_zones", preset: "UTC,Local", help: "time zone `name` in which clients sign their time; can be repeated, or a list with commas",
		set: addZone, text: func(s *settings) string { return strings.Join(s.zones, ",") },
		reset: func(s *settings) { s.zones = nil }, live: true,
	},
}

// skewRule is a duration that may be negative, for no limit; in the server 0
// stands for the default.
var skewRule = live(notZero("give a duration above 0s, or -1s for no limit", duration("access.max_clock_skew", server.DefaultMaxClockSkew, "how far the `duration` between a signed time and the broker's may be; -1s: any",
	math.MinInt64, func(s *settings) *time.Duration { return &s.skew })))

func addZone(s *settings, text string) error {
	for name := range strings.SplitSeq(text, ",") {
		if _, err := time.LoadLocation(name); err != nil || name == "" {
			return fmt.Errorf("there is no such time zone; give a name such as UTC, Local or Asia/Shanghai")
		}
		s.zones = append(s.zones, name)
	}
	return nil
}

// timeZones returns the zones of names that addZone took.
func (s settings) timeZones() (list []*time.Location) {
	for _, name := range s.zones {
		if z, err := time.LoadLocation(name); err == nil {
			list = append(list, z)
		}
	}
	return list
}

// certificates reads the files of TLS. It returns nil if there are none.
func (s settings) certificates(o server.CertificateOptions) (*server.Certificates, error) {
	if s.tls.cert == "" {
		return nil, nil
	}
	o.CertFile, o.KeyFile, o.ClientCAFile = s.tls.cert, s.tls.key, s.tls.clientCA
	o.ClientCertificates = server.ClientCertificates(s.tls.clientCertificates)
	if o.MinVersion = tls.VersionTLS12; s.tls.minVersion == "1.3" {
		o.MinVersion = tls.VersionTLS13
	}
	return server.LoadCertificates(o)
}

// checkTLS refuses settings that go only with others.
func checkTLS(s section[settings]) faults {
	var bad faults
	t := s.value.tls
	needs := func(key, other string) { bad = append(bad, faultf(s.from[key], "needs %s beside it", other)) }
	if t.cert != "" && t.key == "" {
		needs("tls.cert", "tls.key")
	}
	for _, x := range []struct {
		key   string
		given bool
	}{
		{"tls.key", t.key != ""}, {"tls.client_ca", t.clientCA != ""},
		{"tls.client_certificates", t.clientCertificates != "none"}, {"tls.allow_plain_text", t.allowPlainText},
	} {
		if x.given && t.cert == "" {
			needs(x.key, "tls.cert")
		}
	}
	if t.clientCA != "" && t.clientCertificates == "none" {
		bad = append(bad, faultf(s.from["tls.client_ca"], "would verify nothing: set tls.client_certificates to request or require beside it"))
	}
	if t.clientCertificates != "none" && t.clientCA == "" {
		needs("tls.client_certificates", "tls.client_ca")
	}
	return bad
}
