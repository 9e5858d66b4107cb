package serve

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An origin is the source of a value. The zero value means the default.
type origin struct {
	name string // of the setting in the source: grpc, --grpc, TIDEGATE_GRPC
	file string // empty if it is no file
	line int    // from 1; 0 if it is no file
}

// comment returns the text that follows a printed value.
func (o origin) comment() string {
	switch {
	case o.file != "":
		return fmt.Sprintf("%s:%d", o.file, o.line)
	case o.name != "":
		return o.name
	}
	return "default"
}

// A fault is one fault of the configuration.
type fault struct {
	origin
	text string
}

func faultf(o origin, format string, args ...any) fault {
	return fault{o, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")}
}

func (f fault) String() string {
	s := f.text
	if f.name != "" {
		s = f.name + " " + s
	}
	if f.file != "" {
		s = fmt.Sprintf("%s:%d: %s", f.file, f.line, s)
	}
	return s
}

// faults are all faults of a configuration. As an error they are a line each, those of the file
// first.
type faults []fault

// err returns nil if there are none.
func (fs faults) err() error {
	if len(fs) == 0 {
		return nil
	}
	slices.SortStableFunc(fs, func(a, b fault) int {
		if (a.file == "") != (b.file == "") {
			return cmp.Compare(b.file, a.file)
		}
		if a.file == "" {
			return 0 // as they were looked at
		}
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.name, b.name))
	})
	return fs
}

// Invalid marks the error for package command.
func (faults) Invalid() {}

func (fs faults) Error() string { return strings.Join(fs.lines(), "\n") }

func (fs faults) lines() []string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return lines
}
