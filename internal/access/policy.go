package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// A Need is a permission that a request needs. The zero value is never allowed.
type Need struct {
	kind         kind
	action       Action
	topic, group string
}

type kind uint8

const (
	kindNone kind = iota
	kindSigned
	kindSend
	kindReceive
	kindBrowse
	kindAsGroup
	kindUse
	kindTopic
	kindGroup
	kindBoth
	kindServer
	kindSendAnywhere
	kindLook
	kindRead
)

// Signed is allowed to everyone with credentials, and to anonymous requests
// if there is anything that these may do.
func Signed() Need { return Need{kind: kindSigned} }

// ToSend is to send to a topic.
func ToSend(topic string) Need { return Need{kind: kindSend, topic: topic} }

// ToReceive is the need to receive from a topic as a group, or to settle such a delivery.
func ToReceive(topic, group string) Need { return Need{kind: kindReceive, topic: topic, group: group} }

// ToBrowse is the need to list messages of a topic for a group without their bodies. The permission
// to observe the group on the topic is sufficient, and so is the permission to receive.
func ToBrowse(topic, group string) Need { return Need{kind: kindBrowse, topic: topic, group: group} }

// ToLook is the need to list the stored messages of a topic without their contents. The permission
// to observe the topic is sufficient, and so is the permission to receive from it.
func ToLook(topic string) Need { return Need{kind: kindLook, topic: topic} }

// ToRead is the need to read stored messages of a topic, with bodies, keys and properties, without
// receiving them. It is the permission to receive from the topic, as any group.
func ToRead(topic string) Need { return Need{kind: kindRead, topic: topic} }

// AsGroup is the need to be a consumer of a group, in any topic.
func AsGroup(group string) Need { return Need{kind: kindAsGroup, group: group} }

// ToUse is the need to look up the route of a topic. Any permission for the topic is sufficient.
func ToUse(topic string) Need { return Need{kind: kindUse, topic: topic} }

// OnTopic is to do a, which is Observe or Admin, with a topic.
func OnTopic(a Action, topic string) Need { return Need{kind: kindTopic, action: a, topic: topic} }

// OnGroup is to do a, which is Observe or Admin, with a group.
func OnGroup(a Action, group string) Need { return Need{kind: kindGroup, action: a, group: group} }

// OnBoth is to do a, which is Observe or Admin, with a group on one topic.
func OnBoth(a Action, topic, group string) Need {
	return Need{kind: kindBoth, action: a, topic: topic, group: group}
}

// OnServer is to do a, which is Observe or Admin, with the broker as a whole.
func OnServer(a Action) Need { return Need{kind: kindServer, action: a} }

// ToSendAnywhere is the need to send to at least one topic.
func ToSendAnywhere() Need { return Need{kind: kindSendAnywhere} }

// String returns the text of the need, as in "it may not send to topic x".
func (n Need) String() string {
	switch n.kind {
	case kindSigned:
		return "do anything"
	case kindSend:
		return fmt.Sprintf("send to topic %.130q", n.topic)
	case kindReceive:
		return fmt.Sprintf("receive from topic %.130q as group %.130q", n.topic, n.group)
	case kindBrowse:
		return fmt.Sprintf("observe topic %.130q as group %.130q", n.topic, n.group)
	case kindAsGroup:
		return fmt.Sprintf("receive as group %.130q", n.group)
	case kindUse:
		return fmt.Sprintf("use topic %.130q", n.topic)
	case kindTopic:
		return fmt.Sprintf("%s topic %.130q", verb(n.action), n.topic)
	case kindGroup:
		return fmt.Sprintf("%s group %.130q", verb(n.action), n.group)
	case kindBoth:
		return fmt.Sprintf("%s group %.130q on topic %.130q", verb(n.action), n.group, n.topic)
	case kindServer:
		return verb(n.action) + " the whole broker"
	case kindSendAnywhere:
		return "send to any topic"
	case kindLook:
		return fmt.Sprintf("observe topic %.130q", n.topic)
	case kindRead:
		return fmt.Sprintf("receive from topic %.130q, whose contents the request reads", n.topic)
	}
	return "do this"
}

func verb(a Action) string {
	if a == Admin {
		return "administer"
	}
	return string(a)
}

// allow reports whether one of the rules allows n.
func allow(rules []Rule, n Need) bool {
	if n.kind == kindSigned {
		return true
	}
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.allows(n) })
}

// allows is the decision. It looks at nothing but its arguments.
func (r Rule) allows(n Need) bool {
	switch n.kind {
	case kindSend:
		return r.has(Send) && matchAny(r.Topics, n.topic)
	case kindReceive:
		return r.has(Receive) && matchAny(r.Groups, n.group) && r.receivable(n.topic)
	case kindBrowse:
		return (r.has(Receive) || r.has(Observe)) && matchAny(r.Groups, n.group) && r.receivable(n.topic)
	case kindAsGroup:
		return r.has(Receive) && matchAny(r.Groups, n.group)
	case kindUse:
		return r.has(Receive) && r.receivable(n.topic) ||
			(r.has(Send) || r.has(Observe) || r.has(Admin)) && matchAny(r.Topics, n.topic)
	case kindTopic:
		return r.has(n.action) && matchAny(r.Topics, n.topic)
	case kindGroup:
		return r.has(n.action) && matchAny(r.Groups, n.group)
	case kindBoth:
		return r.has(n.action) && matchAny(r.Topics, n.topic) && matchAny(r.Groups, n.group)
	case kindServer:
		return r.has(n.action) && slices.Contains(r.Topics, "*") && slices.Contains(r.Groups, "*")
	case kindSendAnywhere:
		return r.has(Send)
	case kindLook:
		return r.has(Observe) && matchAny(r.Topics, n.topic) || r.has(Receive) && r.receivable(n.topic)
	case kindRead:
		return r.has(Receive) && r.receivable(n.topic)
	}
	return false
}

func (r Rule) has(a Action) bool {
	return slices.Contains(r.Actions, a) || a == Observe && slices.Contains(r.Actions, Admin)
}

// abandoned is in the place of a group's name in the topic of abandoned
// transactions: half messages of all topics, so no group's own.
const abandoned = "TRANS_CHECK_MAX_TIME_TOPIC"

// receivable reports whether the rule lets its groups receive from a topic, or browse it. The dead
// letters of a group were messages of the group, so a permission to receive as the group includes
// them.
func (r Rule) receivable(topic string) bool {
	if matchAny(r.Topics, topic) {
		return true
	}
	group, dead := strings.CutPrefix(topic, dlqPrefix)
	return dead && group != abandoned && matchAny(r.Groups, group)
}

// dlqPrefix is the prefix of RocketMQ's dead letter topics, before the name of the group.
const dlqPrefix = "%DLQ%"

// match reports whether a pattern covers all of name. * matches any characters, including dots, or
// none; other characters match themselves. Patterns of addresses match words between dots instead,
// but most names of topics and all names of groups are one word.
func match(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, more, wild := strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(name, part)
		}
		// The leftmost match leaves the most text for the rest of the pattern.
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], more
	}
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if match(p, name) {
			return true
		}
	}
	return false
}
