package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strconv"
	"time"
)

// A Reason is the reason for the rejection of a request, a fixed word for metrics and logs.
// Empty: it is not.
type Reason string

// The reasons.
const (
	NoCredentials    Reason = "no_credentials"         // and anonymous requests may not do this
	Malformed        Reason = "malformed"              // the credentials cannot be read
	WrongCredentials Reason = "wrong_credentials"      // no such key, or not its secret
	ClockSkew        Reason = "clock_skew"             // rightly signed, but not now
	PlainPassword    Reason = "password_in_plain_text" // a secret that others could have read
	Forbidden        Reason = "forbidden"              // known, but no rule allows it
)

// Reasons are all reasons.
var Reasons = []Reason{NoCredentials, Malformed, WrongCredentials, ClockSkew, PlainPassword, Forbidden}

// OfCredentials reports whether the credentials themselves are at fault.
func (r Reason) OfCredentials() bool {
	return r == Malformed || r == WrongCredentials || r == ClockSkew || r == PlainPassword
}

// An Identity is the principal of a request. The zero value is anonymous.
type Identity struct{ key string }

// Anonymous reports whether there is no key.
func (i Identity) Anonymous() bool { return i.key == "" }

// String returns the key's name, or "anonymous".
func (i Identity) String() string {
	if i.key == "" {
		return anonymousName
	}
	return i.key
}

// A Policy is a Config that was checked. Goroutines may share it.
type Policy struct {
	keys         map[string]*checked
	certificates map[string]string // name: key
	anonymous    []Rule
	skew         time.Duration // negative: any
	zones        []*time.Location
	nobody       *checked // stands in for keys that are not there
}

// A checked key always has two secrets, so that every check costs the same.
type checked struct {
	secrets [MaxSecrets]Secret
	hashes  [MaxSecrets][sha256.Size]byte
	rules   []Rule
	digest  [sha256.Size]byte // of the key's secrets, certificates and rules
}

// New returns the policy of a configuration, or all that is wrong with it. The
// error never holds a secret.
func New(c Config) (*Policy, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	p := &Policy{
		keys: map[string]*checked{}, certificates: map[string]string{}, anonymous: c.Anonymous,
		skew: c.MaxClockSkew, zones: c.TimeZones, nobody: newChecked(nil),
	}
	if p.skew == 0 {
		p.skew = DefaultMaxClockSkew
	}
	if len(p.zones) == 0 {
		p.zones = []*time.Location{time.UTC, time.Local}
	}
	for _, k := range c.Keys {
		ck := newChecked(k.Secrets)
		ck.rules, ck.digest = k.Allow, digest(k)
		p.keys[k.Name] = ck
		for _, name := range k.Certificates {
			p.certificates[name] = k.Name
		}
	}
	return p, nil
}

// newChecked fills the free places with random secrets, or with copies of the first one.
func newChecked(secrets []Secret) *checked {
	var c checked
	for i := range c.secrets {
		switch {
		case i < len(secrets):
			c.secrets[i] = secrets[i]
		case len(secrets) > 0:
			c.secrets[i] = secrets[0]
		default:
			c.secrets[i] = NewSecret(rand.Text())
		}
		c.hashes[i] = sha256.Sum256([]byte(c.secrets[i].Reveal()))
	}
	return &c
}

// digest returns a hash of a key that changes with its secrets, certificates and rules.
func digest(k Key) [sha256.Size]byte {
	var b []byte
	add := func(part string) { b = append(strconv.AppendInt(b, int64(len(part)), 10), " "+part...) }
	addAll := func(parts []string) {
		add(strconv.Itoa(len(parts)))
		for _, p := range parts {
			add(p)
		}
	}
	add(k.Name)
	add(strconv.Itoa(len(k.Secrets)))
	for _, s := range k.Secrets {
		add(s.Reveal())
	}
	addAll(k.Certificates)
	for _, r := range k.Allow {
		add(strconv.Itoa(len(r.Actions)))
		for _, a := range r.Actions {
			add(string(a))
		}
		addAll(r.Topics)
		addAll(r.Groups)
	}
	return sha256.Sum256(b)
}

// Digest returns a hash that changes with the secrets, certificates and rules of a key, and false
// if there is no key of the name.
func (p *Policy) Digest(key string) ([sha256.Size]byte, bool) {
	k := p.keys[key]
	if k == nil {
		return [sha256.Size]byte{}, false
	}
	return k.digest, true
}

// Rules returns the rules of an identity. The caller must not change them.
func (p *Policy) Rules(i Identity) []Rule {
	if i.Anonymous() {
		return p.anonymous
	}
	if k := p.keys[i.key]; k != nil {
		return k.rules
	}
	return nil
}

// Authenticated returns the identity of a key that the caller has authenticated before.
func Authenticated(key string) Identity { return Identity{key} }

// find returns the key of a name or, with 0, one that fits nothing.
func (p *Policy) find(name string) (*checked, int) {
	if k := p.keys[name]; k != nil {
		return k, 1
	}
	return p.nobody, 0
}

// Signature authenticates a request at the time now by its headers authorization and
// x-mq-date-time. It returns the anonymous identity without a reason if authorization is empty or
// names no key. RocketMQ's clients for Python and Go send such a header if they have no
// credentials.
func (p *Policy) Signature(authorization, dateTime string, now time.Time) (Identity, Reason) {
	if authorization == "" {
		return Identity{}, ""
	}
	h, err := parseHeader(authorization)
	if err != nil {
		return Identity{}, Malformed
	}
	if h.key == "" {
		return Identity{}, ""
	}
	k, known := p.find(h.key)
	ok := 0
	for _, s := range k.secrets {
		mac := hmac.New(sha1.New, []byte(s.Reveal()))
		mac.Write([]byte(dateTime))
		var sum [sha1.Size]byte
		ok |= subtle.ConstantTimeCompare(mac.Sum(sum[:0]), h.signature[:])
	}
	if ok&known == 0 {
		return Identity{}, WrongCredentials
	}
	// The time is checked last, so that only clients with the secret learn about it.
	if p.skew >= 0 {
		skew, err := clockSkew(dateTime, now, p.zones)
		switch {
		case err != nil:
			return Identity{}, Malformed
		case skew > p.skew:
			return Identity{}, ClockSkew
		}
	}
	return Identity{h.key}, ""
}

// Password authenticates a name and a secret.
func (p *Policy) Password(name, secret string) (Identity, Reason) {
	k, known := p.find(name)
	given, ok := sha256.Sum256([]byte(secret)), 0
	for i := range k.hashes {
		ok |= subtle.ConstantTimeCompare(k.hashes[i][:], given[:])
	}
	if ok&known == 0 {
		return Identity{}, WrongCredentials
	}
	return Identity{name}, ""
}

// Claimed returns the name of the key in rejected credentials, for a log. It returns "unknown" if
// no key has the name, because the text can be a secret.
func (p *Policy) Claimed(name string) string {
	if p.keys[name] == nil {
		return "unknown"
	}
	return name
}

// ClaimedBy is Claimed for the header authorization.
func (p *Policy) ClaimedBy(authorization string) string { return p.Claimed(NameIn(authorization)) }

// NameIn returns the name of the key in the header authorization, empty if it has none. The name
// can be a secret in the wrong place.
func NameIn(authorization string) string {
	h, err := parseHeader(authorization)
	if err != nil {
		return ""
	}
	return h.key
}

// Certificate returns the key that is equivalent to the names of a verified certificate: the first
// one with a key. It returns the anonymous identity if no name has a key.
func (p *Policy) Certificate(names []string) Identity {
	for _, n := range names {
		if key, ok := p.certificates[n]; ok {
			return Identity{key}
		}
	}
	return Identity{}
}

// Allows reports whether the policy lets i do all that is needed. A key that
// was removed may do nothing.
func (p *Policy) Allows(i Identity, needs ...Need) error {
	rules := p.anonymous
	if !i.Anonymous() {
		k := p.keys[i.key]
		if k == nil {
			return fmt.Errorf("%s no longer exists", i)
		}
		rules = k.rules
	} else if len(rules) == 0 {
		return fmt.Errorf("requests without credentials have no permissions")
	}
	for _, n := range needs {
		if !allow(rules, n) {
			return fmt.Errorf("%s is not permitted to %s", i, n)
		}
	}
	return nil
}

// MaxClockSkew returns how far a signed time may be away; negative: any.
func (p *Policy) MaxClockSkew() time.Duration { return p.skew }
