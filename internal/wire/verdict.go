package wire

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// A ChangeInvisibleDuration and a ForwardMessageToDeadLetterQueue have no fields for a verdict, so
// headers have them. The headers of a verdict are written and read here, as is its result, a
// trailer.

const fateDeadLetter, fateParked = "dead-letter", "parked"

// Features of a server that takes further verdicts.
const (
	FeatureSnooze    = "snooze"
	FeatureReconsume = "reconsume"
)

// VerdictFeatures has the verdicts that a server takes if it announces a feature. Each server takes
// a Retry and a DeadLetter.
var VerdictFeatures = map[string]transport.VerdictKind{
	FeatureSnooze:    transport.Snooze,
	FeatureReconsume: transport.RetryTopic | transport.NegativeAck,
}

// VerdictHeaders returns the names and values of the headers of a request with a verdict. A Retry
// or DeadLetter has a header for an empty reason too: it tells a tidegate broker that the client
// discards the handle afterwards. RocketMQ's clients send none, and the broker does not report to
// them that the handle is not valid.
func VerdictHeaders(v transport.Verdict) []string {
	switch v.Kind {
	case transport.Retry, transport.DeadLetter:
		headers := []string{HeaderReason, encodeReason(v.Reason)}
		if v.Kind == transport.Retry && v.Delay == transport.BySchedule {
			headers = append(headers, HeaderLadder, "true")
		}
		return headers
	case transport.Snooze:
		return []string{HeaderSnooze, "true"}
	case transport.NegativeAck:
		return []string{HeaderReconsume, "negative"}
	case transport.RetryTopic:
		switch {
		case v.Level != 0:
			return []string{HeaderReconsume, "level=" + strconv.Itoa(v.Level)}
		case v.Delay != 0:
			return []string{HeaderReconsume, "delay"}
		}
		return []string{HeaderReconsume, "next"}
	}
	return nil
}

// ChangeVerdict returns the verdict of a ChangeInvisibleDuration with a delay, as an SDK with
// VerdictHeaders and a RocketMQ client send it. header returns the first value of a request header,
// or "". failed is whether a request without a header reports a failure; otherwise ok is false for
// it: it changes the invisible duration. The error is that of a value of HeaderReconsume.
func ChangeVerdict(header func(name string) string, delay time.Duration, failed bool) (v transport.Verdict, ok bool, err error) {
	// A delay that is too short is that, and nothing else.
	v = transport.Verdict{Kind: transport.Retry, Delay: max(delay, transport.BySchedule+1)}
	value := header(HeaderReconsume)
	switch {
	case header(HeaderSnooze) != "":
		v.Kind = transport.Snooze
	case value != "":
		v, err = reconsumed(value, v.Delay)
	case !failed:
		return v, false, nil
	default:
		v.Reason = VerdictReason(header(HeaderReason))
		if header(HeaderLadder) == "true" {
			v.Delay = transport.BySchedule
		}
	}
	return v, true, err
}

// reconsumed parses HeaderReconsume. The values "negative" and "delay" use the invisible duration;
// "level=3" and "next" do not.
func reconsumed(value string, delay time.Duration) (v transport.Verdict, err error) {
	v.Kind = transport.RetryTopic
	level, isLevel := strings.CutPrefix(value, "level=")
	switch {
	case value == "next":
		return v, nil
	case value == "delay" && delay != 0:
		v.Delay = delay
		return v, nil
	case value == "negative":
		v.Kind, v.Delay = transport.NegativeAck, delay
		return v, nil
	case isLevel:
		if v.Level, err = strconv.Atoi(level); err == nil && v.Level != 0 {
			return v, nil
		}
	}
	return v, fmt.Errorf("the header %s is %.40q; give next, level=1 and so on, delay with an invisible duration above 0, or negative", HeaderReconsume, value)
}

// VerdictReason decodes HeaderReason, as valid UTF-8 of at most MaxReason bytes. A text with
// invalid percent-encoding is used unchanged.
func VerdictReason(value string) string {
	text, err := url.PathUnescape(value)
	if err != nil {
		text = value
	}
	return BoundReason(text)
}

// MaxReason bounds the reason of a dead letter in bytes, and HeaderReason, after encoding.
const MaxReason = 1 << 10

// BoundReason returns a reason as it is kept: valid UTF-8 of at most MaxReason bytes.
func BoundReason(reason string) string {
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	if len(reason) > MaxReason {
		reason = strings.ToValidUTF8(reason[:MaxReason], "")
	}
	return reason
}

// encodeReason encodes a reason for a header: characters other than printable ASCII are
// percent-encoded, and a long text is cut off between two characters.
func encodeReason(reason string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for _, r := range reason {
		var part []byte
		for _, c := range []byte(string(r)) {
			if c > ' ' && c <= '~' && c != '%' {
				part = append(part, c)
			} else {
				part = append(part, '%', hexDigits[c>>4], hexDigits[c&15])
			}
		}
		if b.Len()+len(part) > MaxReason {
			break
		}
		b.Write(part)
	}
	return b.String()
}

// FormatResult returns the value of TrailerRetry: the milliseconds until the next delivery, rounded
// up, or that there is none. It is "" if the fate is unknown; then there is no trailer.
func FormatResult(r transport.RetryResult) string {
	switch r.Fate {
	case transport.FateAgain:
		return strconv.FormatInt(int64((r.Delay+time.Millisecond-1)/time.Millisecond), 10)
	case transport.FateDeadLetter:
		return fateDeadLetter
	case transport.FateParked:
		return fateParked
	}
	return ""
}

// ParseResult reads the values of TrailerRetry. The last value belongs to the response.
func ParseResult(values []string) (r transport.RetryResult) {
	if len(values) == 0 {
		return r
	}
	switch text := values[len(values)-1]; text {
	case fateDeadLetter:
		r.Fate = transport.FateDeadLetter
	case fateParked:
		r.Fate = transport.FateParked
	default:
		ms, err := strconv.ParseInt(text, 10, 64)
		if err == nil && ms >= 0 && ms <= math.MaxInt64/int64(time.Millisecond) {
			r.Fate, r.Delay = transport.FateAgain, time.Duration(ms)*time.Millisecond
		}
	}
	return r
}
