package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server"
)

// A keyDeclaration is one of access.keys in a file.
type keyDeclaration struct {
	from                  origin
	secrets, certificates values // by where the secret is: secret, secret_file, secret_env
	allow                 []ruleDeclaration
	broken                bool // a fault of it was told
}

// A ruleDeclaration is one rule in a file.
type ruleDeclaration struct {
	from   origin
	values values
	broken bool // likewise
}

// A keyConfig is a key, checked, whose secrets may be elsewhere still.
type keyConfig struct {
	at      origin
	key     server.Key
	secrets []secretSource
}

// A secretSource is where a secret is. It is never shown if it is the secret itself.
type secretSource struct {
	from  origin
	place string        // secret, secret_file or secret_env
	name  string        // of the file or variable
	text  server.Secret // of a secret in the file
}

// An accessConfig is what a file says of keys.
type accessConfig struct {
	keys      map[string]keyConfig
	anonymous []server.Rule
}

// on reports whether there are keys: then nothing is allowed that no rule allows.
func (a accessConfig) on() bool { return len(a.keys) > 0 }

var (
	secretPlaces = []string{"secret", "secret_file", "secret_env"}
	keyFields    = append(slices.Clone(secretPlaces), "certificates", "allow")
	ruleFields   = []string{"actions", "topics", "groups"}
)

// access reads the section of that name. What stands in it is not repeated in
// faults: it may be a secret.
func (p *parser) access(n *yaml.Node, doc *document) {
	p.hides = true
	defer func() { p.hides = false }()
	keys := append(level(keysOf(settingRules), "access."), "keys", "anonymous")
	p.mapping(n, "access", keys, func(key string, k, v *yaml.Node) {
		name := "access." + key
		switch {
		case empty(v) && key == "anonymous": // all of them are commented out: they may do nothing
		case key == "keys" && (empty(v) || len(v.Content) == 0):
			// A file that was cut off here would let everyone do everything.
			p.bad(k.Line, "access.keys is empty, and without keys everyone may do everything: give a key, or remove this line if that is meant")
		case key == "keys":
			p.mapping(v, name, nil, func(ak string, k, v *yaml.Node) {
				doc.keys[ak] = p.key(origin{"access.keys." + ak, p.file, k.Line}, v)
			})
		case key == "anonymous":
			doc.anonymous = p.rules(v, name)
		case key == "time_zones":
			p.list(name, v, doc.values)
		default:
			p.scalar(name, name, k, v, doc.values)
		}
	})
}

func (p *parser) key(at origin, n *yaml.Node) keyDeclaration {
	d := keyDeclaration{from: at, secrets: values{}, certificates: values{}}
	if access.CheckName(strings.TrimPrefix(at.name, "access.keys.")) != nil {
		d.from.name = "access.keys" // the name may be a secret in the wrong place
	}
	told := len(p.faults)
	p.mapping(n, d.from.name, keyFields, func(field string, _, v *yaml.Node) {
		name := d.from.name + "." + field
		switch {
		case field == "allow" && !empty(v):
			d.allow = p.rules(v, name)
		case field == "allow":
		case field == "certificates":
			p.namedList(field, name, v, d.certificates)
		default:
			p.namedList(field, name, v, d.secrets)
		}
	})
	d.broken = len(p.faults) > told
	return d
}

func (p *parser) rules(n *yaml.Node, what string) []ruleDeclaration {
	if n.Kind != yaml.SequenceNode {
		p.bad(n.Line, `%s is %s: give a list of rules such as {actions: [send], topics: ["orders-*"]}`, what, p.describe(n))
		return nil
	}
	list := make([]ruleDeclaration, len(n.Content))
	for i, v := range n.Content {
		d := ruleDeclaration{from: origin{fmt.Sprintf("%s[%d]", what, i+1), p.file, v.Line}, values: values{}}
		told := len(p.faults)
		p.mapping(v, d.from.name, ruleFields, func(field string, _, v *yaml.Node) {
			p.namedList(field, d.from.name+"."+field, v, d.values)
		})
		d.broken = len(p.faults) > told
		list[i] = d
	}
	return list
}

func empty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// mergeAccess checks the keys that a file declares.
func mergeAccess(doc document, s section[settings]) (accessConfig, faults) {
	a := accessConfig{keys: map[string]keyConfig{}}
	var bad faults
	first := origin{}
	whole, broken := server.AccessConfig{}, false
	for _, name := range slices.Sorted(maps.Keys(doc.keys)) {
		d := doc.keys[name]
		if first.file == "" {
			first = d.from
		}
		if err := access.CheckName(name); err != nil {
			bad = append(bad, faultf(d.from, "has a name that cannot be: %v", err))
			continue
		}
		k := keyConfig{at: d.from, key: server.Key{Name: name}}
		for _, place := range secretPlaces {
			for _, g := range d.secrets[place] {
				src := secretSource{from: g.from, place: place, name: g.text}
				if place == "secret" {
					src.name, src.text = "", server.NewSecret(g.text)
				}
				if g.text == "" {
					bad = append(bad, faultf(g.from, "is empty"))
				}
				k.secrets = append(k.secrets, src)
			}
		}
		if n := len(k.secrets); n > access.MaxSecrets {
			bad = append(bad, faultf(d.from, "has %d secrets: at most %d hold at once, the old one and the new one", n, access.MaxSecrets))
		}
		for _, g := range d.certificates["certificates"] {
			k.key.Certificates = append(k.key.Certificates, g.text)
		}
		if len(k.key.Certificates) > 0 && s.value.tls.clientCertificates == "none" {
			bad = append(bad, faultf(d.from, "has certificates: set tls.client_certificates to request or require, so that clients show theirs"))
		}
		var more faults
		k.key.Allow, more = rulesOf(d.allow)
		bad = append(bad, more...)
		a.keys[name] = k
		broken = broken || d.broken

		checked := k.key
		checked.Secrets = make([]server.Secret, min(len(k.secrets), 1))
		for i := range checked.Secrets { // it is elsewhere, and differs from others'
			checked.Secrets[i] = server.NewSecret(name)
		}
		whole.Keys = append(whole.Keys, checked)
	}
	var more faults
	a.anonymous, more = rulesOf(doc.anonymous)
	bad = append(bad, more...)
	if len(bad) == 0 && !broken { // what one can tell only of all of them
		if _, err := access.New(whole); err != nil {
			bad = append(bad, faultf(origin{"access.keys", first.file, first.line}, "are wrong: %v", err))
		}
	}
	if len(a.anonymous) > 0 && !a.on() {
		bad = append(bad, faultf(doc.anonymous[0].from, "says what requests without credentials may do, but there are no access.keys: all may do everything"))
	}
	return a, bad
}

func rulesOf(list []ruleDeclaration) (rules []server.Rule, bad faults) {
	for _, d := range list {
		var r server.Rule
		for _, g := range d.values["actions"] {
			r.Actions = append(r.Actions, server.Action(g.text))
		}
		for _, g := range d.values["topics"] {
			r.Topics = append(r.Topics, g.text)
		}
		for _, g := range d.values["groups"] {
			r.Groups = append(r.Groups, g.text)
		}
		if err := r.Check(); err != nil && !d.broken {
			bad = append(bad, faultf(d.from, "is wrong: %v", err))
		}
		rules = append(rules, r)
	}
	return rules, bad
}

// resolve returns who may do what, with the secrets that are in files and variables.
func (c config) resolve(readFile func(string) ([]byte, error), lookup func(string) (string, bool)) (server.AccessConfig, error) {
	out := server.AccessConfig{
		Anonymous: c.access.anonymous, MaxClockSkew: c.settings.value.skew, TimeZones: c.settings.value.timeZones(),
	}
	var bad faults
	for _, name := range slices.Sorted(maps.Keys(c.access.keys)) {
		k := c.access.keys[name]
		for _, src := range k.secrets {
			secret := src.text
			switch src.place {
			case "secret_file":
				text, err := readFile(src.name)
				if err != nil {
					if path, ok := errors.AsType[*fs.PathError](err); ok {
						err = path.Err // the name may be the secret itself
					}
					bad = append(bad, faultf(src.from, "cannot be read: %v", err))
					continue
				}
				secret = server.NewSecret(strings.TrimRight(string(text), "\r\n")) // which editors add
			case "secret_env":
				text, _ := lookup(src.name)
				secret = server.NewSecret(text)
			}
			if secret.Reveal() == "" {
				what := map[string]string{"secret_env": "names a variable that is empty or not set", "secret_file": "names an empty file"}[src.place]
				bad = append(bad, faultf(src.from, "%s", cmp.Or(what, "is empty")))
				continue
			}
			k.key.Secrets = append(k.key.Secrets, secret)
		}
		out.Keys = append(out.Keys, k.key)
	}
	if len(bad) == 0 {
		if _, err := access.New(out); err != nil {
			bad = append(bad, faultf(origin{name: "access.keys"}, "are wrong: %v", err))
		}
	}
	return out, bad.err()
}
