package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/broker/server"
)

// show writes the keys as a file that says the same, but for secrets: those
// that stood in the file itself are left out.
func (a accessConfig) show(w io.Writer) {
	if len(a.keys) > 0 {
		fmt.Fprintf(w, "  keys:\n")
	}
	for _, name := range slices.Sorted(maps.Keys(a.keys)) {
		k := a.keys[name]
		fmt.Fprintf(w, "    %s:  # %s\n", quoted(name), k.at.comment())
		for _, place := range secretPlaces {
			var names []string
			shown := false
			for _, src := range k.secrets {
				if src.place == place && place == "secret" && !shown {
					fmt.Fprintf(w, "      # secret: it is not shown\n")
					shown = true
				} else if src.place == place && place != "secret" {
					names = append(names, src.name)
				}
			}
			if len(names) > 0 {
				fmt.Fprintf(w, "      %s: %s\n", place, list(names))
			}
		}
		if len(k.key.Certificates) > 0 {
			fmt.Fprintf(w, "      certificates: %s\n", list(k.key.Certificates))
		}
		if len(k.key.Allow) > 0 {
			fmt.Fprintf(w, "      allow:\n")
			showRules(w, "        ", k.key.Allow)
		}
	}
	if len(a.anonymous) > 0 {
		fmt.Fprintf(w, "  anonymous:\n")
		showRules(w, "    ", a.anonymous)
	}
}

func showRules(w io.Writer, indent string, rules []server.Rule) {
	for _, r := range rules {
		actions := make([]string, len(r.Actions))
		for i, a := range r.Actions {
			actions[i] = string(a)
		}
		fmt.Fprintf(w, "%s- {actions: %s", indent, list(actions))
		if len(r.Topics) > 0 {
			fmt.Fprintf(w, ", topics: %s", list(r.Topics))
		}
		if len(r.Groups) > 0 {
			fmt.Fprintf(w, ", groups: %s", list(r.Groups))
		}
		fmt.Fprintln(w, "}")
	}
}

func list(items []string) string {
	texts := make([]string, len(items))
	for i, s := range items {
		texts[i] = quoted(s)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
