package access

import (
	"fmt"
	"log/slog"
)

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
