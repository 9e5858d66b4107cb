package messages

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A shown message is the value of the verbs of receive -f. On a terminal its texts cannot control
// the terminal.
type shown struct {
	*tidegate.Delivery
	terminal bool
}

func (s shown) text(value string) string {
	if s.terminal {
		return output.Safe(value)
	}
	return value
}

const verbHelp = `  %b  body                    %B  size of the body
  %i  ID                      %t  topic
  %T  tag                     %k  keys, with commas between
  %p  properties, NAME=VALUE  %p{NAME}  one property
  %g  message group           %a  attempt
  %q  queue                   %o  offset
  %c  time of the send        %s  time at which it was stored
  %%  percent sign            \n  \t  \r  \0  \\  as in Go`

var shownVerbs = map[byte]func(shown, string) string{
	'b': func(s shown, _ string) string { return s.text(string(s.Body)) },
	'B': func(s shown, _ string) string { return strconv.Itoa(len(s.Body)) },
	'i': func(s shown, _ string) string { return s.text(s.ID) },
	't': func(s shown, _ string) string { return s.text(s.Topic) },
	'T': func(s shown, _ string) string { return s.text(s.Tag) },
	'k': func(s shown, _ string) string { return s.text(strings.Join(s.Keys, ",")) },
	'g': func(s shown, _ string) string { return s.text(s.MessageGroup) },
	'a': func(s shown, _ string) string { return strconv.Itoa(s.Attempt) },
	'q': func(s shown, _ string) string { return strconv.Itoa(s.Queue) },
	'o': func(s shown, _ string) string { return strconv.FormatInt(s.Offset, 10) },
	'c': func(s shown, _ string) string { return instant(s.BornAt) },
	's': func(s shown, _ string) string { return instant(s.StoredAt) },
	'p': func(s shown, name string) string {
		if name != "" {
			return s.text(s.Properties[name])
		}
		var all []string
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			all = append(all, fmt.Sprintf("%s=%s", name, s.Properties[name]))
		}
		return s.text(strings.Join(all, ","))
	},
}

// instant is a time with milliseconds, or nothing if it is not known.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
