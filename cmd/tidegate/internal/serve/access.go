package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/access"
)

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
		if len(k.Certificates) > 0 && c.settings.tls.clientCertificates == string(server.ClientCertificatesNone) {
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
