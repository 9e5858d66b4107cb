package refusal

import "time"

const (
	// MaxMany bounds the messages, entries or handles of one request.
	MaxMany = 1000

	// MaxReceive is the most messages in one receive (RocketMQ: 32).
	MaxReceive = 32

	// MaxMessageID, MaxTraceContext and MaxBornHost are lengths that RocketMQ does
	// not bound, but that are kept with each message, in bytes.
	MaxMessageID    = 255
	MaxTraceContext = 4 << 10
	MaxBornHost     = 255
)

// LastYear is the last that times may be in which are kept as nanoseconds since 1970.
const LastYear = 2200

var latest = time.Date(LastYear, 1, 1, 0, 0, 0, 0, time.UTC)

// Storable reports whether a time can be kept as nanoseconds since 1970.
func Storable(t time.Time) bool { return !t.Before(time.Unix(0, 0)) && !t.After(latest) }
