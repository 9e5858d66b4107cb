// Package connection finds the server of a command: from flags, the environment and the file of
// contexts, in this order. It reads secrets from files and commands, never from arguments.
package connection

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/internal/nearest"
)

// The kinds of servers.
const (
	Tidegate = "tidegate"
	RocketMQ = "rocketmq" // Apache RocketMQ 5, which has no HTTP administration
	AMQP     = "amqp"     // Apache ActiveMQ Artemis, which the program tidegate-amqp reaches
)

// A Context is a named server in the file of contexts.
type Context struct {
	Kind          string   `yaml:"kind,omitempty" json:"kind,omitempty"` // empty means tidegate
	HTTP          string   `yaml:"http,omitempty" json:"http,omitempty"`
	GRPC          string   `yaml:"grpc,omitempty" json:"grpc,omitempty"`
	AMQP          string   `yaml:"amqp,omitempty" json:"amqp,omitempty"` // amqp://host:port or amqps://host:port
	Namespace     string   `yaml:"namespace,omitempty" json:"namespace,omitempty"`
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
		return Context{}, fmt.Errorf("there is no context %q, and no other: create one with %s", name, shell.Mention(shell.LineFlags("tidegate context add", " --grpc HOST:PORT", name)))
	default:
		suggestion := ""
		if near := nearest.Name(name, names); near != "" {
			suggestion = fmt.Sprintf("; did you mean %s?", near)
		}
		return Context{}, fmt.Errorf("there is no context %q; the contexts are %s%s", name, strings.Join(names, ", "), suggestion)
	}
}

// FilePath returns the path of the file of contexts: contexts.yaml in the directory tidegate of
// XDG_CONFIG_HOME, or of the user's configuration directory.
func FilePath(env func(string) string) (string, error) {
	if dir := env("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "tidegate", "contexts.yaml"), nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("the file of contexts has no directory: %w; set XDG_CONFIG_HOME", err)
	}
	return filepath.Join(dir, "tidegate", "contexts.yaml"), nil
}

// ReadFile reads a file of contexts. A file that does not exist has no contexts. Readable reports
// whether other users of the machine can read it.
func ReadFile(path string) (f File, readable bool, err error) {
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
