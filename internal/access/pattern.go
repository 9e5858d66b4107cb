package access

import "strings"

// dlqPrefix is the prefix of RocketMQ's dead letter topics, before the name of the group.
const dlqPrefix = "%DLQ%"

// match reports whether a pattern covers all of name. * matches any characters, including dots, or
// none; other characters match themselves. Patterns of addresses match words between dots instead,
// but most names of topics and all names of groups are one word.
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
		// The leftmost match leaves the most text for the rest of the pattern.
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
