package mocks

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/transport"
)

var (
	_ transport.Transport  = (*MockTransport)(nil)
	_ transport.Sender     = (*MockSender)(nil)
	_ transport.Receiver   = (*MockReceiver)(nil)
	_ transport.Settler    = (*MockSettler)(nil)
	_ transport.Configurer = (*MockConfigurer)(nil)
)

// The generated file is the generator's output for the present contract.
func TestMocksAreCurrent(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(doc), "//go:generate ")
	if !ok {
		t.Fatal("doc.go has no go:generate line")
	}
	line, _, _ = strings.Cut(line, "\n")
	out := filepath.Join(t.TempDir(), "mocks.go")
	args := strings.Fields(line)
	for i, a := range args {
		if a == "-destination" {
			args[i+1] = out
		}
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, text)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("mocks.go")
	if err != nil {
		t.Fatal(err)
	}
	// The header repeats the command line, and with it the destination.
	if !bytes.Equal(code(got), code(want)) {
		t.Error("mocks.go does not match the contract any more; run: go generate ./mocks")
	}
}

func code(file []byte) []byte {
	_, after, _ := bytes.Cut(file, []byte("\npackage "))
	return after
}
