package gate

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/access"
)

// Hosts are the accepted host names of HTTP requests that have no credentials and arrive in plain
// text at a loopback address.
type Hosts struct {
	Any   bool     // from any page
	Names []string // these, with or without a port, beside IP addresses and localhost
}

// same detects pages of other origins by Origin and Sec-Fetch-Site.
var same = http.NewCrossOriginProtection()

// A page in a browser can reach a broker on the same machine, which needs no keys. A page of
// another origin can only send simple requests and cannot read the responses; fromPage rejects its
// changes. A page whose name was changed to point at this machine (DNS rebinding) is of the same
// origin; forOther rejects the name.
func fromPage(r *http.Request) *denial {
	if same.Check(r) == nil {
		return nil
	}
	return &denial{reasonOrigin, refusal.New(tidegate.CodeForbidden, "origin",
		fmt.Sprintf("a web page of origin %.200q may not change this broker", r.Header.Get("Origin")))}
}

// forOther rejects a request without credentials that arrived at a loopback address and has a host
// name that a third party can control. who is nil if nothing is restricted. Over TLS the browser
// has compared the name with the certificate, which no third party can have.
func (g *Gate) forOther(r *http.Request, who *access.Identity) *denial {
	if g.hosts.Any || who != nil && !who.Anonymous() || r.TLS != nil || !overLoopback(r) || g.hosts.own(r.Host) {
		return nil
	}
	return &denial{reasonHost, refusal.New(tidegate.CodeForbidden, "host", fmt.Sprintf("the Host header is %.200q, and the request has no credentials; on a loopback address "+
		"the host must be an IP address, localhost, the advertised name or one of http_hosts, because a web page can send other names (DNS rebinding); "+
		"use one of these, add the name to --http-hosts, or use access keys or TLS", r.Host))}
}

// overLoopback reports whether a request arrived at a loopback address.
func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// own reports whether a Host header has an IP address, a name of this machine (RFC 6761 §6.3), or a
// name in the options. Browsers always send the header.
func (h Hosts) own(host string) bool {
	name := hostName(host)
	if name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return slices.ContainsFunc(h.Names, func(own string) bool { return name == hostName(own) })
}

// IsHostName reports whether name can be that of a host, as a Host header has it
// without a port: letters, digits, hyphens and underscores, with dots between.
func IsHostName(name string) bool {
	return len(name) <= 255 && hostNames.MatchString(name)
}

var hostNames = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)

// hostName returns the name before the port, in the form for comparison.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
