package store

import (
	"bytes"
	"time"

	"github.com/tidegate/tidegate"
)

// sampleMessage returns a message of which no field is zero.
func sampleMessage() Message {
	return Message{
		Message: tidegate.Message{
			ID: "id", Topic: "", Tag: "t", Keys: []string{"k1", ""}, MessageGroup: "g",
			Properties: map[string]string{"a": "1"}, TraceContext: "trace", DeliverAt: time.Unix(5, 6), Body: []byte("body"),
		},
		Cumulative: 1 << 40, BornAt: time.Unix(1, 2), BornHost: "h", StoredAt: time.Unix(3, 4),
	}
}

// equalMessages compares messages of at most one property each by their records.
func equalMessages(a, b Message) bool { return bytes.Equal(a.AppendTo(nil), b.AppendTo(nil)) }
