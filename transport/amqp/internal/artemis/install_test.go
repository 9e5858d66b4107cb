package artemis

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestCheckVersion(t *testing.T) {
	for _, c := range []struct {
		out string
		ok  bool
	}{
		{"openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime Environment", true},
		{`openjdk version "21" 2023-09-19`, true},
		{`java version "1.8.0_412"`, false},
		{`openjdk version "11.0.2" 2019-01-15`, false},
		{"no such command", false},
	} {
		err := checkVersion([]byte(c.out))
		assert.That(t, (err == nil) == c.ok, "checkVersion(%q): %v, want ok %v", c.out, err, c.ok)
	}
}

func TestStartNamesTheMissingTool(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	_, err := Start(t.Context(), Options{})
	assert.That(t, err != nil && strings.Contains(err.Error(), "java is missing: install a JDK of version 17 or later"),
		"Start without Java: %v", err)
	if _, err = tool("mvn"); err == nil || !strings.Contains(err.Error(), "mvn is missing: install Maven") {
		t.Errorf("without Maven: %v", err)
	}
}

func TestPropertiesAreEscaped(t *testing.T) {
	got := lines(map[string]string{`addressSettings."orders.#".maxSizeBytes`: "100K", "CN": "CN=a b, O=c:d", "p=q": `\`})
	want := "CN=CN=a b, O=c:d\n" + `addressSettings."orders.\#".maxSizeBytes=100K` + "\n" + `p\=q=\\` + "\n"
	assert.That(t, got == want, "got\n%s\nwant\n%s", got, want)
}

func TestAcceptor(t *testing.T) {
	o := Options{Certificate: "/c.pem", Acceptor: map[string]string{"amqpIdleTimeout": "1000"}}
	want := "tcp://127.0.0.1:5672?amqpIdleTimeout=1000;keyStorePath=/c.pem;keyStoreType=PEM;protocols=AMQP;sslEnabled=true"
	assert.Equal(t, "o.acceptor(5672)", o.acceptor(5672), want)
}
