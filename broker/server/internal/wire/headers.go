package wire

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/transport"
)

// Names of headers that RocketMQ's clients send.
const (
	HeaderAuthorization = "authorization"
	HeaderDateTime      = "x-mq-date-time"
	HeaderClientID      = "x-mq-client-id"
	HeaderLanguage      = "x-mq-language"
	HeaderClientVersion = "x-mq-client-version"
)

// Metadata that tidegate's broker and its SDK agree on.
const (
	HeaderFeatures = "x-tidegate-features"
	HeaderReason   = "x-tidegate-reason"
	// HeaderRepeat marks a request whose response was lost. For ChangeInvisibleDuration the handle
	// may have been replaced since. For ReceiveMessage it requests the deliveries of the receive
	// with the same attempt ID, and no new ones.
	HeaderRepeat    = "x-tidegate-repeat"
	HeaderLadder    = "x-tidegate-ladder"    // of a failure: the broker's own interval holds
	HeaderSnooze    = "x-tidegate-snooze"    // of ChangeInvisibleDuration: it ends the delivery, whose attempt does not count
	HeaderMaxBytes  = "x-tidegate-max-bytes" // of ReceiveMessage: ReceiveRequest.MaxBytes
	HeaderReconsume = "x-tidegate-reconsume" // of ChangeInvisibleDuration: see ReconsumeMode
	TrailerPushBack = "grpc-retry-pushback-ms"
	// TrailerPushBacks is TrailerPushBack for each run of messages with the same topic, joined by
	// commas; 0 means none. It is for a SendMessage with several topics.
	TrailerPushBacks = "x-tidegate-pushback-topics"
	TrailerRetry     = "x-tidegate-retry"
	// TrailerWatched is true if a receive has left a watch: the Telemetry stream reports when there
	// may be another message.
	TrailerWatched = "x-tidegate-watched"
)

// Names of the streaming RPCs, except for PullMessage, which is rejected.
const (
	RPCReceive   = "ReceiveMessage"
	RPCTelemetry = "Telemetry"
)

// Features are the headers of every response: the extensions of this broker beyond RocketMQ. They
// are shared and never changed. SingleFeatures lack "topics".
var (
	Features       = metadata.Pairs(HeaderFeatures, singleFeatures+", topics")
	SingleFeatures = metadata.Pairs(HeaderFeatures, singleFeatures)
)

// Watched is the trailer of a receive that has left a watch. It is shared and never changed.
var Watched = metadata.Pairs(TrailerWatched, "true")

const singleFeatures = "batch, pushback, suspend, deadletter, retry, repeat, snooze, reconsume, packed, brief, watch, heartbeats, queues"

// Features that a client announces.
const (
	FeaturePacked = "packed" // it reads many messages in one frame of a receive
	FeatureTopics = "topics" // the messages of its SendMessage can have different topics
	FeatureWatch  = "watch"  // of Telemetry: it reads the topics of watches; of ReceiveMessage: it asks for a watch
	FeatureBrief  = "brief"  // an AckMessage whose entries all succeeded needs no entries in the response

	// FeatureHeartbeats of Heartbeat: it counts for all clients with a Telemetry stream on its
	// connection. Of Telemetry: the client may share such heartbeats, and sends its settings again
	// when the server asks for them.
	FeatureHeartbeats = "heartbeats"
)

// maxReason bounds the reason of a dead letter, in bytes.
const maxReason = 1 << 10

// Header returns the first value of a request header, or "".
func Header(ctx context.Context, name string) string {
	if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// BySchedule reports whether the client leaves the retry interval to the broker.
func BySchedule(ctx context.Context) bool { return Header(ctx, HeaderLadder) == "true" }

// ReconsumeMode parses the header that makes a ChangeInvisibleDuration the end of a failed
// delivery: "next", "level=3", or "delay" and "negative", whose delay is the request's invisible
// duration.
func ReconsumeMode(value string, delay time.Duration) (m transport.ReconsumeMode, err error) {
	level, isLevel := strings.CutPrefix(value, "level=")
	switch {
	case value == "next":
	case value == "delay" && delay != 0:
		m.Delay = delay
	case value == "negative":
		m.Delay, m.Negative = delay, true
	case isLevel:
		if m.Level, err = strconv.Atoi(level); err == nil && m.Level != 0 {
			break
		}
		fallthrough
	default:
		return m, refusal.New(tidegate.CodeBadRequest, HeaderReconsume,
			fmt.Sprintf("the header %s is %.40q; give next, level=1 and so on, delay with an invisible duration above 0, or negative", HeaderReconsume, value))
	}
	return m, nil
}

// MaxBytes returns the maximum size of the bodies of a receive that the client requests, or 0 if it
// requests none.
func MaxBytes(ctx context.Context) (int, error) {
	text := Header(ctx, HeaderMaxBytes)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, refusal.New(tidegate.CodeBadRequest, HeaderMaxBytes,
			fmt.Sprintf("the header %s is %.40q; give a number of bytes, or 0 for no bound", HeaderMaxBytes, text))
	}
	return n, nil
}

// Announces reports whether the client announces a feature of its own.
func Announces(ctx context.Context, feature string) bool {
	for _, v := range metadata.ValueFromIncomingContext(ctx, HeaderFeatures) {
		for name := range strings.SplitSeq(v, ",") {
			if strings.TrimSpace(name) == feature {
				return true
			}
		}
	}
	return false
}

// Reason returns the client's reason for a dead letter, and whether the request has one. A text
// with invalid percent-encoding is used unchanged.
func Reason(ctx context.Context) (string, bool) {
	v := metadata.ValueFromIncomingContext(ctx, HeaderReason)
	if len(v) == 0 {
		return "", false
	}
	text, err := url.PathUnescape(v[0])
	if err != nil {
		text = v[0]
	}
	return Bounded(text), true
}

// Bounded returns a reason as it is kept: valid UTF-8 of at most 1 KiB.
func Bounded(reason string) string {
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return reason
}

// PeerAddress returns the address of the client of a gRPC request, or an empty text if it has none.
func PeerAddress(ctx context.Context) string {
	if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
		return from.Addr.String()
	}
	return ""
}

// Before503 reports whether a client's version is below 5.0.3, which is when
// clients learnt ILLEGAL_POLLING_TIME. Versions that cannot be read are new.
func Before503(version string) bool {
	v, ok := strings.CutPrefix(version, "5.0.")
	if !ok || v == "" {
		return false
	}
	return v[0] >= '0' && v[0] <= '2' && (len(v) == 1 || v[1] < '0' || v[1] > '9')
}

// PushBack returns the trailer with d, rounded up to a millisecond.
func PushBack(d time.Duration) metadata.MD {
	return metadata.Pairs(TrailerPushBack, milliseconds(d))
}

// PushBacks returns the trailer with the wait of each topic, rounded up to a millisecond.
func PushBacks(waits []time.Duration) metadata.MD {
	text := make([]string, len(waits))
	for i, d := range waits {
		text[i] = milliseconds(d)
	}
	return metadata.Pairs(TrailerPushBacks, strings.Join(text, ","))
}

// RetryResult returns the trailer with the fate of a failed message: the milliseconds until the
// next delivery, rounded up, or that there is none. It returns nil if the fate is unknown.
func RetryResult(r transport.RetryResult) metadata.MD {
	switch r.Fate {
	case transport.FateAgain:
		return metadata.Pairs(TrailerRetry, milliseconds(r.Delay))
	case transport.FateDeadLetter:
		return metadata.Pairs(TrailerRetry, "dead-letter")
	case transport.FateParked:
		return metadata.Pairs(TrailerRetry, "parked")
	}
	return nil
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
