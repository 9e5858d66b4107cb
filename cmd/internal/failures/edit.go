package failures

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/input"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/protocol"
)

// edits are the changes that flags make in each message of a redrive.
type edits struct {
	program             string
	tag                 string
	unsetTag, unsetKeys bool
	keys, set, unset    []string

	given      map[string]bool // names of the given flags
	properties map[string]string

	unchanged int   // messages that failed because nothing changed
	marked    error // of a body that the program has given a byte order mark
}

func (e *edits) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&e.program, "edit", "", "`program` that changes the body")
	f.StringVar(&e.tag, "set-tag", "", "new `tag` of each message")
	f.BoolVar(&e.unsetTag, "unset-tag", false, "remove the tag")
	f.StringArrayVar(&e.keys, "set-key", nil, "new `key` in place of all keys; may be repeated")
	f.BoolVar(&e.unsetKeys, "unset-keys", false, "remove all keys")
	f.StringArrayVar(&e.set, "set-property", nil, "property to add or change, as `NAME=VALUE`; may be repeated")
	f.StringArrayVar(&e.unset, "unset-property", nil, "`NAME` of a property to remove; may be repeated")
}

// any reports whether a flag requests a change.
func (e *edits) any() bool { return len(e.given) > 0 }

// name returns the flag that an error about an edit names.
func (e *edits) name() string {
	if e.program != "" {
		return "--edit"
	}
	return "the flags"
}

// check reads the flags, and returns an error if no message can have the requested values.
func (e *edits) check(c *call.Call) error {
	fault := func(format string, args ...any) error { return command.Usagef(c.Command, format, args...) }
	e.given, e.properties = map[string]bool{}, map[string]string{}
	for _, name := range []string{"edit", "set-tag", "unset-tag", "set-key", "unset-keys", "set-property", "unset-property"} {
		if f := c.Command.Flags().Lookup(name); f.Changed && f.Value.String() != "false" {
			e.given[name] = true
		}
	}
	switch {
	case e.given["edit"] && strings.TrimSpace(e.program) == "":
		return fault("--edit is empty; give a program, or leave the flag out")
	case e.given["set-tag"] && e.unsetTag:
		return fault("--set-tag and --unset-tag exclude each other")
	case e.given["set-tag"] && e.tag == "":
		return fault("--set-tag is empty; --unset-tag removes the tag")
	case e.given["set-key"] && e.unsetKeys:
		return fault("--set-key and --unset-keys exclude each other")
	case slices.Contains(e.keys, ""):
		return fault("--set-key is empty; --unset-keys removes all keys")
	}
	for _, p := range e.set {
		name, value, ok := strings.Cut(p, "=")
		_, twice := e.properties[name]
		switch {
		case !ok:
			return fault("--set-property is %q; the form is NAME=VALUE", p)
		case twice:
			return fault("--set-property %s is given twice; a property has one value", name)
		case value == "":
			return fault("--set-property %s has no value, and RocketMQ drops such properties; --unset-property %s removes it", name, name)
		case name == protocol.PropertyDeadLetterRedrives:
			return fault("--set-property %s: the redrive sets this property", name)
		}
		e.properties[name] = value
	}
	for _, name := range e.unset {
		switch _, both := e.properties[name]; {
		case both:
			return fault("--set-property and --unset-property exclude each other for %s", name)
		case name == "" || strings.Contains(name, "="):
			return fault("--unset-property is %q; give the name of a property", name)
		case name == protocol.PropertyDeadLetterRedrives || tidegate.ReservedProperty(name):
			return fault("--unset-property %s: the property belongs to the servers", name)
		}
	}
	m := tidegate.Message{Topic: "topic", Body: []byte{0}, Tag: e.tag, Keys: e.keys, Properties: e.properties}
	if err := m.Validate(0); err != nil {
		return fault("%v", err)
	}
	return nil
}

// errUnchanged is the error of an edit that changes nothing.
var errUnchanged = errors.New("did not change")

// apply changes a message. It returns an error that matches errUnchanged if the program does not
// change the body, or if the flags change nothing.
func (e *edits) apply(ctx context.Context, m *tidegate.Message) error {
	before := m.Clone()
	if e.program != "" {
		if err := e.run(ctx, m); err != nil {
			return err
		}
	}
	if e.given["set-tag"] || e.unsetTag {
		m.Tag = e.tag
	}
	if e.given["set-key"] || e.unsetKeys {
		m.Keys = slices.Clone(e.keys)
	}
	if m.Properties == nil {
		m.Properties = map[string]string{}
	}
	maps.Copy(m.Properties, e.properties)
	for _, name := range e.unset {
		delete(m.Properties, name)
	}
	if len(changes(before, m)) == 0 {
		return fmt.Errorf("the flags %w the message, which has these values; leave them out to send it back as it is", errUnchanged)
	}
	return nil
}

// run passes a body through the program of --edit.
func (e *edits) run(ctx context.Context, m *tidegate.Message) error {
	var stdout, stderr bytes.Buffer
	p := shell.New(ctx, e.program, nil, "TIDEGATE_MESSAGE_ID="+m.ID)
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(m.Body), &stdout, &stderr
	if err := p.Run(); err != nil {
		return fmt.Errorf("the program of --edit failed: %w: %s", err, call.LastLine(stderr.String()))
	}
	if bytes.Equal(m.Body, stdout.Bytes()) {
		return fmt.Errorf("the program of --edit %w the body; correct the program, or leave out --edit", errUnchanged)
	}
	if marked := input.Marked(stdout.Bytes()); marked != nil && input.Marked(m.Body) == nil {
		e.marked = marked
	}
	m.Body = stdout.Bytes()
	return nil
}

// noteMarks notes that the program of --edit, for example one of PowerShell, has changed the
// encoding of bodies. A body may have any bytes, so they are sent as they are.
func (e *edits) noteMarks(c *call.Call) {
	if e.marked != nil {
		c.Note("the program of --edit has changed the encoding of bodies, and receivers get them like that: %v", e.marked)
		e.marked = nil
	}
}

// changes returns the differences of two messages, one text each.
func changes(a, b *tidegate.Message) (lines []string) {
	if !bytes.Equal(a.Body, b.Body) {
		lines = append(lines, short(string(a.Body))+" -> "+short(string(b.Body)))
	}
	differ := func(name, a, b string) {
		if a != b {
			lines = append(lines, fmt.Sprintf("%s %s -> %s", name, orNone(a), orNone(b)))
		}
	}
	differ("tag", a.Tag, b.Tag)
	differ("keys", strings.Join(a.Keys, " "), strings.Join(b.Keys, " "))
	names := slices.AppendSeq(slices.Collect(maps.Keys(a.Properties)), maps.Keys(b.Properties))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		differ("property "+short(name), a.Properties[name], b.Properties[name])
	}
	return lines
}

func orNone(value string) string {
	if value == "" {
		return "none"
	}
	return short(value)
}

// short is the beginning of a body in one line.
func short(body string) string {
	const most = 200
	return output.Cut(body[:min(len(body), 8*most)], most)
}

// previews is the number of edits that a dry run shows.
const previews = 5

// preview edits the first dead letters of a dry run, and prints the differences.
func (e *edits) preview(ctx context.Context, c *call.Call, src deadletter.Source, filter deadletter.Filter) error {
	n, failed := 0, 0
	defer func() {
		e.noteMarks(c)
		if failed > 0 {
			c.Note("the edit fails for %d of the first %s; dead letters for which it fails are not sent back, and the counts below have them", failed, output.Count(int64(n), "dead letter"))
		}
	}()
	for l, err := range deadletter.List(ctx, src, filter, true) {
		if err != nil {
			return err
		}
		m := l.Message.Clone()
		var result string
		if err := e.apply(ctx, m); err != nil {
			failed++
			result = "fails: " + err.Error()
		} else {
			result = strings.Join(changes(&l.Message, m), "; ")
		}
		if _, err := fmt.Fprintf(c.Out, "%s  %s\n", output.Safe(m.ID), output.Safe(result)); err != nil {
			return err
		}
		if n++; n == previews {
			return nil
		}
	}
	return nil
}
