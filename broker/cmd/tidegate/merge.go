package main

import (
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/nearest"
)

// A section is a T with where each field came from; fields that are not in
// from have their default.
type section[T any] struct {
	value T
	at    origin // of a declaration
	from  map[string]origin
}

// A config is everything that serve is told, merged and checked.
type config struct {
	settings  section[settings]
	topics    map[string]section[broker.TopicConfig]
	groups    map[string]section[broker.GroupConfig]
	addresses map[string]section[broker.AddressSettings]
	access    accessConfig
}

// build reads the layers, the strongest last, over the defaults. Every value
// is checked, also one that a stronger layer hides; by validate, if it is not nil, as the
// only one that is not zero.
func build[T any](rules []rule[T], validate func(T) error, layers ...values) (section[T], faults) {
	s := section[T]{from: map[string]origin{}}
	var bad faults
	for _, r := range rules {
		if r.keeps == "" {
			if err := r.set(&s.value, r.preset); err != nil {
				bad = append(bad, faultf(origin{}, "the default of %s is wrong: %v", r.key, err))
			}
		}
		for _, layer := range layers {
			list, ok := layer[r.key]
			if !ok {
				continue
			}
			if r.reset != nil {
				r.reset(&s.value)
			}
			for _, g := range list {
				var alone T
				err := r.set(&s.value, g.text)
				if err == nil && validate != nil && r.set(&alone, g.text) == nil {
					err = validate(alone)
				}
				if err != nil {
					bad = append(bad, faultf(g.from, "is %q: %v", g.text, err))
				}
				s.from[r.key] = g.from
			}
		}
	}
	return s, bad
}

// merge makes a configuration of what a file, the environment and the flags
// give. It is to be used only if there are no faults.
func merge(doc document, env, flags values) (config, faults) {
	c := config{topics: map[string]section[broker.TopicConfig]{}, groups: map[string]section[broker.GroupConfig]{}, addresses: map[string]section[broker.AddressSettings]{}}
	var bad, more faults
	c.settings, bad = build(settingRules, settings.validateAlone, doc.values, env, flags)
	if len(bad) == 0 {
		bad = checkPairs(c.settings)
	}
	if err := c.settings.value.validate(); err != nil && len(bad) == 0 { // what several together are wrong in
		bad = append(bad, faultf(origin{}, "the settings cannot be: %v", err))
	}
	c.access, more = mergeAccess(doc, c.settings)
	bad = append(bad, more...)
	bad = append(bad, checkTLS(c.settings)...)
	bad = append(bad, exposed(c.settings, c.access.on())...)
	if c.settings.value.noKeys && c.access.on() {
		bad = append(bad, faultf(c.settings.from["no_keys"], "is true, and there are access keys or anonymous rules: take away one of them; --no-keys is for a broker without keys"))
	}
	for name, d := range doc.topics {
		c.topics[name], more = declared(topicRules, d, tidegate.ValidateTopic(name))
		if len(more) == 0 {
			more = refused(topicRules, c.topics[name], c.topics[name].value.Validate())
		}
		bad = append(bad, more...)
	}
	for name, d := range doc.groups {
		c.groups[name], more = declared(groupRules, d, tidegate.ValidateGroup(name))
		if len(more) == 0 {
			more = refused(groupRules, c.groups[name], c.groups[name].value.Validate())
		}
		bad = append(bad, more...)
	}
	for match, d := range doc.addresses {
		c.addresses[match], more = addressDeclared(match, d)
		bad = append(bad, more...)
	}
	for _, t := range c.settings.value.topics {
		name, kind, typed := strings.Cut(t, ":")
		if d, ok := c.topics[name]; ok && typed && d.value.Type != "" && string(d.value.Type) != kind {
			bad = append(bad, faultf(c.settings.from["topic"], "is %q, but %s:%d makes it %s: give it one type",
				t, d.at.file, d.from["type"].line, d.value.Type))
		}
	}
	return c, bad
}

func declared[T any](rules []rule[T], d declaration, nameErr error) (section[T], faults) {
	s, bad := build(rules, nil, d.values)
	s.at = d.from
	if nameErr != nil {
		bad = append(bad, faultf(d.from, "has a name that cannot be: %v", nameErr))
	}
	return s, bad
}

// refused makes faults of what the engine would refuse of a declaration, a
// line each, at the field that the line begins with.
func refused[T any](rules []rule[T], s section[T], err error) (bad faults) {
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		f := faultf(s.at, "cannot be: %s", strings.TrimSuffix(line, "\n"))
		for _, r := range rules {
			said, is := strings.CutPrefix(line, r.key)
			if at, ok := s.from[r.key]; ok && is && strings.IndexAny(said, " :") == 0 {
				f = faultf(at, "%s", strings.TrimSpace(strings.TrimLeft(said, " :")))
			}
		}
		bad = append(bad, f)
	}
	return bad
}

// exposed refuses addresses that other machines can use, unless these are
// asked for keys, over TLS with a certificate that they can verify.
func exposed(s section[settings], keys bool) faults {
	if s.value.insecure || keys && s.value.tls.cert != "" && !s.value.tls.allowPlainText {
		return nil
	}
	var bad faults
	for _, a := range []struct{ key, value string }{{"grpc", s.value.grpc}, {"http", s.value.http}} {
		host, _, err := net.SplitHostPort(a.value)
		if ip := net.ParseIP(host); err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			bad = append(bad, faultf(s.from[a.key], "is %q: other machines could use it without keys or verified TLS; "+
				"give a loopback address such as 127.0.0.1, or set tls.cert, tls.key and access.keys and leave tls.allow_plain_text false, "+
				"or add --insecure (in a file insecure: true)", a.value))
		}
	}
	return bad
}

// environment returns the settings among the variables, and a hint for every
// variable that looks like a mistyped one. An empty variable counts as not set.
func environment(environ []string) (v values, hints []string) {
	v = values{}
	known := map[string]string{variable("config"): ""}
	for _, key := range keysOf(settingRules) {
		known[variable(key)] = key
	}
	for _, e := range environ {
		name, text, _ := strings.Cut(e, "=")
		key, ok := known[name]
		switch {
		case text == "" || !strings.HasPrefix(name, "TIDEGATE_"):
		case key != "":
			v[key] = []given{{text, origin{name: name}}}
		case !ok:
			if n := nearest.Name(name, slices.Sorted(maps.Keys(known))); n != "" {
				hints = append(hints, name+" is no setting: did you mean "+n+"?")
			}
		}
	}
	return v, hints
}
