package access

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

func policy(t testing.TB, c Config) *Policy {
	t.Helper()
	p := assert.Value(New(c))(t)
	return p
}

// everything is a rule that allows it.
var everything = Rule{Actions: Actions, Topics: []string{"*"}, Groups: []string{"*"}}

func TestAllow(t *testing.T) {
	rules := map[string][]Rule{
		"none":     nil,
		"all":      {everything},
		"producer": {{Actions: []Action{Send}, Topics: []string{"orders-*", "audit"}}},
		"consumer": {{Actions: []Action{Receive}, Topics: []string{"orders-*"}, Groups: []string{"billing"}}},
		"two":      {{Actions: []Action{Receive}, Topics: []string{"a"}, Groups: []string{"g"}}, {Actions: []Action{Receive}, Topics: []string{"b"}, Groups: []string{"h"}}},
		"monitor":  {{Actions: []Action{Observe}, Topics: []string{"*"}, Groups: []string{"*"}}},
		"team":     {{Actions: []Action{Admin}, Topics: []string{"team-*"}, Groups: []string{"team-*"}}},
		"dead":     {{Actions: []Action{Receive}, Topics: []string{"%DLQ%*"}, Groups: []string{"operator"}}},
		"any":      {{Actions: []Action{Receive}, Topics: []string{"c"}, Groups: []string{"*"}}},
	}
	for _, c := range []struct {
		need Need
		who  string // the principals that are allowed it
	}{
		{Need{}, ""},
		{Signed(), "none all producer consumer two monitor team dead any"},
		{ToSend("orders-eu"), "all producer"},
		{ToSend("orders-"), "all producer"},
		{ToSend("orders"), "all"},
		{ToSend("audit"), "all producer"},
		{ToSend("audits"), "all"},
		{ToSend(""), "all"}, // which the engine rejects
		{ToSend("%DLQ%billing"), "all"},
		{ToReceive("orders-eu", "billing"), "all consumer"},
		{ToReceive("orders-eu", "billing2"), "all"},
		{ToReceive("other", "billing"), "all"},
		{ToReceive("a", "g"), "all two"},
		{ToReceive("a", "h"), "all"}, // a topic of one rule and a group of the other
		{ToReceive("%DLQ%billing", "billing"), "all consumer any"},
		{ToReceive("%DLQ%billing", "operator"), "all dead any"},
		{ToReceive("%DLQ%other", "billing"), "all any"},
		{ToReceive("%DLQ%TRANS_CHECK_MAX_TIME_TOPIC", "operator"), "all dead"}, // half messages of all topics
		{ToReceive("%DLQ%TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"), "all"},
		{ToUse("%DLQ%TRANS_CHECK_MAX_TIME_TOPIC"), "all monitor dead"},
		{ToReceive("%DLQ%", "operator"), "all dead any"},
		{ToReceive("%DLQ%g", "g"), "all two any"},
		{ToReceive("%DLQ%g", "h"), "all any"},
		{AsGroup("billing"), "all consumer any"},
		{AsGroup("x"), "all any"},
		{ToUse("orders-eu"), "all producer consumer monitor"},
		{ToUse("team-x"), "all monitor team"},
		{ToUse("%DLQ%billing"), "all consumer monitor dead any"},
		{OnTopic(Observe, "team-x"), "all monitor team"},
		{OnTopic(Observe, "orders-eu"), "all monitor"},
		{OnTopic(Admin, "team-x"), "all team"},
		{OnGroup(Admin, "team-x"), "all team"},
		{OnGroup(Admin, "billing"), "all"},
		{OnGroup(Observe, "billing"), "all monitor"},
		{OnBoth(Admin, "team-x", "team-y"), "all team"},
		{OnBoth(Admin, "team-x", "billing"), "all"},
		{OnBoth(Admin, "x", "team-y"), "all"},
		{OnServer(Observe), "all monitor"},
		{OnServer(Admin), "all"},
		{OnTopic(Send, "audit"), "all producer"},
	} {
		for name, list := range rules {
			want := strings.Contains(" "+c.who+" ", " "+name+" ")
			if got := allow(list, c.need); got != want {
				t.Errorf("%s to %s: %t, want %t", name, c.need, got, want)
			}
		}
	}
}

func TestAllows(t *testing.T) {
	p := policy(t, Config{
		Keys:      []Key{{Name: "k", Secrets: []Secret{NewSecret("s")}, Allow: []Rule{{Actions: []Action{Send}, Topics: []string{"t"}}}}},
		Anonymous: []Rule{{Actions: []Action{Observe}, Topics: []string{"t"}}},
	})
	for _, c := range []struct {
		who   Identity
		needs []Need
		want  string // empty: allowed
	}{
		{Identity{"k"}, nil, ""},
		{Identity{"k"}, []Need{ToSend("t")}, ""},
		{Identity{"k"}, []Need{ToSend("t"), ToSend("u")}, `k is not permitted to send to topic "u"`},
		{Identity{"k"}, []Need{OnTopic(Observe, "t")}, `k is not permitted to observe topic "t"`}, // which anonymous may
		{Identity{"gone"}, []Need{Signed()}, "gone no longer exists"},
		{Identity{}, []Need{OnTopic(Observe, "t"), Signed()}, ""},
		{Identity{}, []Need{ToSend("t")}, `anonymous is not permitted to send to topic "t"`},
	} {
		if err := p.Allows(c.who, c.needs...); fmt.Sprint(err) != c.want && (err != nil || c.want != "") {
			t.Errorf("%s, %v: %v, want %q", c.who, c.needs, err, c.want)
		}
	}
	if err := policy(t, Config{}).Allows(Identity{}, Signed()); err == nil {
		t.Error("without anonymous rules, anonymous may do something")
	}
}

func sign(key, secret, dateTime string) string {
	mac := hmac.New(sha1.New, []byte(secret))
	mac.Write([]byte(dateTime))
	return Algorithm + " Credential=" + key + ", SignedHeaders=x-mq-date-time, Signature=" + hex.EncodeToString(mac.Sum(nil))
}

func TestSignature(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	shanghai := time.FixedZone("UTC+8", 8*3600)
	at := func(d time.Duration) string { return now.Add(d).Format(dateTimeLayout) }
	p := policy(t, Config{
		Keys: []Key{
			{Name: "one", Secrets: []Secret{NewSecret("first")}},
			{Name: "two", Secrets: []Secret{NewSecret("old"), NewSecret("new")}},
			{Name: "cert", Certificates: []string{"c"}},
		},
		TimeZones: []*time.Location{time.UTC, shanghai},
	})
	noon := at(0)
	for name, c := range map[string]struct {
		authorization, dateTime string
		who                     string
		reason                  Reason
	}{
		"right":                 {sign("one", "first", noon), noon, "one", ""},
		"Go client's key":       {sign("one//Rocketmq", "first", noon), noon, "one", ""},
		"upper case":            {strings.Replace(strings.ToUpper(sign("KEY", "first", noon)), "KEY", "one", 1), noon, "one", ""},
		"old secret":            {sign("two", "old", noon), noon, "two", ""},
		"new secret":            {sign("two", "new", noon), noon, "two", ""},
		"nothing":               {"", noon, "anonymous", ""},
		"Python without keys":   {sign("", "", noon), noon, "anonymous", ""},
		"Go with empty keys":    {sign("//Rocketmq", "", noon), noon, "anonymous", ""},
		"wrong secret":          {sign("one", "second", noon), noon, "anonymous", WrongCredentials},
		"empty secret":          {sign("one", "", noon), noon, "anonymous", WrongCredentials},
		"unknown key":           {sign("none", "first", noon), noon, "anonymous", WrongCredentials},
		"another key's secret":  {sign("one", "old", noon), noon, "anonymous", WrongCredentials},
		"only for certificates": {sign("cert", "", noon), noon, "anonymous", WrongCredentials},
		"of another time":       {sign("one", "first", at(time.Second)), noon, "anonymous", WrongCredentials},
		"15 minutes late":       {sign("one", "first", at(-15*time.Minute)), at(-15 * time.Minute), "one", ""},
		"15 minutes early":      {sign("one", "first", at(15*time.Minute)), at(15 * time.Minute), "one", ""},
		"too late":              {sign("one", "first", at(-15*time.Minute-time.Second)), at(-15*time.Minute - time.Second), "anonymous", ClockSkew},
		"too early":             {sign("one", "first", at(15*time.Minute+time.Second)), at(15*time.Minute + time.Second), "anonymous", ClockSkew},
		"replayed next day":     {sign("one", "first", at(-24*time.Hour)), at(-24 * time.Hour), "anonymous", ClockSkew},
		"another zone":          {sign("one", "first", at(8*time.Hour)), at(8 * time.Hour), "one", ""},
		"a zone not named":      {sign("one", "first", at(9*time.Hour)), at(9 * time.Hour), "anonymous", ClockSkew},
		"RFC 3339":              {sign("one", "first", "2026-03-01T09:00:00-03:00"), "2026-03-01T09:00:00-03:00", "one", ""},
		"RFC 3339, wrong":       {sign("one", "first", "2026-03-01T12:00:00+08:00"), "2026-03-01T12:00:00+08:00", "anonymous", ClockSkew},
		"no time":               {sign("one", "first", ""), "", "anonymous", Malformed},
		"odd time":              {sign("one", "first", "noon"), "noon", "anonymous", Malformed},
		"odd header":            {"Bearer first", noon, "anonymous", Malformed},
	} {
		who, reason := p.Signature(c.authorization, c.dateTime, now)
		assert.That(t, who.String() == c.who && reason == c.reason, "%s: %s, %q; want %s, %q", name, who, reason, c.who, c.reason)
	}
	forever := policy(t, Config{Keys: []Key{{Name: "k", Secrets: []Secret{NewSecret("s")}}}, MaxClockSkew: -1})
	if who, reason := forever.Signature(sign("k", "s", "whenever"), "whenever", now); who.String() != "k" {
		t.Errorf("with no limit of clock skew: %q", reason)
	}
	// New York is 5 h behind UTC at that time, and the text names no zone.
	local := time.Local
	time.Local = time.FixedZone("here", -5*3600)
	defer func() { time.Local = local }()
	here := policy(t, Config{Keys: []Key{{Name: "k", Secrets: []Secret{NewSecret("s")}}}})
	for _, d := range []time.Duration{0, -5 * time.Hour} {
		if who, reason := here.Signature(sign("k", "s", at(d)), at(d), now); who.String() != "k" {
			t.Errorf("by default, %v: %q", d, reason)
		}
	}
}

func TestPasswordAndCertificate(t *testing.T) {
	p := policy(t, Config{Keys: []Key{
		{Name: "k", Secrets: []Secret{NewSecret("old"), NewSecret("new")}, Certificates: []string{"orders.test", "spiffe://test/orders"}},
	}})
	for given, want := range map[[2]string]string{
		{"k", "old"}: "k", {"k", "new"}: "k", {"k", ""}: "", {"k", "neW"}: "", {"x", "old"}: "", {"", ""}: "",
	} {
		who, reason := p.Password(given[0], given[1])
		if want != "" && (who.String() != want || reason != "") || want == "" && (!who.Anonymous() || reason != WrongCredentials) {
			t.Errorf("%q: %s, %q", given, who, reason)
		}
	}
	for want, names := range map[string][]string{
		"k": {"other", "spiffe://test/orders"}, "anonymous": {"Orders.test", "orders.test.", ""},
	} {
		if who := p.Certificate(names); who.String() != want {
			t.Errorf("%q: %s", names, who)
		}
	}
}

func TestParseHeader(t *testing.T) {
	const sig = "0123456789abcdef0123456789ABCDEF01234567"
	for text, want := range map[string]string{ // the key; "-": malformed
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=" + sig:                "a",
		"mqv2-hmac-sha1 Signature=" + sig + ",SignedHeaders=X-Mq-Date-Time,Credential=a/cn/Rocketmq": "a",
		"MQv2-HMAC-SHA1 Credential=a,X=y, SignedHeaders=x-mq-date-time, Signature=" + sig:            "a",
		"MQv2-HMAC-SHA1  Credential=a , SignedHeaders=x-mq-date-time, Signature=" + sig:              "a",
		"": "-", "MQv2-HMAC-SHA1": "-", "MQv2-HMAC-SHA1 ": "-", "MQv2-HMAC-SHA256 Credential=a": "-",
		"MQv2-HMAC-SHA1 SignedHeaders=x-mq-date-time, Signature=" + sig:                                               "-",
		"MQv2-HMAC-SHA1 Credential=a, Signature=" + sig:                                                               "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time":                                                   "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time;host, Signature=" + sig:                            "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=" + sig[1:]:                             "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=" + sig + "00":                          "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=g" + sig[1:]:                            "-",
		"MQv2-HMAC-SHA1 Credential=a, Credential=b, SignedHeaders=x-mq-date-time, Signature=" + sig:                   "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=" + sig + ", Signature=" + sig:          "-",
		"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=" + sig + ",":                           "-",
		"MQv2-HMAC-SHA1 Credential=" + strings.Repeat("a", 2000) + ", SignedHeaders=x-mq-date-time, Signature=" + sig: "-",
	} {
		h, err := parseHeader(text)
		assert.That(t, (err != nil) == (want == "-") && (err != nil || h.key == want), "%.100q: %q, %v; want %q", text, h.key, err, want)
	}
}

// No header makes the parser panic. The key of an accepted header contains neither a slash nor a
// comma.
func FuzzParseHeader(f *testing.F) {
	f.Add(sign("key", "secret", "20260301T120000Z"))
	f.Add("MQv2-HMAC-SHA1 Credential=//Rocketmq, SignedHeaders=x-mq-date-time, Signature=")
	p := policy(f, Config{Keys: []Key{{Name: "key", Secrets: []Secret{NewSecret("secret")}}}})
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHeader(text)
		assert.That(t, err != nil || !strings.ContainsAny(h.key, "/,"), "%q: the key is %q", text, h.key)
		who, reason := p.Signature(text, "20260301T120000Z", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		signed := strings.Contains(strings.ToLower(text), sign("key", "secret", "20260301T120000Z")[len(Algorithm+" Credential=key, SignedHeaders=x-mq-date-time, Signature="):])
		assert.That(t, (who.String() != "key" || signed) && (reason == "" || who.Anonymous()), "%q is read as %s, %q", text, who, reason)
	})
}

// match agrees with the same pattern as a regular expression.
func TestMatchIsARegularExpression(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	text := func(alphabet string, n int) string {
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	matched := 0
	for range 20_000 {
		pattern, name := text("ab*", 7), text("ab", 9)
		re := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".*") + "$")
		if got := match(pattern, name); got != re.MatchString(name) {
			t.Fatalf("seed %d: match(%q, %q) is %t", seed, pattern, name, got)
		} else if got {
			matched++
		}
	}
	assert.That(t, matched >= 1000, "seed %d: only %d matches: this proves little", seed, matched)
}

// A pattern of an attacker's wish would still cost no more than its length times the name's.
func TestMatchIsFast(t *testing.T) {
	assert.That(t, !match(strings.Repeat("a*", 2000)+"b", strings.Repeat("a", 4000)), "it matched")
}

func TestConfigFaults(t *testing.T) {
	secret := func(s ...string) (list []Secret) {
		for _, x := range s {
			list = append(list, NewSecret(x))
		}
		return list
	}
	_, err := New(Config{
		Keys: []Key{
			{Name: "a b", Secrets: secret("top-secret-1")},
			{Name: "", Secrets: secret("top-secret-2")},
			{Name: "-x", Secrets: secret("top-secret-3")},
			{Name: "anonymous", Secrets: secret("top-secret-4")},
			{Name: "many", Secrets: secret("top-secret-5", "top-secret-6", "top-secret-7")},
			{Name: "none"},
			{Name: "empty", Secrets: secret("")},
			{Name: "same", Secrets: secret("top-secret-5")},
			{Name: "dup", Secrets: secret("top-secret-8"), Certificates: []string{"c", " "}},
			{Name: "dup", Secrets: secret("top-secret-9"), Certificates: []string{"c"}},
			{Name: "rules", Secrets: secret("top-secret-10"), Allow: []Rule{
				{}, {Actions: []Action{"write"}, Topics: []string{"*"}}, {Actions: []Action{Send}, Groups: []string{"g"}},
				{Actions: []Action{Receive}, Topics: []string{"t"}}, {Actions: []Action{Admin}}, {Actions: []Action{Send}, Topics: []string{"a.b", "a.*", "a#b", ""}},
				{Actions: []Action{Observe}, Groups: []string{"a.b"}},
			}},
		},
		Anonymous: []Rule{{Actions: []Action{Observe}}},
		TimeZones: []*time.Location{nil},
	})
	assert.MustThat(t, err != nil, "it is accepted")
	for _, w := range []string{
		"key 1: invalid name: give letters", "key 2: invalid name: it has 0 bytes", "key 3", `key 4: invalid name: the name "anonymous" is reserved`,
		`key "many" has 3 secrets; the limit is 2`, `key "none" has neither`, `key "empty" has an empty secret`, `key "same" has the same secret as key "many"`,
		`key "dup" is listed twice`, `key "dup" has an empty certificate name`, `the certificate name "c", which key "dup" already has`,
		`key "rules", rule 1: the rule has no actions; give one or more of send, receive, observe and admin`, `rule 2: the action "write" is unknown`,
		"rule 3: action send needs topics", "rule 4: action receive needs topics and groups", "rule 5: action admin needs topics or groups",
		`rule 6: the pattern "a#b" matches no name: names of topics`, `pattern "" matches no name`, `rule 7: the pattern "a.b" matches no name: names of groups`, "anonymous, rule 1: action observe", "a time zone is nil",
	} {
		assert.That(t, strings.Contains(err.Error(), w), "it does not contain %q", w)
	}
	if strings.Contains(err.Error(), "top-secret") || strings.Contains(err.Error(), "a b") || t.Failed() {
		t.Errorf("the faults:\n%v", err)
	}
}

// However a secret is printed, its text is not there.
func TestSecretsAreHidden(t *testing.T) {
	const text = "open-sesame"
	s := NewSecret(text)
	p := policy(t, Config{Keys: []Key{{Name: "k", Secrets: []Secret{s}}}})
	var out strings.Builder
	for _, v := range []any{s, &s, []Secret{s}, Key{Secrets: []Secret{s}}, p, *p, p.keys["k"], *p.keys["k"], struct{ s Secret }{s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb, v)
		}
		b, _ := json.Marshal(v)
		out.Write(b)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	}
	if strings.Contains(out.String(), text) || strings.Contains(out.String(), hex.EncodeToString([]byte(text))) {
		t.Errorf("the output contains the secret:\n%s", out.String())
	}
	assert.That(t, s.Reveal() == text && (Secret{}).Reveal() == "", "Reveal does not return it")
}

// A topic can be words joined by dots, so a rule can name such a topic.
func TestTopicsWithDots(t *testing.T) {
	r := Rule{Actions: []Action{Send}, Topics: []string{"stocks.*", "DLQ.stocks.nyse"}}
	assert.NoError(t, r.Check())
	if !match("stocks.*", "stocks.nyse.tech") || match("stocks.*", "stocks") {
		t.Error("stocks.* does not match exactly the names that begin with stocks and a dot")
	}
}

// The texts of rejections name the missing permission.
func TestTextsOfNeeds(t *testing.T) {
	for _, c := range []struct {
		need Need
		want string
	}{
		{Need{}, `do this`},
		{Signed(), `do anything`},
		{ToSend("orders"), `send to topic "orders"`},
		{ToReceive("orders", "billing"), `receive from topic "orders" as group "billing"`},
		{AsGroup("billing"), `receive as group "billing"`},
		{ToUse("orders"), `use topic "orders"`},
		{OnTopic(Observe, "orders"), `observe topic "orders"`},
		{OnTopic(Admin, "orders"), `administer topic "orders"`},
		{OnGroup(Admin, "billing"), `administer group "billing"`},
		{OnBoth(Observe, "orders", "billing"), `observe group "billing" on topic "orders"`},
		{OnServer(Admin), `administer the whole broker`},
		{ToSendAnywhere(), `send to any topic`},
	} {
		if got := c.need.String(); got != c.want {
			t.Errorf("%#v: %s, want %s", c.need, got, c.want)
		}
	}
	assert.Equal(t, "an anonymous client is", (Identity{}).String(), "anonymous")
	assert.Equal(t, "the key app is", (Identity{key: "app"}).String(), "app")
}
