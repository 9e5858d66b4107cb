package serve

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/declare"
)

// The reader of apply also reads the file of serve.
type (
	origin = declare.Origin
	fault  = declare.Fault
	faults = declare.Faults
)

func faultf(o origin, format string, args ...any) fault { return declare.Faultf(o, format, args...) }

func path(names ...string) string { return declare.Path(names...) }

func pathOf(key string) string { return declare.PathOf(key) }

// levels reads the node below prefix: entries of the table, and further levels of nesting.
func levels(d *declare.Decoder, n *yaml.Node, prefix string, table []setting) {
	var known []string
	for _, row := range table {
		if rest, ok := strings.CutPrefix(row.key, prefix); ok {
			if first, _, _ := strings.Cut(rest, "."); !slices.Contains(known, first) {
				known = append(known, first)
			}
		}
	}
	d.Mapping(n, pathOf(strings.TrimSuffix(prefix, ".")), known, func(name string, v *yaml.Node) {
		for _, row := range table {
			if row.key == prefix+name {
				d.Value(v, pathOf(row.key), reflect.ValueOf(row.at).Elem())
				return
			}
		}
		levels(d, v, prefix+name+".", table)
	})
}

// text returns the text of a value, in the form that declare.Set reads. at points to the value.
func text(at any) string {
	switch x := at.(type) {
	case *[]string:
		return strings.Join(*x, ",")
	case *settings.Duration:
		return time.Duration(*x).String()
	}
	return fmt.Sprint(reflect.ValueOf(at).Elem().Interface())
}
