package standalone

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate/internal/javaserver"
)

// Options configure a broker. The zero value is a broker on free ports that needs no credentials,
// creates topics and subscriptions on demand, and removes its data at the end.
type Options struct {
	// Dir is the directory for data and configuration. Empty means a temporary one, which Close
	// removes.
	Dir string

	// Port is the port of the broker on 127.0.0.1, with Certificate that of TLS. Zero means a free
	// one.
	Port int

	// WebPort is the port of the HTTP API on 127.0.0.1. Zero means a free one.
	WebPort int

	// Properties are settings of broker and bookie by the names in Pulsar's standalone.conf, for
	// example "backlogQuotaCheckIntervalInSeconds". They precede the defaults of [Start], which are
	// those of standalone.conf: for example, an accepted message is written to the journal and not
	// synced to the disk, unless "journalSyncData" is "true". Start fails if Pulsar has no setting
	// of a name, or if an option determines it.
	Properties map[string]string

	// Heap is the maximum of Java's heap in MiB, and that of its memory outside the heap. Zero means
	// 512.
	Heap int

	// SuperUsers are the roles that have all permissions. With at least one, each client
	// authenticates as a role, by a token of [Server.Token], and other roles need permissions. With
	// ClientAuthority, a client without a token has the common name of its certificate as its role.
	// Empty means no authentication.
	SuperUsers []string

	// Certificate is the file of the server's certificate and key, in PEM. The broker then also has
	// a port without TLS, which its own client uses; the HTTP API has no TLS. Empty means no TLS.
	Certificate string

	// ClientAuthority is the file of the certificate authority of clients, in PEM. Clients need a
	// certificate then. Empty means that they need none. It needs Certificate.
	ClientAuthority string
}

const defaultHeap = 512

// brokerRole is the super-user that the broker's own client and [Server.Admin] have.
const brokerRole = "tidegate-standalone"

// defaults are the settings that Options.Properties override: those of Pulsar's standalone.conf that
// differ from the defaults of the broker or the bookie, and a bookie without a port.
var defaults = map[string]string{
	"advertisedAddress":                "127.0.0.1",
	"allowLoopback":                    "true",
	"bindAddress":                      "127.0.0.1",
	"clusterName":                      "standalone",
	"diskUsageThreshold":               "0.99",
	"diskUsageWarnThreshold":           "0.99",
	"flushInterval":                    "60000",
	"gcWaitTime":                       "300000",
	"journalMaxGroupWaitMSec":          "1",
	"journalSyncData":                  "false",
	"ledgerStorageClass":               "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
	"loadBalancerEnabled":              "false",
	"loadManagerClassName":             "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
	"managedLedgerDefaultAckQuorum":    "1",
	"managedLedgerDefaultEnsembleSize": "1",
	"managedLedgerDefaultWriteQuorum":  "1",
	// The broker reaches the bookie within the process. In version 2 of its protocol the broker cannot
	// read entries above 16 KiB this way: "BookieProtoEncoding Received invalid response".
	"enableLocalTransport":        "true",
	"disableServerSocketBind":     "true",
	"bookkeeperUseV2WireProtocol": "false",
}

// byOption are the settings that an option determines, by their names.
var byOption = map[string]string{
	"brokerServicePort":                    "Port",
	"brokerServicePortTls":                 "Port and Certificate",
	"webServicePort":                       "WebPort",
	"tlsCertificateFilePath":               "Certificate",
	"tlsKeyFilePath":                       "Certificate",
	"tlsTrustCertsFilePath":                "ClientAuthority",
	"tlsRequireTrustedClientCertOnConnect": "ClientAuthority",
	"authenticationEnabled":                "SuperUsers",
	"authenticationProviders":              "SuperUsers",
	"authorizationEnabled":                 "SuperUsers",
	"superUserRoles":                       "SuperUsers",
	"tokenSecretKey":                       "SuperUsers",
	"brokerClientAuthenticationPlugin":     "SuperUsers",
	"brokerClientAuthenticationParameters": "SuperUsers",
}

// check returns the first fault of the options.
func (o Options) check() error {
	for _, name := range slices.Sorted(maps.Keys(o.Properties)) {
		if option, ok := byOption[name]; ok {
			return fmt.Errorf("pulsar options: Properties has %s: remove it and set %s", name, option)
		}
	}
	for _, p := range []struct {
		name string
		port int
	}{{"Port", o.Port}, {"WebPort", o.WebPort}} {
		if p.port < 0 || p.port > 65535 {
			return fmt.Errorf("pulsar options: %s is %d: use a port from 1 to 65535, or 0 for a free one", p.name, p.port)
		}
	}
	if o.Heap < 0 {
		return fmt.Errorf("pulsar options: Heap is %d MiB: use a positive number, or 0 for %d", o.Heap, defaultHeap)
	}
	for _, role := range o.SuperUsers {
		if role == "" || strings.ContainsAny(role, ", ") {
			return fmt.Errorf("pulsar options: SuperUsers has %q: use a role without commas and spaces", role)
		}
	}
	if o.ClientAuthority != "" && o.Certificate == "" {
		return errors.New("pulsar options: ClientAuthority is set, but the broker has no TLS: set Certificate too")
	}
	return nil
}

// javaOptions are the options of Java that Pulsar's start script has too.
var javaOptions = []string{
	"-XX:+ExitOnOutOfMemoryError",
	"-Dio.netty.tryReflectionSetAccessible=true",
	"--add-opens=java.base/java.lang=ALL-UNNAMED",
	"--add-opens=java.base/java.nio=ALL-UNNAMED",
	"--add-opens=java.base/java.util.zip=ALL-UNNAMED",
	"--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
	"--add-opens=java.base/sun.net=ALL-UNNAMED",
	"--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
	"--add-opens=java.management/sun.management=ALL-UNNAMED",
	"--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
	"--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
}

// memory returns the options of Java for the memory.
func (o Options) memory() []string {
	heap := cmp.Or(o.Heap, defaultHeap)
	return []string{fmt.Sprintf("-Xmx%dm", heap), fmt.Sprintf("-XX:MaxDirectMemorySize=%dm", heap)}
}

// settings returns the settings of a broker on these ports. Its certificate and key are files in dir,
// if it has them.
func (o Options) settings(dir string, port, web int, key []byte) map[string]string {
	m := maps.Clone(defaults)
	maps.Copy(m, o.Properties)
	m["brokerServicePort"], m["webServicePort"] = strconv.Itoa(port), strconv.Itoa(web)
	if o.Certificate != "" {
		m["brokerServicePort"], m["brokerServicePortTls"] = "0", strconv.Itoa(port)
		m["tlsCertificateFilePath"], m["tlsKeyFilePath"] = filepath.Join(dir, certificateFile), filepath.Join(dir, keyFile)
	}
	if o.ClientAuthority != "" {
		m["tlsTrustCertsFilePath"], m["tlsRequireTrustedClientCertOnConnect"] = o.ClientAuthority, "true"
	}
	if key != nil {
		providers := []string{"org.apache.pulsar.broker.authentication.AuthenticationProviderToken"}
		if o.ClientAuthority != "" {
			providers = append(providers, "org.apache.pulsar.broker.authentication.AuthenticationProviderTls")
		}
		m["authenticationEnabled"], m["authorizationEnabled"] = "true", "true"
		m["authenticationProviders"] = strings.Join(providers, ",")
		m["superUserRoles"] = strings.Join(append([]string{brokerRole}, o.SuperUsers...), ",")
		m["tokenSecretKey"] = "data:;base64," + base64.StdEncoding.EncodeToString(key)
		m["brokerClientAuthenticationPlugin"] = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
		m["brokerClientAuthenticationParameters"] = "token:" + token(key, brokerRole, time.Time{})
	}
	return m
}

// write writes the configuration into dir and returns the name of the file of settings.
func (o Options) write(dir string, port, web int, key []byte) (string, error) {
	if o.Certificate != "" {
		text, err := os.ReadFile(o.Certificate)
		if err != nil {
			return "", err
		}
		certificate, private, err := splitPEM(text)
		if err != nil {
			return "", fmt.Errorf("certificate %s: %w", o.Certificate, err)
		}
		for name, text := range map[string][]byte{certificateFile: certificate, keyFile: private} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				return "", err
			}
		}
	}
	if o.ClientAuthority != "" {
		var err error // Java runs in dir
		if o.ClientAuthority, err = filepath.Abs(o.ClientAuthority); err != nil {
			return "", err
		}
	}
	name := filepath.Join(dir, "standalone.conf")
	return name, os.WriteFile(name, javaserver.Properties(o.settings(dir, port, web, key)), 0o600)
}

const certificateFile, keyFile = "certificate.pem", "key.pem"

// splitPEM returns the certificates of a text in PEM, and its key in PKCS #8: Pulsar reads each from
// a file of its own.
func splitPEM(text []byte) (certificates, key []byte, err error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range pair.Certificate {
		certificates = append(certificates, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})...)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	return certificates, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}

// secretKey returns the key of the tokens of a data directory, which it creates on demand.
func secretKey(dir string) ([]byte, error) {
	name := filepath.Join(dir, "secret.key")
	key, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		key = make([]byte, sha256.Size)
		_, _ = rand.Read(key) // never fails
		return key, os.WriteFile(name, key, 0o600)
	case err != nil:
		return nil, err
	case len(key) != sha256.Size:
		return nil, fmt.Errorf("secret key %s has %d bytes, not %d: remove it, and the tokens that it signed become invalid", name, len(key), sha256.Size)
	}
	return key, nil
}

// token returns a JSON Web Token (RFC 7519) for a role.
func token(key []byte, role string, expires time.Time) string {
	claims := struct {
		Subject string `json:"sub"`
		Expires int64  `json:"exp,omitempty"`
	}{Subject: role}
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	payload, _ := json.Marshal(claims) // never fails for a string and a number
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(payload)
	return text + "." + signature(key, text)
}

// signature returns the signature of a token by HMAC SHA-256 (RFC 7515).
func signature(key []byte, text string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
