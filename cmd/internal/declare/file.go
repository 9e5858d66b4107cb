package declare

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/settings"
)

// A File is the file of apply: settings with their places.
type File struct {
	Topics, Groups, Addresses map[string]Subject
}

// A Subject is one topic, group or address with its settings as JSON.
type Subject struct {
	file string
	key  *yaml.Node // the name
	node *yaml.Node // the settings
	Text json.RawMessage
}

// The parts of a file that apply reads.
const (
	PartTopics    = "topics"
	PartGroups    = "groups"
	PartAddresses = "address_settings"
)

// OfServe are the other names at the top of a file, which only serve reads.
var OfServe = strings.Fields(`
	grpc http data snapshot_dir advertise http_hosts console topic max_backlog max_backlog_bytes
	max_backlog_age max_client_rate max_client_burst min_free_disk_bytes max_compaction_debt_bytes
	max_write_stall max_cold_reads_bytes_per_second cold_distance_bytes transaction_timeout
	transaction_check_interval transaction_check_max min_invisible_duration max_invisible_duration
	min_long_polling max_long_polling producer_max_attempts producer_backoff_initial
	producer_backoff_multiplier producer_backoff_max max_auto_groups max_request_bytes
	max_transit_bytes max_parked_bytes max_connections insecure no_keys log_level log_format
	stop_timeout tls access
`)

// Read reads the text of a file; path is its name in errors. The decoder is that of serve, so both
// reject the same text, names and values. It does not read the values of OfServe. The error has a
// line for each fault.
func Read(path string, text []byte) (f File, err error) {
	d := Decoder{File: path, From: map[string]Origin{}}
	if root := d.Root(text); root != nil {
		d.Mapping(root, "", append([]string{PartTopics, PartGroups, PartAddresses}, OfServe...), func(name string, n *yaml.Node) {
			switch name {
			case PartTopics:
				f.Topics = subjects[settings.Topic](&d, name, n)
			case PartGroups:
				f.Groups = subjects[settings.Group](&d, name, n)
			case PartAddresses:
				f.Addresses = subjects[settings.Address](&d, name, n)
			}
		})
	}
	if err := d.Faults.Err(); err != nil {
		return f, err
	}
	if len(f.Topics)+len(f.Groups)+len(f.Addresses) == 0 {
		return f, fmt.Errorf("%s has no topics, groups or address_settings", path)
	}
	return f, nil
}

// subjects reads one part of a file.
func subjects[T any](d *Decoder, part string, n *yaml.Node) map[string]Subject {
	all := map[string]T{}
	d.Value(n, part, reflect.ValueOf(&all).Elem())
	if len(d.Faults) > 0 || n.Kind != yaml.MappingNode {
		return nil
	}
	out := map[string]Subject{}
	for key, node := range entries(n) {
		given, err := json.Marshal(patch(node, reflect.ValueOf(all[key.Value])))
		if err != nil {
			d.Bad(key.Line, "%s: %v", Dotted(Path(part, key.Value)), err)
		}
		out[key.Value] = Subject{file: d.File, key: key, node: node, Text: given}
	}
	return out
}

// patch returns the settings that a node gives, with their values of v.
func patch(n *yaml.Node, v reflect.Value) any {
	if v.Kind() != reflect.Struct || n.Kind != yaml.MappingNode && !Empty(n) {
		return v.Interface()
	}
	given := map[string]any{}
	for key, below := range entries(n) {
		for f, field := range v.Fields() {
			if Name(f) == key.Value {
				given[key.Value] = patch(below, field)
			}
		}
	}
	return given
}

// entries yields the keys and values of a mapping.
func entries(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// Place returns file:line of the setting that a text begins with, or else of the name.
func (s Subject) Place(text string) string {
	line, at := s.key.Line, s.node
	path, _, _ := strings.Cut(text, " ")
	for name := range strings.SplitSeq(strings.TrimSuffix(path, ":"), ".") {
		found := false
		for key, value := range entries(at) {
			if key.Value == name {
				line, at, found = key.Line, value, true
			}
		}
		if !found {
			break
		}
	}
	return fmt.Sprintf("%s:%d", s.file, line)
}
