package output

import (
	"errors"
	"fmt"
	"strings"
)

// A FormatFlag is the flag of a format.
type FormatFlag struct{ Format }

// Type is the name of the value in the help.
func (f *FormatFlag) Type() string { return "format" }

// String returns the value.
func (f *FormatFlag) String() string { return string(f.Format) }

// Set reads the value.
func (f *FormatFlag) Set(text string) error {
	var names []string
	for _, known := range Formats {
		if string(known) == text {
			f.Format = known
			return nil
		}
		names = append(names, string(known))
	}
	return fmt.Errorf("the formats are %s", strings.Join(names, ", "))
}

// A TimeFlag is the flag of a form of times.
type TimeFlag struct{ TimeStyle }

// Type is the name of the value in the help.
func (f *TimeFlag) Type() string { return "form" }

// String returns the value.
func (f *TimeFlag) String() string { return string(f.TimeStyle) }

// Set reads the value.
func (f *TimeFlag) Set(text string) error {
	switch s := TimeStyle(text); s {
	case Relative, Local, UTC:
		f.TimeStyle = s
		return nil
	}
	return errors.New("the forms are relative, local, utc")
}
