package record

import (
	"encoding/binary"
)

// SpilledKey returns the key of the lease of a spilled message. messageGroup has at most 255 bytes.
func SpilledKey(group uint32, p Place, messageGroup string) []byte {
	k := AppendCursorKey(nil, PrefixSpilled, group, p.Topic, p.Queue)
	k = append(k, byte(len(messageGroup)))
	k = append(k, messageGroup...)
	return binary.BigEndian.AppendUint64(k, uint64(p.Offset))
}

// SplitSpilledKey reads such a key; ok is false if it is not one.
func SplitSpilledKey(k []byte) (group uint32, p Place, messageGroup string, ok bool) {
	g, t, q, ok := SplitCursorKey(k)
	if !ok || len(k) <= CursorKeyLen {
		return 0, Place{}, "", false
	}
	n := int(k[CursorKeyLen])
	rest := k[CursorKeyLen+1:]
	if len(rest) != n+8 {
		return 0, Place{}, "", false
	}
	return g, Place{Topic: t, Queue: q, Offset: int64(binary.BigEndian.Uint64(rest[n:]))}, string(rest[:n]), true
}
