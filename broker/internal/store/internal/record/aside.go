package record

import (
	"encoding/binary"
)

// AsideKey returns the key of a lease that is set aside. messageGroup has at most 255 bytes.
func AsideKey(group uint32, p Place, messageGroup string) []byte {
	k := AppendCursorKey(nil, PrefixAside, group, p.Topic, p.Queue)
	k = append(k, byte(len(messageGroup)))
	k = append(k, messageGroup...)
	return binary.BigEndian.AppendUint64(k, uint64(p.Offset))
}

// SplitAsideKey reads such a key; ok is false if it is not one.
func SplitAsideKey(k []byte) (group uint32, p Place, messageGroup string, ok bool) {
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
