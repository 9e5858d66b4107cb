package wire

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Messages are decoded straight from the wire. Generated structs in between would
// cost as much as all the rest of a delivery, in time and in allocations.

// Tags of the fields that a delivery has: field number and wire type, as protobuf
// writes them before a value.
const (
	kindVarint = uint64(protowire.VarintType)
	kindBytes  = uint64(protowire.BytesType)

	TagResponseStatus  = 1<<3 | kindBytes
	TagResponseMessage = 2<<3 | kindBytes
	TagResponseTime    = 3<<3 | kindBytes
	TagResponsePacked  = 1000<<3 | kindBytes

	tagMessageTopic      = 1<<3 | kindBytes
	tagMessageProperties = 2<<3 | kindBytes
	tagMessageSystem     = 3<<3 | kindBytes
	tagMessageBody       = 4<<3 | kindBytes

	tagResourceName = 2<<3 | kindBytes

	tagSystemTag          = 1<<3 | kindBytes
	tagSystemKeys         = 2<<3 | kindBytes
	tagSystemID           = 3<<3 | kindBytes
	tagSystemDigest       = 4<<3 | kindBytes
	tagSystemEncoding     = 5<<3 | kindVarint
	tagSystemBorn         = 7<<3 | kindBytes
	tagSystemBornHost     = 8<<3 | kindBytes
	tagSystemStored       = 9<<3 | kindBytes
	tagSystemStoreHost    = 10<<3 | kindBytes
	tagSystemDeliverAt    = 11<<3 | kindBytes
	tagSystemHandle       = 12<<3 | kindBytes
	tagSystemQueue        = 13<<3 | kindVarint
	tagSystemOffset       = 14<<3 | kindVarint
	tagSystemInvisible    = 15<<3 | kindBytes
	tagSystemAttempt      = 16<<3 | kindVarint
	tagSystemMessageGroup = 17<<3 | kindBytes
	tagSystemTraceContext = 18<<3 | kindBytes
	tagSystemDeadLetter   = 20<<3 | kindBytes

	// Of the small messages in these: Digest, Timestamp, Duration, DeadLetterQueue
	// and the entries of maps have two fields at most.
	tagFirstText    = 1<<3 | kindBytes
	tagSecondText   = 2<<3 | kindBytes
	tagFirstNumber  = 1<<3 | kindVarint
	tagSecondNumber = 2<<3 | kindVarint
)

// A FieldReader steps through the fields of an encoded message.
type FieldReader struct {
	Rest   []byte
	Tag    uint64
	Bytes  []byte // of a field of kindBytes; shares memory with the message
	number uint64 // of a field of kindVarint
	Err    error
}

// Next moves to the next field. It returns false at the end, or with err set if the next bytes are
// invalid protobuf.
func (r *FieldReader) Next() bool {
	if len(r.Rest) == 0 || r.Err != nil {
		return false
	}
	// Most tags, lengths and numbers are of one byte.
	b := r.Rest
	if b[0] < 0x80 && b[0] > 7 && len(b) > 1 && b[1] < 0x80 {
		value := int(b[1])
		switch r.Tag = uint64(b[0]); {
		case r.Tag&7 == kindVarint:
			r.number, r.Rest = uint64(value), b[2:]
			return true
		case r.Tag&7 == kindBytes && value <= len(b)-2:
			r.Bytes, r.Rest = b[2:2+value], b[2+value:]
			return true
		}
	}
	return r.next()
}

// next is Next for fields of all kinds and sizes.
func (r *FieldReader) next() bool {
	num, kind, n := protowire.ConsumeTag(r.Rest)
	if n >= 0 {
		r.Rest = r.Rest[n:]
		r.Tag = uint64(num)<<3 | uint64(kind)
		switch kind {
		case protowire.BytesType:
			r.Bytes, n = protowire.ConsumeBytes(r.Rest)
		case protowire.VarintType:
			r.number, n = protowire.ConsumeVarint(r.Rest)
		default:
			n = protowire.ConsumeFieldValue(num, kind, r.Rest)
		}
	}
	if n < 0 {
		r.Err = protowire.ParseError(n)
		return false
	}
	r.Rest = r.Rest[n:]
	return true
}

// A Parsed is a received message without its body.
type Parsed struct {
	Delivery  *tidegate.Delivery // without the body
	Invisible time.Duration      // remaining invisible time; 0 if the server does not send it

	// These share memory with the frame.
	body     []byte
	checksum []byte
	digest   rmqpb.DigestType
	encoding rmqpb.Encoding
}

// A Decoder decodes the messages of one receive. A text that the message before
// had too is shared with it.
type Decoder struct {
	topic, tag, bornHost, storeHost, messageGroup string
}

// share returns b as a string, *last if it is the same.
func share(last *string, b []byte) (string, error) {
	if *last != string(b) {
		s, err := text(b)
		if err != nil {
			return "", err
		}
		*last = s
	}
	return *last, nil
}

var errNotUTF8 = errors.New("a text is not UTF-8")

func text(b []byte) (string, error) {
	if !utf8.Valid(b) {
		return "", errNotUTF8
	}
	return string(b), nil
}

// Parse reads an encoded Message. Its result shares memory with raw.
func (d *Decoder) Parse(raw []byte) (Parsed, error) {
	p := Parsed{Delivery: &tidegate.Delivery{}}
	r := FieldReader{Rest: raw}
	for r.Next() {
		var err error
		switch r.Tag {
		case tagMessageTopic:
			err = d.resource(p.Delivery, r.Bytes)
		case tagMessageProperties:
			var k, v string
			if k, v, err = twoTexts(r.Bytes); err == nil {
				if p.Delivery.Properties == nil {
					p.Delivery.Properties = map[string]string{}
				}
				p.Delivery.Properties[k] = v
			}
		case tagMessageSystem:
			err = d.system(&p, r.Bytes)
		case tagMessageBody:
			p.body = r.Bytes
		}
		if err != nil {
			return p, err
		}
	}
	p.Delivery.Attempt = max(p.Delivery.Attempt, 1)
	takeServerProperties(p.Delivery)
	return p, r.Err
}

func (d *Decoder) resource(out *tidegate.Delivery, raw []byte) (err error) {
	r := FieldReader{Rest: raw}
	for r.Next() && err == nil {
		if r.Tag == tagResourceName {
			out.Topic, err = share(&d.topic, r.Bytes)
		}
	}
	return cmp.Or(err, r.Err)
}

// system reads SystemProperties.
func (d *Decoder) system(p *Parsed, raw []byte) (err error) {
	out := p.Delivery
	r := FieldReader{Rest: raw}
	for err == nil && r.Next() {
		switch r.Tag {
		case tagSystemTag:
			out.Tag, err = share(&d.tag, r.Bytes)
		case tagSystemKeys:
			var k string
			k, err = text(r.Bytes)
			out.Keys = append(out.Keys, k)
		case tagSystemID:
			out.ID, err = text(r.Bytes)
		case tagSystemDigest:
			err = p.readDigest(r.Bytes)
		case tagSystemEncoding:
			p.encoding = rmqpb.Encoding(int32(r.number))
		case tagSystemBorn:
			out.BornAt, err = Moment(r.Bytes)
		case tagSystemBornHost:
			out.BornHost, err = share(&d.bornHost, r.Bytes)
		case tagSystemStored:
			out.StoredAt, err = Moment(r.Bytes)
		case tagSystemStoreHost:
			out.StoreHost, err = share(&d.storeHost, r.Bytes)
		case tagSystemDeliverAt:
			out.DeliverAt, err = Moment(r.Bytes)
		case tagSystemHandle:
			out.Handle, err = text(r.Bytes)
		case tagSystemQueue:
			out.Queue = int(int32(r.number))
		case tagSystemOffset:
			out.Offset = int64(r.number)
		case tagSystemInvisible:
			p.Invisible, err = span(r.Bytes)
		case tagSystemAttempt:
			out.Attempt = int(int32(r.number))
		case tagSystemMessageGroup:
			out.MessageGroup, err = share(&d.messageGroup, r.Bytes)
		case tagSystemTraceContext:
			out.TraceContext, err = text(r.Bytes)
		case tagSystemDeadLetter:
			var topic, id string
			if topic, id, err = twoTexts(r.Bytes); err == nil {
				p.setOrigin(topic, id)
			}
		}
	}
	return cmp.Or(err, r.Err)
}

// setOrigin sets the origin of a dead letter. Properties with the origin have priority.
func (p *Parsed) setOrigin(topic, id string) {
	if p.Delivery.Properties == nil {
		p.Delivery.Properties = map[string]string{}
	}
	setIfMissing(p.Delivery.Properties, protocol.PropertyDeadLetterTopic, topic)
	setIfMissing(p.Delivery.Properties, protocol.PropertyDeadLetterMessageID, id)
}

func (p *Parsed) readDigest(raw []byte) error {
	r := FieldReader{Rest: raw}
	for r.Next() {
		switch r.Tag {
		case tagFirstNumber:
			p.digest = rmqpb.DigestType(int32(r.number))
		case tagSecondText:
			p.checksum = r.Bytes
		}
	}
	return r.Err
}

// twoTexts reads a message of two texts.
func twoTexts(raw []byte) (first, second string, err error) {
	r := FieldReader{Rest: raw}
	for err == nil && r.Next() {
		switch r.Tag {
		case tagFirstText:
			first, err = text(r.Bytes)
		case tagSecondText:
			second, err = text(r.Bytes)
		}
	}
	return first, second, cmp.Or(err, r.Err)
}

// numbers reads a Timestamp or a Duration.
func numbers(raw []byte) (seconds, nanos int64, err error) {
	r := FieldReader{Rest: raw}
	for r.Next() {
		switch r.Tag {
		case tagFirstNumber:
			seconds = int64(r.number)
		case tagSecondNumber:
			nanos = int64(int32(r.number))
		}
	}
	return seconds, nanos, r.Err
}

// The bounds of protobuf's Timestamp and Duration, in seconds.
const (
	firstSecond = -62_135_596_800 // 0001-01-01T00:00:00Z
	lastSecond  = 253_402_300_799 // 9999-12-31T23:59:59Z
	mostSeconds = 315_576_000_000 // 10 000 years
)

// Moment reads a Timestamp; one that is out of range is the zero time.
func Moment(raw []byte) (time.Time, error) {
	seconds, nanos, err := numbers(raw)
	if err != nil || seconds < firstSecond || seconds > lastSecond || nanos < 0 || nanos >= int64(time.Second) {
		return time.Time{}, err
	}
	return time.Unix(seconds, nanos).UTC(), nil
}

// span reads a Duration; one that is out of range or negative is 0.
func span(raw []byte) (time.Duration, error) {
	seconds, nanos, err := numbers(raw)
	if err != nil || seconds < 0 || seconds > mostSeconds || nanos < 0 || nanos >= int64(time.Second) {
		return 0, err
	}
	if seconds >= int64(math.MaxInt64/time.Second) {
		return math.MaxInt64, nil
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos), nil
}

// Unpack checks the body, decompresses it and gives it to the delivery, in memory of its own.
// A body that does not match its digest, cannot be decompressed or is larger
// than maxBody before or after that is an error, and so is a delivery that could
// never be settled.
func (p *Parsed) Unpack(maxBody int) error {
	if p.Delivery.Handle == "" {
		return errors.New("the message has no receipt handle")
	}
	if n := len(p.body); n > maxBody {
		return fmt.Errorf("the body has %d bytes; the limit is %d (Options.MaxReceiveSize), raise it to receive the message", n, maxBody)
	}
	if err := checkDigest(p.body, p.digest, p.checksum); err != nil {
		return err
	}
	if p.encoding == rmqpb.Encoding_GZIP {
		body, err := decompress(p.body, maxBody)
		p.Delivery.Body = body
		return err
	}
	if p.body != nil {
		p.Delivery.Body = append(make([]byte, 0, len(p.body)), p.body...)
	}
	return nil
}
