package rocketmq

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
)

// New accepts both keys or none, and a session token only beside them. The error names the field.
func TestCredentials(t *testing.T) {
	for _, tt := range []struct {
		name  string
		keys  tidegate.Credentials
		valid bool
	}{
		{"none", tidegate.Credentials{}, true},
		{"both keys", tidegate.Credentials{AccessKey: "a", SecretKey: "s"}, true},
		{"temporary keys", tidegate.Credentials{AccessKey: "a", SecretKey: "s", SessionToken: "t"}, true},
		{"only the access key", tidegate.Credentials{AccessKey: "a"}, false},
		{"only the secret key", tidegate.Credentials{SecretKey: "s"}, false},
		{"only a session token", tidegate.Credentials{SessionToken: "t"}, false},
		{"a session token that is no header", tidegate.Credentials{AccessKey: "a", SecretKey: "s", SessionToken: "t t"}, false},
	} {
		c, err := New(testAddr, Options{Credentials: tt.keys})
		switch {
		case tt.valid && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case !tt.valid && (!errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "Options.Credentials")):
			t.Errorf("%s: error %v, want one that matches ErrInvalid and names Options.Credentials", tt.name, err)
		}
		if c != nil {
			c.Close()
		}
	}
}
