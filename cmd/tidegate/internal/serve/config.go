package serve

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/address"
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
		_, err := address.Parse(match)
		bad = append(bad, c.refused("address_settings", match, err, s.Validate())...)
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
		if slices.Contains(r.Actions, "admin") {
			at := c.from[path("access", fmt.Sprintf("anonymous[%d]", i+1))]
			return fmt.Sprintf("%s: access.anonymous lets every client of the network administer the broker without credentials; remove the action admin, or listen on a loopback address", at.Comment())
		}
	}
	return ""
}

// checkTLS rejects settings that go only with others.
func (c *config) checkTLS() (bad faults) {
	t, none := c.settings.tls, "none"
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

// A keyDeclaration is one of access.keys in a file.
type keyDeclaration struct {
	Secret       []server.Secret `json:"secret,omitempty"`
	SecretFile   []string        `json:"secret_file,omitempty"`
	SecretEnv    []string        `json:"secret_env,omitempty"`
	Certificates []string        `json:"certificates,omitempty"`
	Allow        []server.Rule   `json:"allow,omitempty"`
}

func (k keyDeclaration) secrets() int { return len(k.Secret) + len(k.SecretFile) + len(k.SecretEnv) }

// checkAccess checks the keys that a file declares. Only if each was read without a fault, whole is
// true, and they are checked together.
func (c *config) checkAccess(whole bool) (bad faults) {
	together := server.AccessConfig{Anonymous: c.anonymous}
	rules := func(at string, rules []server.Rule) {
		for i, r := range rules {
			if err := r.Check(); err != nil && whole {
				bad = append(bad, faultf(c.from[fmt.Sprintf("%s[%d]", at, i+1)], "is invalid: %v", err))
			}
		}
	}
	if at, ok := c.from[path("access", "keys")]; ok && len(c.keys) == 0 && whole {
		// A file that was cut off here would let everyone do everything.
		bad = append(bad, faultf(at, "is empty, and without keys every client has all permissions; give a key, or remove this line if that is intended"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.keys)) {
		k, at := c.keys[name], path("access", "keys", name)
		for i, s := range k.Secret {
			if s.Reveal() == "" {
				bad = append(bad, faultf(c.from[fmt.Sprintf("%s[%d]", path(at, "secret"), i+1)], "is empty"))
			}
		}
		if n := k.secrets(); n > access.MaxSecrets {
			bad = append(bad, faultf(c.from[at], "has %d secrets; the limit is %d, an old one and a new one", n, access.MaxSecrets))
		}
		if len(k.Certificates) > 0 && c.settings.tls.clientCertificates == "none" {
			bad = append(bad, faultf(c.from[at], "has certificates; set tls.client_certificates to request or require, so that clients send theirs"))
		}
		rules(path(at, "allow"), k.Allow)
		key := server.Key{Name: name, Certificates: k.Certificates, Allow: k.Allow}
		if k.secrets() > 0 { // it can be elsewhere, and differs from those of others
			key.Secrets = []server.Secret{server.NewSecret(name)}
		}
		together.Keys = append(together.Keys, key)
	}
	rules(path("access", "anonymous"), c.anonymous)
	if len(c.anonymous) > 0 && len(c.keys) == 0 {
		bad = append(bad, faultf(c.from[path("access", "anonymous[1]")], "has rules for requests without credentials, but without access.keys every client has all permissions; give keys, or remove the rules"))
	}
	if _, err := access.New(together); err != nil && len(bad) == 0 && whole {
		bad = append(bad, faultf(c.from[path("access", "keys")], "are invalid: %v", err))
	}
	return bad
}

// resolve returns the permissions, with the secrets from files and variables.
func (c *config) resolve(readFile func(string) ([]byte, error), lookup func(string) (string, bool)) (server.AccessConfig, error) {
	out := server.AccessConfig{Anonymous: c.anonymous, MaxClockSkew: c.settings.maxClockSkew}
	for _, name := range c.settings.timeZones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			return out, err
		}
		out.TimeZones = append(out.TimeZones, zone)
	}
	var bad faults
	for _, name := range slices.Sorted(maps.Keys(c.keys)) {
		k := c.keys[name]
		key := server.Key{Name: name, Certificates: k.Certificates, Allow: k.Allow, Secrets: slices.Clone(k.Secret)}
		add := func(place string, i int, secret string, err error, empty string) {
			at := c.from[fmt.Sprintf("%s[%d]", path("access", "keys", name, place), i+1)]
			if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
				err = pathErr.Err // the name may be the secret itself
			}
			switch {
			case err != nil:
				bad = append(bad, faultf(at, "cannot be read: %v", err))
			case secret == "":
				bad = append(bad, faultf(at, "%s", empty))
			default:
				key.Secrets = append(key.Secrets, server.NewSecret(secret))
			}
		}
		for i, file := range k.SecretFile {
			text, err := readFile(file)
			add("secret_file", i, strings.TrimRight(string(text), "\r\n"), err, "is an empty file; write the secret into it") // which editors add
		}
		for i, name := range k.SecretEnv {
			text, _ := lookup(name)
			add("secret_env", i, text, nil, "is a variable that is empty or not set; set it")
		}
		out.Keys = append(out.Keys, key)
	}
	if len(bad) == 0 {
		if _, err := access.New(out); err != nil {
			bad = append(bad, faultf(origin{Name: "access.keys"}, "are invalid: %v", err))
		}
	}
	return out, bad.Err()
}

// A candidate is one value that a source gives for a setting, overridden or not.
type candidate struct {
	row  int // index in settings.table
	at   any // pointer to the value
	from origin
}

// fromFile returns the candidates of the file; c has read nothing else yet.
func (c *config) fromFile() (all []candidate) {
	for i, row := range c.settings.table() {
		if at, ok := c.from[pathOf(row.key)]; ok {
			value := reflect.New(reflect.TypeOf(row.at).Elem())
			assign(value.Interface(), row.at)
			all = append(all, candidate{i, value.Interface(), at})
		}
	}
	return all
}

// override reads the values of the environment or of the flags into c and returns them as
// candidates. If a setting has several values, a list collects all of them; otherwise the last one
// counts.
func (c *config) override(layer values) (all []candidate, bad faults) {
	for i, row := range c.settings.table() {
		for n, g := range layer[row.key] {
			c.from[pathOf(row.key)] = g.from
			value := reflect.New(reflect.TypeOf(row.at).Elem())
			digits, err := declare.Digits(row.key, g.text)
			if err == nil {
				err = declare.Set(value.Elem(), digits)
			}
			if err != nil {
				bad = append(bad, faultf(g.from, "is %q: %v", g.text, err))
				continue
			}
			all = append(all, candidate{i, value.Interface(), g.from})
			if list, ok := row.at.(*[]string); ok && n > 0 {
				*list = slices.Concat(*list, value.Elem().Interface().([]string))
				continue
			}
			assign(row.at, value.Interface())
		}
	}
	return all, bad
}

// amongDefaults returns the error of settings that have the defaults except for the given values.
func amongDefaults(given ...candidate) error {
	s := defaultSettings()
	for _, g := range given {
		assign(s.table()[g.row].at, g.at)
	}
	return s.validate()
}

// blame returns the values that the broker or the server would reject. It checks each candidate
// among defaults, also an overridden one. A candidate that they reject there is accepted if it fits
// together with one other candidate: min_long_polling 30s needs a max_long_polling, possibly from
// another source. If the values that count are accepted one by one but not together, blame returns
// the first one without which the others are accepted.
func (c *config) blame(all []candidate) (bad faults) {
	var sound, suspects []candidate
	for _, g := range all {
		if amongDefaults(g) == nil {
			sound = append(sound, g)
			continue
		}
		suspects = append(suspects, g)
	}
	rows, blamed := c.settings.table(), false
	for _, g := range suspects {
		if slices.ContainsFunc(sound, func(s candidate) bool { return s.row != g.row && amongDefaults(g, s) == nil }) {
			continue
		}
		bad = append(bad, faultf(g.from, "is %q: %v", text(g.at), amongDefaults(g)))
		blamed = blamed || c.from[pathOf(rows[g.row].key)] == g.from
	}
	whole := c.settings.validate()
	if whole == nil || blamed {
		return bad
	}
	for i, row := range rows {
		others := *c.settings
		assign(others.table()[i].at, defaultSettings().table()[i].at)
		if at, ok := c.from[pathOf(row.key)]; ok && others.validate() == nil {
			return append(bad, faultf(at, "is %q: %v", text(row.at), whole))
		}
	}
	return append(bad, faultf(origin{File: c.file, Line: 1}, "the settings are invalid in combination: %v", whole))
}

// assign copies the value behind the pointer from to the variable behind the pointer to.
func assign(to, from any) { reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem()) }

// The reader of apply also reads the file of serve.
type (
	origin = declare.Origin
	faults = declare.Faults
)

var (
	faultf = declare.Faultf
	path   = declare.Path
	pathOf = declare.PathOf
)

// levels reads the node below prefix: entries of the table, and further levels of nesting.
func levels(d *declare.Decoder, n *yaml.Node, prefix string, table []setting) {
	var known []string
	for _, row := range table {
		if rest, ok := strings.CutPrefix(row.key, prefix); ok {
			if first, _, _ := strings.Cut(rest, "."); !slices.Contains(known, first) {
				known = append(known, first)
			}
		}
	}
	d.Mapping(n, pathOf(strings.TrimSuffix(prefix, ".")), known, func(name string, v *yaml.Node) {
		for _, row := range table {
			if row.key == prefix+name {
				d.Value(v, pathOf(row.key), reflect.ValueOf(row.at).Elem())
				return
			}
		}
		levels(d, v, prefix+name+".", table)
	})
}

// text returns the text of a value, in the form that declare.Set reads. at points to the value.
func text(at any) string {
	switch x := at.(type) {
	case *[]string:
		return strings.Join(*x, ",")
	case *settings.Duration:
		return time.Duration(*x).String()
	}
	return fmt.Sprint(reflect.ValueOf(at).Elem().Interface())
}

// example is a file for serve --config with all settings and their defaults.
//
//go:embed tidegate.example.yaml
var example string

// configCommand is "tidegate config".
func configCommand(stdout io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or print an example",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UsageError{Err: fmt.Errorf("config has no command %q; the commands are check and example", args[0]), Command: c.CommandPath()}
			}
			return c.Help()
		},
	}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Print all faults of a file for serve --config, or ok",
		Long: `Prints all faults of a file for 'tidegate serve --config', each with its line,
and exits with 2; or prints ok, and exits with 0. It reads only this file, not
the environment and not the files that it names, such as certificates and
secrets. It starts nothing.`,
		Args: arguments(func(args []string) bool { return len(args) == 1 && args[0] != "" }, "config check takes one argument, the file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := load(args[0], nil, nil); err != nil {
				return err
			}
			fmt.Fprintln(stdout, "ok")
			return nil
		},
	})
	c.AddCommand(&cobra.Command{
		Use:     "example",
		Short:   "Print a file for serve --config with all settings and their defaults",
		Args:    arguments(func(args []string) bool { return len(args) == 0 }, "config example takes no arguments"),
		Example: `  tidegate config example > tidegate.yaml`,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(stdout, example)
			return err
		},
	})
	return c
}

// arguments rejects arguments that are not valid.
func arguments(valid func(args []string) bool, text string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if valid(args) {
			return nil
		}
		return cli.UsageError{Err: errors.New(text), Command: c.CommandPath()}
	}
}

// show writes the configuration as a file with the same meaning: every setting, and the fields that
// the file declares of topics, groups, address settings and keys. A comment names the origin of
// each value. Secrets that stand in the file itself are left out.
func (c *config) show(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	printed := *c
	printed.keys = maps.Clone(c.keys)
	for name, k := range printed.keys {
		k.Secret = nil
		printed.keys[name] = k
	}
	for _, row := range printed.table() {
		value, err := node(row.at)
		if err != nil {
			return err
		}
		if value.Kind == yaml.MappingNode && len(value.Content) == 0 || value.Kind == yaml.ScalarNode && declare.Empty(value) {
			continue // nothing is declared
		}
		into, key := root, row.key
		if outer, inner, nested := strings.Cut(row.key, "."); nested {
			into, key = below(root, outer), inner
		}
		c.comment(value, pathOf(row.key))
		name := &yaml.Node{Kind: yaml.ScalarNode, Value: key}
		if row.when != "" { // others have a comment at each value
			value.LineComment = c.from[pathOf(row.key)].Comment()
		}
		into.Content = append(into.Content, name, value)
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	return errors.Join(encoder.Encode(root), encoder.Close())
}

// below returns the mapping of that name in n, which it creates if there is none.
func below(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &yaml.Node{Kind: yaml.MappingNode})
	return n.Content[len(n.Content)-1]
}

// node returns the YAML node of a value. at points to the value. Declarations have the same form as
// over HTTP.
func node(at any) (*yaml.Node, error) {
	n := &yaml.Node{}
	value := reflect.ValueOf(at).Elem()
	if d, ok := at.(*settings.Duration); ok {
		err := n.Encode(time.Duration(*d))
		return n, err
	}
	if kind := value.Kind(); kind != reflect.Map && !(kind == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct) {
		err := n.Encode(value.Interface())
		if n.Kind == yaml.SequenceNode {
			n.Style = yaml.FlowStyle
		}
		return n, err
	}
	data, err := json.Marshal(value.Interface())
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// comment notes the origin of every value below n.
func (c *config) comment(n *yaml.Node, at string) {
	n.Style = 0
	if n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.ScalarNode {
		n.Style = yaml.FlowStyle
	}
	for _, v := range n.Content {
		if n.Kind == yaml.SequenceNode {
			c.comment(v, at)
		}
	}
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		below := at + declare.Sep + k.Value
		k.Style = 0
		c.comment(v, below)
		commented := v
		if v.Style == 0 && len(v.Content) > 0 {
			commented = k
		}
		if o, ok := c.from[below]; ok {
			commented.LineComment = o.Comment()
		}
		if name, ok := strings.CutPrefix(below, path("access", "keys")+declare.Sep); ok && len(c.keys[name].Secret) > 0 {
			commented.LineComment += "; the secret is not shown"
		}
	}
}
