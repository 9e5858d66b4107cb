package console

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/settings"
)

// The console shows and changes each setting of a topic, a group and an address, and no other.
func TestSettingsAreShown(t *testing.T) {
	lists := map[string]reflect.Type{
		"topicFields":   reflect.TypeFor[settings.Topic](),
		"groupFields":   reflect.TypeFor[settings.Group](),
		"addressFields": reflect.TypeFor[settings.Address](),
	}
	code := read(t, "files/settings.js")
	row := regexp.MustCompile(`(?m)^ {2}\['([^']+)', `)
	for name, of := range lists {
		_, list, found := strings.Cut(code, "export const "+name+" = [\n")
		list, _, _ = strings.Cut(list, "\n];")
		if !found {
			t.Errorf("settings.js has no %s", name)
			continue
		}
		shown := map[string]bool{}
		for _, m := range row.FindAllStringSubmatch(list, -1) {
			shown[m[1]] = true
		}
		exist := map[string]bool{}
		paths(of, "", exist)
		for _, path := range slices.Sorted(maps.Keys(exist)) {
			if !shown[path] {
				t.Errorf("%s has no row for the setting %s", name, path)
			}
			delete(shown, path)
		}
		for path := range shown {
			t.Errorf("%s has a row for %s, which is no setting", name, path)
		}
	}
}

// paths adds the JSON names of the fields of a struct, with those of the structs that contain them.
func paths(of reflect.Type, prefix string, all map[string]bool) {
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			paths(inner, prefix, all)
		case inner.Kind() == reflect.Struct && name != "":
			paths(inner, prefix+name+".", all)
		default:
			all[prefix+name] = true
		}
	}
}
