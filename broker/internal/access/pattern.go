package access

import "strings"

// dlqPrefix is what RocketMQ puts before a group's name to name the topic of
// its dead letters.
const dlqPrefix = "%DLQ%"

// match reports whether a pattern covers all of name: * stands for any run of
// characters, dots too and also for none, everything else for itself. Patterns of
// addresses go by words between dots; most names of topics, and all of groups, are one word.
func match(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, more, wild := strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(name, part)
		}
		// The leftmost place leaves the most to what follows.
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], more
	}
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if match(p, name) {
			return true
		}
	}
	return false
}
