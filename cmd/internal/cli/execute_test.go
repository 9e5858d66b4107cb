package cli

import (
	"fmt"
	"testing"
)

// The text of an error has the fault of a connection without the words and the quotes of gRPC.
func TestTextOfAFault(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{
		"dial tcp 127.0.0.1:1: connect: connection refused",
		`x509: certificate signed by unknown authority (possibly because of "x509: invalid signature" while trying to verify candidate authority certificate "C:\\CA")`,
	} {
		for _, before := range []string{"", "Error while dialing: "} {
			connection := fmt.Sprintf("connection error: desc = %q", "transport: "+before+fault)
			err := fmt.Errorf("send: rpc error: code = Unavailable desc = %s; retry", connection)
			if got, want := text(err), "send: "+fault+"; retry"; got != want {
				t.Errorf("the text is %s, want %s", got, want)
			}
		}
	}
}
