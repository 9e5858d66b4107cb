package declare

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are the units of bytes, the longest names first.
var units = []struct {
	name   string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// inBytes reports whether a setting is a number of bytes: a word of its name is "bytes". The name
// may be a path of names.
func inBytes(name string) bool {
	last := name[strings.LastIndexAny(name, ".\x00")+1:]
	return last == "bytes" || strings.HasPrefix(last, "bytes_") || strings.HasSuffix(last, "_bytes") || strings.Contains(last, "_bytes_")
}

// Digits returns the value of the setting name as a number without a unit: 1073741824 for 1GiB. It
// returns the values of other settings and numbers without a unit as they are. The error is an
// advice.
func Digits(name, value string) (string, error) {
	text := strings.TrimSpace(value)
	if _, err := strconv.ParseFloat(text, 64); err == nil || !inBytes(name) {
		return value, nil
	}
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if n *= u.factor; err != nil || n != math.Trunc(n) || n < 0 || n >= 1<<63 {
			break
		}
		return strconv.FormatInt(int64(n), 10), nil
	}
	return value, errors.New("give a number of bytes, for example 1073741824, 1GiB or 512MiB")
}

// each replaces the sizes with units in settings that were read from JSON or YAML. The error names
// the setting.
func each(settings map[string]any) error { return sizeEach(settings, "") }

func sizeEach(settings map[string]any, path string) error {
	for name, v := range settings {
		switch v := v.(type) {
		case map[string]any:
			if err := sizeEach(v, path+name+"."); err != nil {
				return err
			}
		case string:
			if !inBytes(name) {
				continue
			}
			digits, err := Digits(name, v)
			if err != nil {
				return fmt.Errorf("%s%s is %q: %w", path, name, v, err)
			}
			n, err := strconv.ParseFloat(digits, 64)
			if err != nil {
				return fmt.Errorf("%s%s is %q: %w", path, name, v, err)
			}
			if settings[name] = n; n == math.Trunc(n) {
				settings[name] = int64(n)
			}
		}
	}
	return nil
}
