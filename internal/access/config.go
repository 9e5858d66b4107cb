// Package access authenticates requests and checks their permissions. It is pure: it knows no
// protocol, no clock and no file, and a [Policy] is never changed.
//
// Authentication: [Policy.Signature] checks RocketMQ 5's v2 signature, [Policy.Password] a name and
// a secret, [Policy.Certificate] the names of a verified client certificate. Permissions:
// [Policy.Allows] compares a [Need] of a request with the rules of an [Identity]. A request that no
// rule allows is rejected.
//
// A check does the same work for an unknown key as for a wrong secret, compares in constant time,
// and stores nothing.
package access

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Bounds of a Config.
const (
	// DefaultMaxClockSkew is how far a signed time may be from the broker's.
	DefaultMaxClockSkew = 15 * time.Minute

	// MaxSecrets is the maximum number of secrets of a key: the old one and the new one.
	MaxSecrets = 2

	// MaxNameLength bounds the name of a key, in bytes.
	MaxNameLength = 128
)

// anonymousName is the name of the identity without a key, for logs. No key can have it.
const anonymousName = "anonymous"

// An Action is a permission of a rule.
type Action string

// The actions. Admin includes Observe.
const (
	Send    Action = "send"    // send to topics, and recall delayed messages
	Receive Action = "receive" // receive from topics as groups, and settle the deliveries
	Observe Action = "observe" // read settings, backlogs and metrics
	Admin   Action = "admin"   // create, change and delete topics and groups
)

// Actions are all actions.
var Actions = []Action{Send, Receive, Observe, Admin}

// A Rule allows some actions on some topics and groups. Patterns are names in which * matches any
// characters. Send checks only Topics. Receive checks the topic in Topics and the group in Groups.
// Observe and Admin check the topic or the group of the request; requests about the whole broker
// need "*" in both.
type Rule struct {
	Actions []Action `json:"actions"`
	Topics  []string `json:"topics,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}

// A Key is one identity. Its name is RocketMQ's access key and appears in logs.
type Key struct {
	// Name is the access key: letters, digits and . _ -, the first a letter or digit.
	Name string

	// Secrets are the valid secrets of the key, at most two. A request needs one of them; two are
	// useful while one replaces the other. Nil means that the key is only for Certificates.
	Secrets []Secret

	// Certificates are the names in client certificates that are equivalent to this key: the common
	// name, a DNS name, a URI or an e-mail address, in the form of the certificate.
	Certificates []string

	// Allow has the rules of the key. Empty means that nothing is allowed.
	Allow []Rule
}

// A Config has the permissions of clients. The zero value allows everything. With a key or an
// anonymous rule, the server rejects each request that no rule allows.
type Config struct {
	// Keys are all identities.
	Keys []Key

	// Anonymous has the rules for requests without credentials. Empty means that nothing is
	// allowed.
	Anonymous []Rule

	// MaxClockSkew is the maximum difference between the signed time of a request and the broker's
	// clock. Negative means no maximum: a signature is then valid forever. Default:
	// DefaultMaxClockSkew.
	MaxClockSkew time.Duration

	// TimeZones are the time zones of the clients' clocks. RocketMQ's clients for Go, Java and
	// Python sign their local time without the zone. Nil means UTC and the broker's own zone.
	TimeZones []*time.Location
}

// On reports whether c restricts anything.
func (c Config) On() bool { return len(c.Keys) > 0 || len(c.Anonymous) > 0 }

// validate returns all that is wrong with c. No text of it has a secret.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	keys, certificates, secrets := map[string]bool{}, map[string]string{}, map[string]string{}
	for i, k := range c.Keys {
		what := fmt.Sprintf("key %q", k.Name)
		if err := CheckName(k.Name); err != nil {
			what = fmt.Sprintf("key %d", i+1) // its name may be a secret in the wrong place
			bad("%s: invalid name: %w", what, err)
		} else if keys[k.Name] {
			bad("%s is listed twice", what)
		}
		keys[k.Name] = true
		if n := len(k.Secrets); n > MaxSecrets {
			bad("%s has %d secrets; the limit is %d, an old one and a new one", what, n, MaxSecrets)
		}
		if len(k.Secrets)+len(k.Certificates) == 0 {
			bad("%s has neither a secret nor a certificate, so no client can use it; give one", what)
		}
		for _, s := range k.Secrets {
			if s.Reveal() == "" {
				bad("%s has an empty secret", what)
			}
			if other, twice := secrets[s.Reveal()]; twice && other != k.Name {
				bad("%s has the same secret as key %q; give each key its own", what, other)
			}
			secrets[s.Reveal()] = k.Name
		}
		for _, name := range k.Certificates {
			if strings.TrimSpace(name) == "" {
				bad("%s has an empty certificate name", what)
			}
			if other, twice := certificates[name]; twice {
				bad("%s has the certificate name %q, which key %q already has; give each name to one key", what, name, other)
			}
			certificates[name] = k.Name
		}
		for j, r := range k.Allow {
			if err := r.Check(); err != nil {
				bad("%s, rule %d: %w", what, j+1, err)
			}
		}
	}
	for j, r := range c.Anonymous {
		if err := r.Check(); err != nil {
			bad("anonymous, rule %d: %w", j+1, err)
		}
	}
	for _, z := range c.TimeZones {
		if z == nil {
			bad("a time zone is nil; give a *time.Location")
		}
	}
	return errors.Join(errs...)
}

// CheckName returns the fault of the name of a key, without repeating the name, or nil.
func CheckName(name string) error {
	odd := func(r rune) bool { return !alphanumeric(r) && r != '.' && r != '_' && r != '-' }
	switch {
	case name == "" || len(name) > MaxNameLength:
		return fmt.Errorf("it has %d bytes; give 1 to %d", len(name), MaxNameLength)
	case name == anonymousName:
		return fmt.Errorf("the name %q is reserved for requests without a key", name)
	case strings.ContainsFunc(name, odd) || !alphanumeric(rune(name[0])):
		return errors.New("give letters, digits and . _ -, the first a letter or digit")
	}
	return nil
}

func alphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// Check returns all faults of r. A part that could never allow anything is a fault.
func (r Rule) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(r.Actions) == 0 {
		bad("the rule has no actions; give one or more of %s", words(Actions))
	}
	for _, a := range r.Actions {
		switch {
		case !slices.Contains(Actions, a):
			bad("the action %q is unknown; the actions are %s", a, words(Actions))
		case a == Send && len(r.Topics) == 0:
			bad(`action send needs topics; give names, or patterns such as "orders-*"`)
		case a == Receive && (len(r.Topics) == 0 || len(r.Groups) == 0):
			bad(`action receive needs topics and groups; give names, or patterns such as "*"`)
		case len(r.Topics)+len(r.Groups) == 0:
			bad(`action %s needs topics or groups; give names, or patterns such as "*"`, a)
		}
	}
	for _, list := range []struct {
		of, marks string
		patterns  []string
	}{{"topics", "%|_-.", r.Topics}, {"groups", "%|_-", r.Groups}} {
		for _, p := range list.patterns {
			if p == "" || strings.ContainsFunc(p, func(c rune) bool {
				return !alphanumeric(c) && c != '*' && !strings.ContainsRune(list.marks, c)
			}) {
				bad("the pattern %q matches no name: names of %s have letters, digits and %s; in a pattern, * matches any number of these", p, list.of, list.marks)
			}
		}
	}
	return errors.Join(errs...)
}

func words(list []Action) string {
	var b strings.Builder
	for i, a := range list {
		switch {
		case i == len(list)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(a))
	}
	return b.String()
}

// hidden is printed in place of a secret.
const hidden = "(secret)"

// A Secret is a text that package fmt, logs and encoders do not show. The zero value is empty. It
// contains a pointer, because fmt calls no methods of unexported fields, and prints a pointer there
// as an address.
type Secret struct{ text *string }

// NewSecret hides text.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text. No part of it may be in a log, an error or a response.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String implements fmt.Stringer.
func (s Secret) String() string { return hidden }

// Format implements fmt.Formatter, for verbs that go around String.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) } // errors of the writer belong to fmt

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler, for JSON and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It never fails.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = NewSecret(string(text))
	return nil
}

// Algorithm is RocketMQ 5's scheme of signing: HMAC-SHA1, by the secret, of
// the header x-mq-date-time as it is written.
const Algorithm = "MQv2-HMAC-SHA1"

const (
	dateTimeHeader = "x-mq-date-time"

	// maxHeaderLength is the maximum size of an authorization header, in bytes.
	maxHeaderLength = 1 << 10

	signatureLength = 20 // bytes of SHA-1
)

// A header is a parsed authorization header.
type header struct {
	key       string // empty: none
	signature [signatureLength]byte
}

// errMalformed has no part of the header: a secret may stand where it should not.
var errMalformed = errors.New("the authorization is not of the form " +
	Algorithm + " Credential=KEY, SignedHeaders=" + dateTimeHeader + ", Signature=HEX")

// parseHeader reads an authorization header. Clients write it in their own
// ways: the Go client puts a region and a service behind the key
// (KEY//Rocketmq), hexadecimal digits are upper or lower case.
func parseHeader(text string) (header, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), " ")
	if len(text) > maxHeaderLength || !ok || !strings.EqualFold(scheme, Algorithm) {
		return header{}, errMalformed
	}
	var h header
	var credential, signed, signature bool
	for part := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		var twice bool
		switch {
		case !ok:
			return header{}, errMalformed
		case strings.EqualFold(name, "Credential"):
			h.key, _, _ = strings.Cut(value, "/")
			twice, credential = credential, true
		case strings.EqualFold(name, "SignedHeaders"):
			// With more headers signed, this would be another signature.
			if !strings.EqualFold(value, dateTimeHeader) {
				return header{}, errMalformed
			}
			twice, signed = signed, true
		case strings.EqualFold(name, "Signature"):
			if hex.DecodedLen(len(value)) != signatureLength || len(value)%2 != 0 {
				return header{}, errMalformed
			}
			if _, err := hex.Decode(h.signature[:], []byte(value)); err != nil {
				return header{}, errMalformed
			}
			twice, signature = signature, true
		}
		if twice {
			return header{}, errMalformed
		}
	}
	if !credential || !signed || !signature {
		return header{}, errMalformed
	}
	return h, nil
}

// dateTimeLayout is how RocketMQ's clients write their time. Its Z does not
// mean UTC: only some of them convert to it.
const dateTimeLayout = "20060102T150405Z"

// clockSkew returns the distance between a time and now, in the zone with the shortest distance.
func clockSkew(text string, now time.Time, zones []*time.Location) (time.Duration, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil { // RocketMQ's Rust client sends its zone
		return now.Sub(at).Abs(), nil
	}
	nearest := time.Duration(-1)
	for _, z := range zones {
		at, err := time.ParseInLocation(dateTimeLayout, text, z)
		if err != nil {
			return 0, errors.New("the time is not of the form " + dateTimeLayout)
		}
		if d := now.Sub(at).Abs(); nearest < 0 || d < nearest {
			nearest = d
		}
	}
	return nearest, nil
}
