package serve

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/broker/settings"

	"github.com/tidegate/tidegate/cmd/internal/declare"
)

// show writes the configuration as a file with the same meaning: every setting, and the fields that
// the file declares of topics, groups, address settings and keys. A comment names the origin of
// each value. Secrets that stand in the file itself are left out.
func (c *config) show(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	printed := *c
	printed.keys = maps.Clone(c.keys)
	for name, k := range printed.keys {
		k.Secret = nil
		printed.keys[name] = k
	}
	for _, row := range printed.table() {
		value, err := node(row.at)
		if err != nil {
			return err
		}
		if value.Kind == yaml.MappingNode && len(value.Content) == 0 || value.Kind == yaml.ScalarNode && declare.Empty(value) {
			continue // nothing is declared
		}
		into, key := root, row.key
		if outer, inner, nested := strings.Cut(row.key, "."); nested {
			into, key = below(root, outer), inner
		}
		c.comment(value, pathOf(row.key))
		name := &yaml.Node{Kind: yaml.ScalarNode, Value: key}
		if row.when != "" { // others have a comment at each value
			value.LineComment = c.from[pathOf(row.key)].Comment()
		}
		into.Content = append(into.Content, name, value)
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	return errors.Join(encoder.Encode(root), encoder.Close())
}

// below returns the mapping of that name in n, which it creates if there is none.
func below(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &yaml.Node{Kind: yaml.MappingNode})
	return n.Content[len(n.Content)-1]
}

// node returns the YAML node of a value. at points to the value. Declarations have the same form as
// over HTTP.
func node(at any) (*yaml.Node, error) {
	n := &yaml.Node{}
	value := reflect.ValueOf(at).Elem()
	if d, ok := at.(*settings.Duration); ok {
		err := n.Encode(time.Duration(*d))
		return n, err
	}
	if kind := value.Kind(); kind != reflect.Map && !(kind == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct) {
		err := n.Encode(value.Interface())
		if n.Kind == yaml.SequenceNode {
			n.Style = yaml.FlowStyle
		}
		return n, err
	}
	data, err := json.Marshal(value.Interface())
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// comment notes the origin of every value below n.
func (c *config) comment(n *yaml.Node, at string) {
	n.Style = 0
	if n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.ScalarNode {
		n.Style = yaml.FlowStyle
	}
	for _, v := range n.Content {
		if n.Kind == yaml.SequenceNode {
			c.comment(v, at)
		}
	}
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		below := at + declare.Sep + k.Value
		k.Style = 0
		c.comment(v, below)
		commented := v
		if v.Style == 0 && len(v.Content) > 0 {
			commented = k
		}
		if o, ok := c.from[below]; ok {
			commented.LineComment = o.Comment()
		}
		if name, ok := strings.CutPrefix(below, path("access", "keys")+declare.Sep); ok && len(c.keys[name].Secret) > 0 {
			commented.LineComment += "; the secret is not shown"
		}
	}
}
