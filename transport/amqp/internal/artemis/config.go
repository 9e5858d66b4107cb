package artemis

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/internal/javaserver"
)

// Options configure a broker. The zero value is a broker on a free port that needs no credentials,
// creates addresses and queues on demand, and removes its data at the end.
type Options struct {
	// Dir is the directory for data and configuration. Empty means a temporary one, which Close
	// removes.
	Dir string

	// Port is the port on 127.0.0.1. Zero means a free one.
	Port int

	// Properties are broker properties by Artemis's names, for example
	// `addressSettings."orders".maxSizeBytes`. They precede the defaults of [Start].
	Properties map[string]string

	// Acceptor are parameters of the AMQP acceptor, for example "amqpIdleTimeout".
	Acceptor map[string]string

	// Users are the users that may connect, by name. Nil means that every client may connect.
	Users map[string]User

	// Certificate is the file of the server's certificate and key, in PEM. Empty means no TLS.
	Certificate string

	// ClientAuthority is the file of the certificate authority of clients, in PEM. Clients need a
	// certificate then. Empty means that they need none. It needs Certificate.
	ClientAuthority string
}

// A User is a user of the broker.
type User struct {
	Password string

	// DN is the distinguished name in the user's client certificate, for example "CN=orders". The
	// user authenticates with SASL EXTERNAL. Empty means by Password.
	DN string

	// Roles are the names that the properties `securityRoles."MATCH".ROLE.send` and the like refer
	// to.
	Roles []string
}

// defaults are the broker properties that Options.Properties override.
var defaults = map[string]string{
	"name":            "tidegate",
	"securityEnabled": "false",
	// A full disk of the machine is not a subject of a test.
	"maxDiskUsage":                                           "-1",
	`addressSettings."#".deadLetterAddress`:                  "DLA",
	`addressConfigurations.DLA.routingTypes`:                 "ANYCAST",
	`addressConfigurations.DLA.queueConfigs.DLA.address`:     "DLA",
	`addressConfigurations.DLA.queueConfigs.DLA.routingType`: "ANYCAST",
}

// acceptor returns the URL of the AMQP acceptor.
func (o Options) acceptor(port int) string {
	v := url.Values{"protocols": {"AMQP"}}
	if o.Certificate != "" {
		v.Set("sslEnabled", "true")
		v.Set("keyStoreType", "PEM")
		v.Set("keyStorePath", o.Certificate)
	}
	if o.ClientAuthority != "" {
		v.Set("needClientAuth", "true")
		v.Set("trustStoreType", "PEMCA")
		v.Set("trustStorePath", o.ClientAuthority)
		v.Set("saslMechanisms", "EXTERNAL,PLAIN")
	}
	for k, s := range o.Acceptor {
		v.Set(k, s)
	}
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(v)) {
		pairs = append(pairs, k+"="+v.Get(k))
	}
	return fmt.Sprintf("tcp://127.0.0.1:%d?%s", port, strings.Join(pairs, ";"))
}

// write writes the configuration into dir and returns the name of the file of properties.
func (o Options) write(dir string) (string, error) {
	properties := maps.Clone(defaults)
	if o.Users != nil {
		properties["securityEnabled"] = "true"
	}
	maps.Copy(properties, o.Properties)
	byPassword, byName, roles := map[string]string{}, map[string]string{}, map[string][]string{}
	for name, u := range o.Users {
		if u.DN != "" {
			byName[name] = u.DN
		} else {
			byPassword[name] = u.Password
		}
		for _, r := range u.Roles {
			roles[r] = append(roles[r], name)
		}
	}
	members := map[string]string{}
	for r, names := range roles {
		slices.Sort(names)
		members[r] = strings.Join(names, ",")
	}
	const login = `artemis {
  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
    baseDir=%[1]q
    org.apache.activemq.jaas.properties.user="users.properties"
    org.apache.activemq.jaas.properties.role="roles.properties";
};
artemis-certificates {
  org.apache.activemq.artemis.spi.core.security.jaas.TextFileCertificateLoginModule required
    baseDir=%[1]q
    org.apache.activemq.jaas.textfiledn.user="certificates.properties"
    org.apache.activemq.jaas.textfiledn.role="roles.properties";
};
`
	for name, text := range map[string][]byte{
		"broker.properties":       javaserver.Properties(properties),
		"users.properties":        javaserver.Properties(byPassword),
		"certificates.properties": javaserver.Properties(byName),
		"roles.properties":        javaserver.Properties(members),
		"login.config":            fmt.Appendf(nil, login, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "broker.properties"), nil
}

// Permissions are the permissions of a role, by the names in the properties
// `securityRoles."MATCH".ROLE.PERMISSION`.
var Permissions = []string{"send", "consume", "createAddress", "deleteAddress", "createDurableQueue", "deleteDurableQueue", "createNonDurableQueue", "deleteNonDurableQueue", "manage", "browse"}
