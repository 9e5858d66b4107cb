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
	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// Hosts are whom requests over HTTP may be for that have no credentials and
// arrive in plain text at a loopback address.
type Hosts struct {
	Any   bool     // whoever it is
	Names []string // these, with or without a port, beside IP addresses and localhost
}

// same tells pages of other origins by Origin and Sec-Fetch-Site.
var same = http.NewCrossOriginProtection()

// A page in somebody's browser can reach a broker on that machine, which asks
// for no keys. One of another origin may only read, which browsers do not let
// it: fromPage refuses what it must not do. One whose name was made to point at this
// machine (DNS rebinding) is of the same origin: forOther refuses that name.
func fromPage(r *http.Request) *denial {
	if same.Check(r) == nil {
		return nil
	}
	return &denial{reasonOrigin, refusal.New(tidegate.CodeForbidden, "origin",
		fmt.Sprintf("a page of the origin %.200q may not change anything here", r.Header.Get("Origin")))}
}

// forOther refuses a request without credentials that arrived at a loopback
// address and is for a name that somebody else may have given out. who is nil
// where nothing is restricted. Over TLS the browser has compared the name with
// the certificate, which nobody else can have for theirs.
func (g *Gate) forOther(r *http.Request, who *access.Identity) *denial {
	if g.hosts.Any || who != nil && !who.Anonymous() || r.TLS != nil || !overLoopback(r) || g.hosts.own(r.Host) {
		return nil
	}
	return &denial{reasonHost, refusal.New(tidegate.CodeForbidden, "host", fmt.Sprintf("the request is for %.200q and has no credentials: over this machine's loopback address "+
		"it has to be for an IP address, localhost, the advertised name or one of http_hosts, because a page in a browser can make up others; "+
		"use one of these, or serve with --http-hosts and this name, with keys, or over TLS", r.Host))}
}

// overLoopback reports whether a request arrived at a loopback address.
func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// own reports whether a Host header names an IP address, this machine
// (RFC 6761 §6.3), or what the options give as its name. Browsers always send one.
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

// hostName returns what is before the port, as names are compared.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
