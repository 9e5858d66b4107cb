package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/tidegate/tidegate/broker/internal/nearest"
)

// A given value is a text and where it stands.
type given struct {
	text string
	from origin
}

// values are what one place (a file, the environment, the flags) gives, by
// key; more than one for lists only.
type values map[string][]given

// A declaration is a topic, group or address pattern in a file.
type declaration struct {
	from   origin
	values values
}

// A document is what a file says, before anyone looked at the values.
type document struct {
	values                    values
	topics, groups, addresses map[string]declaration
	keys                      map[string]keyDeclaration
	anonymous                 []ruleDeclaration
}

// parse reads a file's text. It returns what it understood, also with faults.
func parse(file string, data []byte) (document, faults) {
	p := &parser{file: file}
	doc := document{
		values: values{}, topics: map[string]declaration{}, groups: map[string]declaration{}, addresses: map[string]declaration{},
		keys: map[string]keyDeclaration{},
	}
	root := p.read(data)
	if root == nil {
		return doc, p.faults
	}
	keys := append(level(keysOf(settingRules), ""), "topics", "groups", "address_settings")
	p.mapping(root, "", keys, func(key string, k, v *yaml.Node) {
		switch {
		case key == "topics":
			p.declarations(v, key, keysOf(topicRules), doc.topics)
		case key == "groups":
			p.declarations(v, key, keysOf(groupRules), doc.groups)
		case key == "address_settings":
			p.declarations(v, key, keysOf(addressRules), doc.addresses)
		case key == "topic" || key == "http_hosts":
			p.list(key, v, doc.values)
		case key == "access":
			p.access(v, &doc)
		case !slices.Contains(keysOf(settingRules), key): // a level of nesting
			p.fields(v, key, key+".", keysOf(settingRules), doc.values)
		default:
			p.scalar(key, key, k, v, doc.values)
		}
	})
	return doc, p.faults
}

type parser struct {
	file   string
	faults faults
	hides  bool // what stands in the file may be secret
}

func (p *parser) bad(line int, format string, args ...any) {
	p.faults = append(p.faults, faultf(origin{file: p.file, line: max(line, 1)}, format, args...))
}

// read returns the root of the only document; nil if there is nothing, or
// if it is no YAML.
func (p *parser) read(data []byte) *yaml.Node {
	// The library tells no line for these two.
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) {
			p.bad(i+1, "a byte is not UTF-8: save the file as UTF-8")
			return nil
		}
		if c := bytes.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' || r == 0x7f }); c >= 0 {
			p.bad(i+1, "byte %d of the line is the control character %#02x: remove it", c+1, line[c])
			return nil
		}
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := d.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // nothing but comments
			p.syntax(err)
		}
		return nil
	}
	switch err := d.Decode(&more); {
	case err == nil:
		p.bad(more.Line, "a second YAML document begins: give one")
	case !errors.Is(err, io.EOF):
		p.syntax(err)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil
	}
	return root
}

var unknownAnchor = regexp.MustCompile(`(?s)unknown anchor .*`)

var yamlLine = regexp.MustCompile(`^line (\d+): `)

func (p *parser) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits
		text = text[len(m[0]):]
	}
	// A secret that begins with * is taken for an alias, and this would tell it.
	p.bad(line, "this is not YAML: %s", unknownAnchor.ReplaceAllString(text, "a value that begins with * is an alias of nothing: quote it"))
}

// mapping calls each for every entry of a mapping whose key is known; keys
// nil: every name is.
func (p *parser) mapping(n *yaml.Node, what string, keys []string, each func(key string, k, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		if what != "" {
			what += " is "
		}
		with := ""
		if len(keys) > 0 && what != "" {
			with = ", of " + strings.Join(keys, ", ")
		}
		p.bad(n.Line, "%s%s: give \"key: value\", one on each line%s", what, p.describe(n), with)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := k.Value
		switch first, twice := seen[key]; {
		case k.Kind != yaml.ScalarNode:
			p.bad(k.Line, "%s is no name", p.describe(k))
			continue
		case twice:
			p.bad(k.Line, "%q is there twice, first in line %d", key, first)
			continue
		}
		seen[key] = k.Line
		if keys != nil && !slices.Contains(keys, key) {
			where := ""
			if what != "" {
				where = " in " + what
			}
			if p.hides && nearest.Name(key, keys) == "" { // {text} is a name too
				p.bad(k.Line, "a name is unknown%s: %s", where, nearest.Hint("", keys))
				continue
			}
			p.bad(k.Line, "%q is unknown%s: %s", key, where, nearest.Hint(key, keys))
			continue
		}
		each(key, k, v)
	}
}

// declarations reads the topics, groups or address settings.
func (p *parser) declarations(n *yaml.Node, what string, keys []string, into map[string]declaration) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // all of them are commented out
	}
	p.mapping(n, what, nil, func(name string, k, v *yaml.Node) {
		d := declaration{origin{name: what + "." + name, file: p.file, line: k.Line}, values{}}
		into[name] = d
		if v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" {
			return // a name alone has every default
		}
		p.fields(v, d.from.name, "", keys, d.values)
	})
}

// fields reads a topic's or group's fields below prefix.
func (p *parser) fields(n *yaml.Node, what, prefix string, keys []string, into values) {
	p.mapping(n, what, level(keys, prefix), func(name string, k, v *yaml.Node) {
		if slices.Contains(keys, prefix+name) {
			p.scalar(prefix+name, what+"."+name, k, v, into)
			return
		}
		p.fields(v, what+"."+name, prefix+name+".", keys, into)
	})
}

func (p *parser) scalar(key, name string, k, v *yaml.Node, into values) {
	switch {
	case v.Kind != yaml.ScalarNode || v.Style&yaml.TaggedStyle != 0:
		p.bad(v.Line, "%s is %s: give a single value", name, p.describe(v))
	case v.ShortTag() == "!!null":
		p.bad(k.Line, "%s has no value: give one, or remove the line", name)
	default:
		into[key] = append(into[key], given{v.Value, origin{name, p.file, v.Line}})
	}
}

func (p *parser) list(key string, n *yaml.Node, into values) { p.namedList(key, key, n, into) }

func (p *parser) namedList(key, name string, n *yaml.Node, into values) {
	if n.Kind != yaml.SequenceNode {
		p.scalar(key, name, n, n, into)
		return
	}
	into[key] = []given{} // an empty list is a value too
	for _, v := range n.Content {
		p.scalar(key, name, v, v, into)
	}
}

// describe says what a node is, in the words of a person.
func (p *parser) describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		if p.hides {
			return "an alias (a text that begins with *), which this file may not have: quote the value"
		}
		return "an alias (*" + n.Value + "), which this file may not have"
	}
	switch {
	case n.Style&yaml.TaggedStyle != 0 && p.hides:
		return "a value with a tag (a text that begins with !), which this file may not have: quote the value"
	case n.Style&yaml.TaggedStyle != 0:
		return "a value with the tag " + n.Tag + ", which this file may not have"
	case p.hides:
		return "a single value"
	}
	return fmt.Sprintf("%q", n.Value)
}
