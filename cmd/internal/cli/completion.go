package cli

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
)

// completionTime bounds the completion of a name: a shell waits for it after each press of the key.
const completionTime = 300 * time.Millisecond

// complete returns the names that the next argument can have. It has no names, and prints nothing,
// if the server does not respond in time.
func (c *Call) complete(names, given []string, prefix string) []string {
	if len(given) >= len(names) {
		return nil
	}
	s, err := resolve(c.Connection, c.Env, io.Discard, c.Foreign)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime) // cobra's completion has no context
	defer cancel()
	client, err := s.Admin(ctx, 1)
	if err != nil {
		return nil
	}
	defer func() { _ = client.Close() }()             // the names are known
	all, _ := namesOf(ctx, client, names[len(given)]) // none after an error
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, prefix) })
}

// namesOf returns the names of the kind that an argument takes.
func namesOf(ctx context.Context, client *admin.Client, arg string) ([]string, error) {
	switch arg {
	case "TOPIC":
		topics, err := client.Topics(ctx)
		return mapped(topics, func(t status.Topic) string { return t.Name }), err
	case "GROUP":
		groups, err := client.Groups(ctx)
		return mapped(groups, func(g status.Group) string { return g.Name }), err
	case "MATCH":
		list, err := client.AllAddressSettings(ctx)
		return mapped(list, func(s status.Address) string { return s.Match }), err
	}
	return nil, nil
}

// bashCompletion makes the script of "completion bash" work without the package bash-completion,
// whose functions cobra's script calls.
func bashCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, err := root.Find([]string{"completion", "bash"})
	if err != nil || c.Name() != "bash" {
		return // a cobra without the command
	}
	c.Long = strings.ReplaceAll(`The completion of bash. It needs no other package. For this shell:

  source <(NAME completion bash)

For every shell:

  NAME completion bash > ~/.local/share/bash-completion/completions/NAME

if the package bash-completion is installed, or else this line in ~/.bashrc:

  source <(NAME completion bash)`, "NAME", root.Name())
	c.RunE = func(c *cobra.Command, _ []string) error {
		noDescriptions, err := c.Flags().GetBool("no-descriptions")
		if err != nil {
			return err
		}
		return writeBashCompletion(root, c.OutOrStdout(), !noDescriptions)
	}
}

func writeBashCompletion(root *cobra.Command, w io.Writer, descriptions bool) error {
	var b bytes.Buffer
	if err := root.GenBashCompletionV2(&b, descriptions); err != nil {
		return err
	}
	_, err := io.WriteString(w, strings.Replace(b.String(), "\n\n", "\n\n"+withoutPackage, 1))
	return err
}

// withoutPackage defines the functions of bash-completion that cobra's script calls, unless they
// exist. Bash splits words at = and :, so the words are joined again.
const withoutPackage = `if ! declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
    __tidegate_words_by_ref()
    {
        words=() cword=0
        local i part joined
        local line="${COMP_LINE:0:COMP_POINT}"
        for ((i = 0; i <= COMP_CWORD; i++)); do
            part="${COMP_WORDS[i]}"
            joined=""
            # A part that follows the one before it without a space belongs to the same word.
            if ((i > 0)) && [[ $line != [[:space:]]* ]]; then joined=1; fi
            while [[ $line == [[:space:]]* ]]; do line="${line:1}"; done
            line="${line#"$part"}"
            if [[ -n $joined ]]; then
                words[${#words[@]}-1]+="$part"
            else
                words+=("$part")
            fi
        done
        cword=$((${#words[@]} - 1))
        cur="${words[cword]}"
        prev=""
        if ((cword > 0)); then prev="${words[cword-1]}"; fi
    }
    _get_comp_words_by_ref() { __tidegate_words_by_ref; }
fi
if ! declare -F __ltrim_colon_completions >/dev/null 2>&1; then
    __ltrim_colon_completions()
    {
        if [[ $1 == *:* && $COMP_WORDBREAKS == *:* ]]; then
            local i colon="${1%"${1##*:}"}"
            for ((i = 0; i < ${#COMPREPLY[@]}; i++)); do COMPREPLY[i]="${COMPREPLY[i]#"$colon"}"; done
        fi
    }
fi

`
