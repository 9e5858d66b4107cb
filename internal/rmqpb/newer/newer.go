// Package newer changes messages as a newer version of the protocol would: it sets enums to unknown
// values, and adds unknown fields. It has pure functions, and is for tests: those of the codec, of
// the client and of the broker try all places of the messages that they read.
package newer

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Change is a difference at one place of a message.
type Change struct {
	// Place is the path of an enum, such as "entries.status.code", or the path of a message that
	// gets fields, with an asterisk: "entries.status.*".
	Place string

	// Enum is the name of the enum, such as "Code". It is empty for fields.
	Enum string

	path []protoreflect.FieldDescriptor
}

// Changes returns the changes of a message of m's type: one for each enum, and one for each message
// in it and for itself. Maps have none. The type must not contain itself.
func Changes(m proto.Message) []Change {
	return changes(nil, "", nil, m.ProtoReflect().Descriptor())
}

func changes(list []Change, place string, path []protoreflect.FieldDescriptor, of protoreflect.MessageDescriptor) []Change {
	list = append(list, Change{Place: place + "*", path: path})
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		at, to := place+string(f.Name()), slices.Concat(path, []protoreflect.FieldDescriptor{f})
		switch {
		case f.IsMap():
		case f.Enum() != nil:
			list = append(list, Change{Place: at, Enum: string(f.Enum().Name()), path: to})
		case f.Message() != nil:
			list = changes(list, at+".", to, f.Message())
		}
	}
	return list
}

// Apply changes m: it sets the enum to value, or adds a field of each kind. Of a list it changes the
// first element, except for a list of enums, which gets this value alone. Apply returns false, and
// leaves m as it is, if m does not have the place, because a message around it is not set.
func (c Change) Apply(m proto.Message, value int32) bool {
	r, path := m.ProtoReflect(), c.path
	if c.Enum != "" {
		path = path[:len(path)-1]
	}
	for _, f := range path {
		switch {
		case !r.Has(f):
			return false
		case f.IsList():
			r = r.Get(f).List().Get(0).Message()
		default:
			r = r.Get(f).Message()
		}
	}
	if c.Enum == "" {
		r.SetUnknown(append(r.GetUnknown(), fields...))
		return true
	}
	f, n := c.path[len(path)], protoreflect.ValueOfEnum(protoreflect.EnumNumber(value))
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && r.WhichOneof(o) != f {
		return false
	}
	if f.IsList() {
		l := r.Mutable(f).List()
		l.Truncate(0)
		l.Append(n)
		return true
	}
	r.Set(f, n)
	return true
}

// Complete sets the messages in m that are not set, so that m has all places, and adds an element to
// each list of messages that is empty. Of a oneof it sets the first message, unless a member is set.
func Complete(m proto.Message) { complete(m.ProtoReflect()) }

func complete(r protoreflect.Message) {
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.IsMap() {
			continue
		}
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && r.WhichOneof(o) != nil && r.WhichOneof(o) != f {
			continue
		}
		if !f.IsList() {
			complete(r.Mutable(f).Message())
			continue
		}
		l := r.Mutable(f).List()
		if l.Len() == 0 {
			l.AppendMutable()
		}
		complete(l.Get(0).Message())
	}
}

// fields are encoded fields of each kind, with numbers that neither RocketMQ nor tidegate uses.
var fields = func() []byte {
	const first = 4000
	b := protowire.AppendVarint(protowire.AppendTag(nil, first, protowire.VarintType), 1<<40)
	b = protowire.AppendFixed32(protowire.AppendTag(b, first+1, protowire.Fixed32Type), 1)
	b = protowire.AppendFixed64(protowire.AppendTag(b, first+2, protowire.Fixed64Type), 2)
	b = protowire.AppendString(protowire.AppendTag(b, first+3, protowire.BytesType), "newer")
	return protowire.AppendTag(protowire.AppendTag(b, first+4, protowire.StartGroupType), first+4, protowire.EndGroupType)
}()
