package serve

import (
	"io"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
)

func app() *cli.App { return cli.New(strings.NewReader(""), io.Discard, io.Discard) }

// A start of the broker does not build the client commands. Every other call has the whole tree, so
// that the help, the completion and the suggestions know all commands.
func TestForNeeds(t *testing.T) {
	all := len(Root(app()).Commands())
	for _, c := range []struct {
		args  string
		whole bool
	}{
		{"serve --topic orders", false},
		{"config check", false},
		{"", true},
		{"--help", true},
		{"help serve", true},
		{"__complete serve ", true},
		{"send orders text", true},
		{"srve", true},
		{"--no-such-flag serve", true},
	} {
		got := len(For(app(), strings.Fields(c.args)).Commands())
		assert.That(t, c.whole == (got == all), "%q gets %d of %d commands, want all: %v", c.args, got, all, c.whole)
	}
}

// The commands of the broker are the same in both trees.
func TestForHasTheSameBroker(t *testing.T) {
	describe := func(root *cobra.Command, name string) string {
		c, _, err := root.Find([]string{name})
		assert.Must(t, err)
		return c.UsageString() + c.Long + c.Example
	}
	for _, name := range []string{"serve", "config"} {
		if part, whole := describe(For(app(), []string{name}), name), describe(Root(app()), name); part != whole {
			t.Errorf("%s has another text in the part of the tree:\n%s\nand in the whole:\n%s", name, part, whole)
		}
	}
}
