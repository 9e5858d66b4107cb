package serve

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/internal/nearest"
)

// A config is the whole configuration of serve, merged and checked.
type config struct {
	file      string
	settings  *configuration
	topics    map[string]settings.Topic
	groups    map[string]settings.Group
	addresses map[string]settings.Address
	keys      map[string]keyDeclaration
	anonymous []server.Rule
	from      map[string]origin // by path; no entry: the default
}

// table returns everything that a file can set.
func (c *config) table() []setting {
	return append(c.settings.table(), []setting{
		{key: "access.keys", at: &c.keys}, {key: "access.anonymous", at: &c.anonymous},
		{key: "topics", at: &c.topics}, {key: "groups", at: &c.groups}, {key: "address_settings", at: &c.addresses},
	}...)
}

// A given value is a text and its origin.
type given struct {
	text string
	from origin
}

// values are the values that the environment or the flags give, by key; more than one for lists,
// and for a flag that is repeated.
type values map[string][]given

// load reads, merges and checks a configuration. file may be empty: then there is none. The error
// is faults, all of them.
func load(file string, env, flags values) (*config, error) {
	var data []byte
	if file != "" {
		var err error
		if data, err = os.ReadFile(file); err != nil {
			return nil, faults{faultf(origin{}, "the configuration file cannot be read: %v", err)}
		}
	}
	return merge(file, data, env, flags)
}

// merge is load for the text of a file. A flag overrides the environment, and the environment
// overrides the file. Overridden values are checked too: without the flag they would count.
func merge(file string, data []byte, env, flags values) (*config, error) {
	c := &config{file: file, settings: defaultSettings(), from: map[string]origin{}}
	d := declare.Decoder{File: file, From: c.from}
	if root := d.Root(data); root != nil {
		levels(&d, root, "", c.table())
	}
	bad, all := d.Faults, c.fromFile()
	for _, layer := range []values{env, flags} {
		given, faults := c.override(layer)
		all, bad = append(all, given...), append(bad, faults...)
	}
	bad = append(bad, c.blame(all)...)
	bad = append(bad, c.checkAccess(len(d.Faults) == 0)...)
	bad = append(bad, c.checkTLS()...)
	bad = append(bad, c.exposed(c.settings)...)
	if c.settings.noKeys && len(c.keys) > 0 {
		bad = append(bad, faultf(c.from["no_keys"], "is true, but access.keys has keys; remove one of the two, because --no-keys is for a broker without keys"))
	}
	for name, topic := range c.topics {
		bad = append(bad, c.refused("topics", name, tidegate.ValidateTopic(name), topic.Validate())...)
	}
	for name, group := range c.groups {
		bad = append(bad, c.refused("groups", name, tidegate.ValidateGroup(name), group.Validate())...)
	}
	for match, s := range c.addresses {
		bad = append(bad, c.refused("address_settings", match, broker.ValidateMatch(match), s.Validate())...)
	}
	for _, t := range c.settings.topics {
		name, kind, _ := strings.Cut(t, ":")
		if d := c.topics[name]; d.Type != "" && kind != "" && string(d.Type) != kind {
			bad = append(bad, faultf(c.from["topic"], "is %q, but its type in %s is %s; give the topic one type", t, c.from[path("topics", name, "type")].Comment(), d.Type))
		}
	}
	return c, bad.Err()
}

// refused returns the faults of a declaration, one for each line of err, at the field that the line
// begins with.
func (c *config) refused(section, name string, nameErr, err error) (bad faults) {
	at := c.from[path(section, name)]
	if nameErr != nil {
		bad = append(bad, faultf(at, "has an invalid name: %v", nameErr))
	}
	if err == nil {
		return bad
	}
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSuffix(line, "\n")
		end := max(strings.IndexAny(line, " :"), 0)
		if field, ok := c.from[path(section, name, pathOf(line[:end]))]; ok {
			bad = append(bad, faultf(field, "%s", strings.TrimLeft(line[end:], " :")))
			continue
		}
		bad = append(bad, faultf(at, "is invalid: %s", line))
	}
	return bad
}

// exposed rejects addresses that other machines can use, unless clients need keys, over TLS with a
// certificate that they can verify.
func (c *config) exposed(s *configuration) (bad faults) {
	if s.server.AnyHost || len(c.keys) > 0 && s.tls.cert != "" && !s.tls.allowPlainText {
		return nil
	}
	for _, a := range []struct{ key, value string }{{"grpc", s.grpc}, {"http", s.http}} {
		if public(a.value) {
			bad = append(bad, faultf(c.from[a.key], "is %q, which other machines could use without keys or verified TLS; "+
				"give a loopback address such as 127.0.0.1, or set tls.cert, tls.key and access.keys and leave tls.allow_plain_text false, "+
				"or add --insecure (in a file insecure: true)", a.value))
		}
	}
	return bad
}

// public reports whether other machines can reach an address.
func public(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// openToAll returns a warning if other machines can administer the broker without credentials, and
// "" otherwise. That is legal, and rarely intended.
func (c *config) openToAll(s *configuration) string {
	if !public(s.grpc) && !public(s.http) {
		return ""
	}
	if len(c.keys) == 0 {
		return "every client of the network has all permissions, because there are no access keys; give access.keys, or listen on a loopback address"
	}
	for i, r := range c.anonymous {
		if slices.Contains(r.Actions, server.ActionAdmin) {
			at := c.from[path("access", fmt.Sprintf("anonymous[%d]", i+1))]
			return fmt.Sprintf("%s: access.anonymous lets every client of the network administer the broker without credentials; remove the action admin, or listen on a loopback address", at.Comment())
		}
	}
	return ""
}

// checkTLS rejects settings that go only with others.
func (c *config) checkTLS() (bad faults) {
	t, none := c.settings.tls, string(server.ClientCertificatesNone)
	for _, x := range []struct {
		key     string
		without bool
		other   string
	}{
		{"tls.cert", t.cert != "" && t.key == "", "tls.key"},
		{"tls.key", t.cert == "" && t.key != "", "tls.cert"},
		{"tls.client_ca", t.cert == "" && t.clientCA != "", "tls.cert"},
		{"tls.client_ca", t.clientCA != "" && t.clientCertificates == none, "tls.client_certificates (request or require)"},
		{"tls.client_certificates", t.cert == "" && t.clientCertificates != none, "tls.cert"},
		{"tls.client_certificates", t.clientCA == "" && t.clientCertificates != none, "tls.client_ca"},
		{"tls.allow_plain_text", t.cert == "" && t.allowPlainText, "tls.cert"},
	} {
		if x.without {
			bad = append(bad, faultf(c.from[pathOf(x.key)], "needs %s too; set both", x.other))
		}
	}
	return bad
}

// environment returns the settings among the variables, and a hint for every variable that looks
// like a mistyped one. An empty variable counts as not set.
func environment(environ []string) (v values, hints []string) {
	v = values{}
	known := map[string]string{variable("config"): ""}
	for _, name := range cli.Variables {
		known[name] = "" // of client commands
	}
	for _, row := range defaultSettings().table() {
		known[variable(row.key)] = row.key
	}
	for _, e := range environ {
		name, text, _ := strings.Cut(e, "=")
		key, ok := known[name]
		switch {
		case text == "" || !strings.HasPrefix(name, "TIDEGATE_"):
		case key != "":
			v[key] = []given{{text, origin{Name: name}}}
		case !ok:
			if n := nearest.Name(name, slices.Sorted(maps.Keys(known))); n != "" {
				hints = append(hints, name+" is not a setting; did you mean "+n+"?")
			}
		}
	}
	return v, hints
}
