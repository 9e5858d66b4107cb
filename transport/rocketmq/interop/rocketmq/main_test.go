package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// Each error has its text and an exit status: 3 is for a machine without Java or Maven alone. Only
// a program whose output is passed on has printed its own error.
func TestExit(t *testing.T) {
	piped := func(program string) error {
		cmd := &cobra.Command{}
		cmd.SetOut(&strings.Builder{})
		return pipe(exec.CommandContext(t.Context(), "go", program), cmd)
	}
	_, failed := exec.CommandContext(t.Context(), "go", "no-such-command").Output()
	for name, c := range map[string]struct {
		err  error
		text string
		code int
	}{
		"none":               {nil, "", 0},
		"no Java":            {fmt.Errorf("%w: there is no java", runner.ErrMissing), "there is no java", 3},
		"another error":      {errors.New("the port 1 is in use"), "the port 1 is in use", 1},
		"Maven failed":       {fmt.Errorf("maven could not download RocketMQ 5.2.0: %w\nno route to host", failed), "no route to host", 1},
		"mqadmin failed":     {piped("no-such-command"), "", 2},
		"mqadmin succeeded":  {piped("version"), "", 0},
		"mqadmin is missing": {pipe(exec.CommandContext(t.Context(), "./no-such-program"), &cobra.Command{}), "no-such-program", 1},
	} {
		if text, code := exit(c.err); code != c.code || !strings.Contains(text, c.text) || (text == "") != (c.text == "") {
			t.Errorf("%s: exit status %d, %q", name, code, text)
		}
	}
}
