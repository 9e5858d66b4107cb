package command

import (
	"regexp"
	"strconv"
	"strings"
)

// flagWords are the words of the Go API in errors of the SDK, and the flags that set the same. A
// phrase stands before the words that it contains.
var flagWords = strings.NewReplacer(
	"set Options.TLS with its issuer in RootCAs, and ServerName if the certificate has another name", "give its issuer with --cacert, or accept any certificate with --tls-skip-verify",
	"set Options.TLS with the certificate and the TLS versions that it requires", "give the certificate that it requires with --cert and --cert-key",
	"check the address, Options.TLS and the certificate", "check the address, --cacert and the certificate",
	"leave Options.TLS nil", "leave out --tls",
	"set Options.TLS", "give --tls",
	"Options.TLS", "--tls",
)

// grpcWords are the words of gRPC around the fault of a connection, which gRPC quotes.
var grpcWords = regexp.MustCompile(`rpc error: code = \w+ desc = connection error: desc = ("transport: (?:[^"\\]|\\.)*")`)

// Text returns the text of an error for the users of a command: it names flags and not fields of
// the Go API, and the fault of a connection alone.
func Text(err error) string {
	return flagWords.Replace(grpcWords.ReplaceAllStringFunc(err.Error(), func(words string) string {
		fault, err := strconv.Unquote(grpcWords.FindStringSubmatch(words)[1])
		if err != nil {
			return words // not quoted by gRPC
		}
		return strings.TrimPrefix(strings.TrimPrefix(fault, "transport: "), "Error while dialing: ")
	}))
}

// Indented indents the further lines of a text. It can be a text of others, which is not to look
// like lines of the command.
func Indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }
