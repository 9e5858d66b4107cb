package serve

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The program accepts each of its commands in the README. serve runs with --print-config.
func TestReadmeCommands(t *testing.T) {
	t.Chdir("../../../..")
	readme := assert.Value(os.ReadFile("README.md"))(t)
	lines := regexp.MustCompile(`(?m)^ {4}go run \./cmd/tidegate (.*)$`).FindAllStringSubmatch(string(readme), -1)
	assert.MustThat(t, len(lines) >= 3, "the README has %d commands of this program", len(lines))
	for _, l := range lines {
		args := strings.Fields(l[1])
		if args[0] == "serve" && !slices.Contains(args, "--print-config") {
			args = append(args, "--print-config")
		}
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 0 || stdout.Len() == 0 || stderr.Len() > 0 {
			t.Errorf("%q: exit status %d\n%s%s", args, code, stdout.String(), stderr.String())
		}
	}
}
