package tidegate

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"sync/atomic"
	"time"
)

// idEpoch is where the seconds in a message ID count from.
var idEpoch = time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)

var idHost, idSequence = newIDHost()

// newIDHost returns the random part that identifies this process. RocketMQ uses
// the network card's address; random bytes do the same for containers, whose
// addresses repeat.
func newIDHost() (host [8]byte, seq *atomic.Uint32) {
	if _, err := rand.Read(host[:6]); err != nil {
		binary.BigEndian.PutUint32(host[:4], uint32(time.Now().UnixNano()))
	}
	binary.BigEndian.PutUint16(host[6:], uint16(os.Getpid()))
	return host, new(atomic.Uint32)
}

// NewMessageID returns a new unique ID: 34 upper-case hexadecimal digits in the form of RocketMQ
// 5's message IDs, version 01 (rocketmq-clients, docs/message_id.md). Several goroutines may call
// it at the same time.
func NewMessageID() string {
	var b [17]byte
	b[0] = 1
	copy(b[1:9], idHost[:])
	binary.BigEndian.PutUint32(b[9:13], uint32(time.Since(idEpoch)/time.Second))
	binary.BigEndian.PutUint32(b[13:17], idSequence.Add(1))
	var text [2 * len(b)]byte
	for i, c := range b {
		text[2*i], text[2*i+1] = hexDigits[c>>4], hexDigits[c&15]
	}
	return string(text[:])
}

// hexDigits are upper-case, which encoding/hex does not have.
const hexDigits = "0123456789ABCDEF"
