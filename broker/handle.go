package broker

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A handle names one delivery of one message to one group. Clients treat it
// as opaque.
type handle struct {
	group  uint32
	place  store.Place
	serial uint32 // changes with every delivery and every change of the invisible duration
}

const (
	handleVersion = 1
	handleLen     = 1 + 4 + 4 + 2 + 8 + 4
)

func (h handle) String() string {
	var b [handleLen]byte
	b[0] = handleVersion
	binary.BigEndian.PutUint32(b[1:], h.group)
	binary.BigEndian.PutUint32(b[5:], h.place.Topic)
	binary.BigEndian.PutUint16(b[9:], h.place.Queue)
	binary.BigEndian.PutUint64(b[11:], uint64(h.place.Offset))
	binary.BigEndian.PutUint32(b[19:], h.serial)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func parseHandle(s string) (handle, error) {
	var b [handleLen]byte
	if len(s) != base64.RawURLEncoding.EncodedLen(handleLen) {
		return handle{}, invalidHandle("it is not one of this broker's: it has %d characters", len(s))
	}
	if !decodeExactly(b[:], s) || b[0] != handleVersion {
		return handle{}, invalidHandle("it is not one of this broker's")
	}
	return handle{
		group: binary.BigEndian.Uint32(b[1:]),
		place: store.Place{
			Topic:  binary.BigEndian.Uint32(b[5:]),
			Queue:  binary.BigEndian.Uint16(b[9:]),
			Offset: int64(binary.BigEndian.Uint64(b[11:])),
		},
		serial: binary.BigEndian.Uint32(b[19:]),
	}, nil
}

// decodeExactly reads what EncodeToString of base64.RawURLEncoding wrote, and
// reports whether s is that. The decoder itself passes over line breaks, and
// then leaves the end of b as it was.
func decodeExactly(b []byte, s string) bool {
	if len(s) != base64.RawURLEncoding.EncodedLen(len(b)) {
		return false
	}
	n, err := base64.RawURLEncoding.Strict().Decode(b, []byte(s))
	return err == nil && n == len(b)
}

func invalidHandle(format string, args ...any) *tidegate.Error {
	return newError(tidegate.CodeInvalidReceiptHandle, "receipt handle", format, args...)
}
