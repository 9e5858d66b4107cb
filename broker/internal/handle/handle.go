// Package handle encodes and decodes the opaque texts that the broker issues to clients: receipt
// handles, recall handles and transaction IDs. All have one format: a version, and numbers of fixed
// length, in base64. Each handle has exactly one valid text, so a client cannot use two texts for
// one handle.
package handle

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	version = 1 // the first byte of each

	receiptLen     = 1 + 4 + 4 + 2 + 8 + 4
	recallLen      = 1 + 8 + 4 + 8
	transactionLen = 1 + 4 + 8
)

var (
	encoding = base64.RawURLEncoding.Strict()

	errForeign = errors.New("this broker did not issue it")
)

// A Receipt names one delivery of one message to one group.
type Receipt struct {
	Group  uint32 // its number
	Place  store.Place
	Serial uint32 // changes with every delivery and every change of the invisible duration
}

// String returns the receipt handle.
func (r Receipt) String() string {
	var b [receiptLen]byte
	binary.BigEndian.PutUint32(b[1:], r.Group)
	binary.BigEndian.PutUint32(b[5:], r.Place.Topic)
	binary.BigEndian.PutUint16(b[9:], r.Place.Queue)
	binary.BigEndian.PutUint64(b[11:], uint64(r.Place.Offset))
	binary.BigEndian.PutUint32(b[19:], r.Serial)
	return encode(b[:])
}

// ParseReceipt is the inverse of Receipt.String. The error explains why text is not a receipt
// handle.
func ParseReceipt(text string) (Receipt, error) {
	var b [receiptLen]byte
	if err := decode(b[:], text); err != nil {
		return Receipt{}, err
	}
	return Receipt{
		Group: binary.BigEndian.Uint32(b[1:]),
		Place: store.Place{
			Topic:  binary.BigEndian.Uint32(b[5:]),
			Queue:  binary.BigEndian.Uint16(b[9:]),
			Offset: int64(binary.BigEndian.Uint64(b[11:])),
		},
		Serial: binary.BigEndian.Uint32(b[19:]),
	}, nil
}

// Recall returns the handle by which a delayed message can be recalled.
func Recall(d store.Delayed) string {
	var b [recallLen]byte
	binary.BigEndian.PutUint64(b[1:], uint64(d.Due.UnixNano()))
	binary.BigEndian.PutUint32(b[9:], d.Topic)
	binary.BigEndian.PutUint64(b[13:], d.Number)
	return encode(b[:])
}

// ParseRecall is the inverse of Recall. Its errors are like those of ParseReceipt.
func ParseRecall(text string) (store.Delayed, error) {
	var b [recallLen]byte
	if err := decode(b[:], text); err != nil {
		return store.Delayed{}, err
	}
	return store.Delayed{
		Due:    time.Unix(0, int64(binary.BigEndian.Uint64(b[1:]))),
		Topic:  binary.BigEndian.Uint32(b[9:]),
		Number: binary.BigEndian.Uint64(b[13:]),
	}, nil
}

// Transaction returns the ID of the transaction of a half message, as producers see it.
func Transaction(id store.HalfID) string {
	var b [transactionLen]byte
	binary.BigEndian.PutUint32(b[1:], id.Topic)
	binary.BigEndian.PutUint64(b[5:], id.Number)
	return encode(b[:])
}

// ParseTransaction is the inverse of Transaction. Its errors are like those of ParseReceipt.
func ParseTransaction(text string) (store.HalfID, error) {
	var b [transactionLen]byte
	if err := decode(b[:], text); err != nil {
		return store.HalfID{}, err
	}
	return store.HalfID{Topic: binary.BigEndian.Uint32(b[1:]), Number: binary.BigEndian.Uint64(b[5:])}, nil
}

// encode encodes b. It sets the first byte of b to the version.
func encode(b []byte) string {
	b[0] = version
	return encoding.EncodeToString(b)
}

// decode decodes text, which must encode exactly len(b) bytes, into b. The base64 decoder skips
// line breaks and then fills only a part of b, so decode checks the number of decoded bytes.
func decode(b []byte, text string) error {
	if len(text) != encoding.EncodedLen(len(b)) {
		return fmt.Errorf("%w: it has %d characters", errForeign, len(text))
	}
	if n, err := encoding.Decode(b, []byte(text)); err != nil || n != len(b) || b[0] != version {
		return errForeign
	}
	return nil
}
