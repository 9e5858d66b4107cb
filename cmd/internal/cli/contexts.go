package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/nearest"
)

func newContexts(a *App) *cobra.Command {
	return parent(toolGroup, "context", "Keep servers by name: addresses, keys and where their secrets are", "  tidegate context add prod --grpc mq.example:8081 --http https://mq.example:8082 --access-key operator --secret-file ~/.mq",
		newContextList(a), newContextUse(a), newContextAdd(a), newContextShow(a), newContextTest(a), newContextRemove(a))
}

// A contextRow is a context with its name.
type contextRow struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	Context
}

func newContextList(a *App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the contexts; * marks the current one",
		Example: "  tidegate context list",
	}, nil, func(_ context.Context, c *Call) error {
		f, _, err := c.ContextFile()
		if err != nil {
			return err
		}
		var rows []contextRow
		for _, name := range f.Names() {
			rows = append(rows, contextRow{name, name == f.Current, f.Contexts[name]})
		}
		return printList(c, output.List[contextRow]{
			Rows: rows,
			Columns: []output.Column[contextRow]{
				{Name: "NAME", Cell: func(r contextRow) any { return r.Name + map[bool]string{true: " *"}[r.Current] }},
				{Name: "KIND", Cell: func(r contextRow) any { return cmp.Or(r.Kind, connectionTidegate) }},
				{Name: "GRPC", Cell: func(r contextRow) any { return cmp.Or(r.GRPC, r.AMQP, r.Pulsar) }},
				{Name: "HTTP", Cell: func(r contextRow) any { return r.HTTP }},
				{Name: "ACCESS-KEY", Cell: func(r contextRow) any { return r.Key }},
				{Name: "PROTECTED", Cell: func(r contextRow) any { return map[bool]string{true: "yes"}[r.Protect] }},
			},
			Name:     func(r contextRow) string { return r.Name },
			Document: func(rs []contextRow) any { return map[string]any{"contexts": notNil(rs)} },
			Empty:    "no contexts: commands use 127.0.0.1; 'tidegate context add NAME --grpc HOST:PORT' adds one",
		})
	}).Command
}

func newContextUse(a *App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use:     "use",
		Short:   "Choose the context of later commands; - goes back to the previous one",
		Example: "  tidegate context use prod",
	}, []string{"NAME"}, editing(func(c *Call, f *File, _ string) (func(), error) {
		name := c.Args[0]
		if name == "-" {
			if name = f.Previous; name == "" {
				return nil, usagef(c.Command, "there is no previous context")
			}
		}
		if _, err := f.Get(name); err != nil {
			return nil, &contextError{err}
		}
		if name != f.Current {
			f.Previous, f.Current = f.Current, name
		}
		return func() { c.Note("the context is %s", output.Safe(name)) }, nil
	})).Command
}

// editing returns the work of a command that changes the file of contexts. edit returns the notes
// after the change.
func editing(edit func(c *Call, f *File, path string) (done func(), err error)) run {
	return func(_ context.Context, c *Call) error {
		f, path, err := c.ContextFile()
		if err != nil {
			return err
		}
		done, err := edit(c, &f, path)
		if err == nil {
			err = f.Write(path)
		}
		if err == nil {
			done()
		}
		return err
	}
}

// A contextError is the error of a context that does not exist.
type contextError struct{ error }

func (e *contextError) Unwrap() []error { return []error{e.error, notFound(e.Error())} }

func newContextAdd(a *App) *cobra.Command {
	var n Context
	var secretCommand []string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Add a context, or replace one",
		Long: `Adds a context, or replaces one. The file of contexts has no secrets, only where
they are: in a file, or in the output of a command.`,
		Example: `  tidegate context add dev --grpc 127.0.0.1:8081 --http http://127.0.0.1:8082
  tidegate context add rmq --kind rocketmq --grpc proxy.example:8081 --access-key app --secret-command pass,show,mq
  tidegate context add artemis --amqp amqps://mq.example --access-key app --secret-file ~/.artemis
  tidegate context add pulsar --pulsar pulsar+ssl://a.example,b.example --namespace shop/orders --secret-file ~/.token`,
	}
	c := a.Local(cmd, []string{"NAME"}, editing(func(c *Call, f *File, path string) (func(), error) {
		name := c.Args[0]
		n.SecretCommand = secretCommand
		for i := range systems {
			if s := &systems[i]; *n.address(s) != "" && n.Kind == "" {
				n.Kind = s.kind
			}
		}
		if err := n.Check(name); err != nil {
			return nil, c.Usage(err)
		}
		switch {
		case n.GRPC+n.HTTP+n.AMQP+n.Pulsar == "":
			return nil, usagef(c.Command, "give --grpc, and for a tidegate broker --http; or for an ActiveMQ Artemis --amqp, for an Apache Pulsar --pulsar")
		case n.Kind == connectionRocketMQ && n.HTTP != "":
			return nil, usagef(c.Command, "a RocketMQ has no HTTP API; remove --http")
		case n.SecretFile != "" && len(secretCommand) > 0:
			return nil, usagef(c.Command, "--secret-file and --secret-command exclude each other")
		}
		if f.Contexts == nil {
			f.Contexts = map[string]Context{}
		}
		f.Contexts[name] = n
		first := f.Current == ""
		f.Current = cmp.Or(f.Current, name)
		return func() {
			c.Note("%s has %s; %s tests it", path, output.Safe(name), output.Mention(c.Command.Root().Name()+" doctor"+output.Flag("context", name)))
			if first {
				c.Note("%s is now the current context", output.Safe(name))
			}
		}, nil
	}))
	f := c.Command.Flags()
	f.StringVar(&n.Kind, "kind", "", "`kind` of server: tidegate, rocketmq, amqp or pulsar")
	f.StringVar(&n.GRPC, "grpc", "", "`host:port` of the broker or RocketMQ proxy")
	f.StringVar(&n.HTTP, "http", "", "`URL` of the broker's HTTP API")
	for i := range systems {
		s := &systems[i]
		f.StringVar(n.address(s), s.kind, "", "`URL` of "+s.product+", for the program tidegate-foreign")
	}
	f.StringVar(&n.Namespace, "namespace", "", "`prefix` of the names on a RocketMQ with namespaces; on a Pulsar tenant/namespace (default public/default)")
	f.StringVar(&n.Naming, "naming", "", "`naming` of retry and dead letter topics on a Pulsar: by-topic (the default), by-group or by-group-lower-case")
	f.StringVar(&n.Key, "access-key", "", "access `key`, or the name of a user")
	f.StringVar(&n.SecretFile, "secret-file", "", "`file` with the secret of the key, or with the token of a Pulsar without --access-key")
	f.StringSliceVar(&secretCommand, "secret-command", nil, "`command` that prints the secret or the token, its words separated by commas")
	f.BoolVar(&n.TLS, "tls", false, "use TLS for --grpc")
	f.StringVar(&n.CACert, "cacert", "", "`file` with the certificates to trust")
	f.StringVar(&n.Cert, "cert", "", "`file` with the client certificate")
	f.StringVar(&n.CertKey, "cert-key", "", "`file` with the key of the client certificate")
	f.BoolVar(&n.SkipVerify, "tls-skip-verify", false, "accept any certificate")
	f.BoolVar(&n.Protect, "protect", false, "destructive commands need --yes=NAME with the name of their subject")
	return c.Command
}

func newContextShow(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:     "show",
		Short:   "Show the server in effect, each value with its source",
		Example: "  tidegate context show",
	}, nil, func(_ context.Context, c *Call) error {
		s, err := c.InEffect()
		if err != nil {
			return err
		}
		fields := []output.Field{{Name: "kind", Value: cmp.Or(s.Kind, connectionTidegate)}}
		for _, v := range s.Sources {
			fields = append(fields, output.Field{Name: v[0], Value: fmt.Sprintf("%s (%s)", v[1], v[2])})
		}
		if s.Protect {
			fields = append(fields, output.Field{Name: "protected", Value: "destructive commands need --yes=NAME"})
		}
		return c.Show(contextRow{s.Name, s.Name != "", s.Context}, s.Name, fields)
	})
}

func newContextRemove(a *App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use: "remove", Aliases: []string{"rm"},
		Short:   "Remove a context",
		Example: "  tidegate context remove dev",
	}, []string{"NAME"}, editing(func(c *Call, f *File, _ string) (func(), error) {
		name := c.Args[0]
		if _, err := f.Get(name); err != nil {
			return nil, &contextError{err}
		}
		delete(f.Contexts, name)
		for _, at := range []*string{&f.Current, &f.Previous} {
			if *at == name {
				*at = ""
			}
		}
		return func() { c.Note("removed the context %s", output.Safe(name)) }, nil
	})).Command
}

// The kinds of servers, with those of systems.
const (
	connectionTidegate = "tidegate"
	connectionRocketMQ = "rocketmq" // Apache RocketMQ 5, which has no HTTP administration
)

// A Context is a named server in the file of contexts.
type Context struct {
	Kind          string   `yaml:"kind,omitempty" json:"kind,omitempty"` // empty means tidegate
	HTTP          string   `yaml:"http,omitempty" json:"http,omitempty"`
	GRPC          string   `yaml:"grpc,omitempty" json:"grpc,omitempty"`
	AMQP          string   `yaml:"amqp,omitempty" json:"amqp,omitempty"`     // amqp://host:port or amqps://host:port
	Pulsar        string   `yaml:"pulsar,omitempty" json:"pulsar,omitempty"` // pulsar://host:port,host or pulsar+ssl://host:port,host
	Namespace     string   `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Naming        string   `yaml:"naming,omitempty" json:"naming,omitempty"` // of retry and dead letter topics on a Pulsar
	Key           string   `yaml:"key,omitempty" json:"key,omitempty"`
	SecretFile    string   `yaml:"secret_file,omitempty" json:"secret_file,omitempty"`
	SecretCommand []string `yaml:"secret_command,omitempty,flow" json:"secret_command,omitempty"`
	TLS           bool     `yaml:"tls,omitempty" json:"tls,omitempty"`
	CACert        string   `yaml:"cacert,omitempty" json:"cacert,omitempty"`
	Cert          string   `yaml:"cert,omitempty" json:"cert,omitempty"`
	CertKey       string   `yaml:"cert_key,omitempty" json:"cert_key,omitempty"`
	SkipVerify    bool     `yaml:"tls_skip_verify,omitempty" json:"tls_skip_verify,omitempty"`
	Protect       bool     `yaml:"protect,omitempty" json:"protect,omitempty"` // destructive commands need --yes=NAME
}

// A File is the file of contexts.
type File struct {
	Current  string             `yaml:"current,omitempty"`
	Previous string             `yaml:"previous,omitempty"`
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// Names returns the names of all contexts in order.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// Get returns a context. The error names those that exist and the most similar one.
func (f File) Get(name string) (Context, error) {
	c, ok := f.Contexts[name]
	switch names := f.Names(); {
	case ok:
		return c, nil
	case len(names) == 0:
		return Context{}, fmt.Errorf("there is no context %q, and no other: create one with %s", name, output.Mention(output.CommandFlags("tidegate context add", " --grpc HOST:PORT", name)))
	default:
		suggestion := ""
		if near := nearest.Name(name, names); near != "" {
			suggestion = fmt.Sprintf("; did you mean %s?", near)
		}
		return Context{}, fmt.Errorf("there is no context %q; the contexts are %s%s", name, strings.Join(names, ", "), suggestion)
	}
}

// filePath returns the path of the file of contexts: contexts.yaml in the directory tidegate of
// XDG_CONFIG_HOME, or of the user's configuration directory.
func filePath(env func(string) string) (string, error) {
	dir := env("XDG_CONFIG_HOME")
	if dir == "" {
		var err error
		if dir, err = os.UserConfigDir(); err != nil {
			return "", fmt.Errorf("the file of contexts has no directory: %w; set XDG_CONFIG_HOME", err)
		}
	}
	return filepath.Join(dir, "tidegate", "contexts.yaml"), nil
}

// readFile reads a file of contexts. A file that does not exist has no contexts. Readable reports
// whether other users of the machine can read it.
func readFile(path string) (f File, readable bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, false, nil
	}
	if err != nil {
		return File{}, false, fmt.Errorf("the file of contexts cannot be read: %w", err)
	}
	if info, err := os.Stat(path); err == nil {
		readable = info.Mode().Perm()&0o044 != 0
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err = d.Decode(&f); err == nil && !errors.Is(d.Decode(new(yaml.Node)), io.EOF) {
		err = errors.New("a second YAML document begins behind the first")
	}
	if err != nil && len(bytes.TrimSpace(text)) > 0 {
		return File{}, readable, fmt.Errorf("%s is invalid: %w; correct it, or remove it and add the contexts again", path, err)
	}
	for name, c := range f.Contexts {
		if err := c.checkKind(); err != nil {
			return File{}, readable, fmt.Errorf("%s: the context %q: %w", path, name, err)
		}
	}
	return f, readable, nil
}

// Write replaces a file of contexts. Only the user can read it.
func (f File) Write(path string) error {
	text, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("the directory of contexts cannot be created: %w", err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // with mode 0600
	if err != nil {
		return fmt.Errorf("the file of contexts cannot be written: %w", err)
	}
	_, err = temporary.Write(text)
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the file of contexts cannot be written: %w", err), os.Remove(temporary.Name()))
	}
	return nil
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// Check checks the name and the addresses of a context, and makes the paths of its files
// absolute: commands run in any directory.
func (n *Context) Check(name string) error {
	if !contextName.MatchString(name) {
		return fmt.Errorf("the name %q has other characters than letters, digits, '.', '_' and '-'", name)
	}
	for i := range systems {
		s := &systems[i]
		if s.has(n.GRPC) {
			return fmt.Errorf("--grpc is %q, which is an address of %s: give it as --%s", n.GRPC, s.product, s.kind)
		}
		if address := *n.address(s); address != "" {
			if err := s.check(address); err != nil {
				return err
			}
		}
	}
	for address := range strings.SplitSeq(n.GRPC, ";") {
		host, port, err := net.SplitHostPort(address)
		if number, perr := strconv.Atoi(port); n.GRPC != "" && (err != nil || host == "" || perr != nil || number < 1 || number > 65535) {
			return fmt.Errorf("--grpc is %q; it is HOST:PORT", n.GRPC)
		}
	}
	if u, err := url.Parse(n.HTTP); n.HTTP != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("--http is %q; it is a URL such as http://127.0.0.1:8082", n.HTTP)
	}
	if err := n.checkKind(); err != nil {
		return err
	}
	for _, path := range []*string{&n.SecretFile, &n.CACert, &n.Cert, &n.CertKey} {
		if *path == "" || strings.HasPrefix(*path, "~/") {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	return nil
}

// checkKind checks the kind of a context, and that its addresses and settings belong to it.
func (n *Context) checkKind() error {
	kinds := []string{connectionTidegate, connectionRocketMQ}
	first := n.GRPC + n.HTTP
	for i := range systems {
		s := &systems[i]
		kinds = append(kinds, s.kind)
		address := *n.address(s)
		if address != "" && first != "" {
			return fmt.Errorf("a context has either an address of %s or other addresses", s.product)
		}
		first += address
	}
	if n.Kind != "" && !slices.Contains(kinds, n.Kind) {
		return fmt.Errorf("the kind is %q; it is %s", n.Kind, strings.Join(kinds, ", "))
	}
	for i := range systems {
		if s := &systems[i]; (n.Kind == s.kind) != (*n.address(s) != "") {
			return fmt.Errorf("the address of %s and the kind %s belong together: give both or none", s.product, s.kind)
		}
	}
	return n.checkPulsar()
}
