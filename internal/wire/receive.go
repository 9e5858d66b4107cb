package wire

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Deliveries are the messages of a ReceiveMessage stream in the form of the wire, as protobuf would
// make them of ReceiveMessageResponse. They are encoded without generated structs in between, and
// large bodies are not copied. The zero value is ready; one goroutine at a time uses it.
type Deliveries struct {
	Namespace string // of the topics, as the client names them

	// Packed puts many messages into one frame. The last frame also has the time of the encoding
	// and the status OK. It is for clients that announce FeaturePacked.
	Packed bool

	// Begun is when the request arrived. The last packed frame then also has the time from Begun to
	// the encoding, in microseconds. It is for clients that announce FeatureStream.
	Begun time.Time

	// CRC has digests of the kind CRC32, which cost less than MD5: for clients whose form
	// of it is known.
	CRC bool

	list []Frame
	of   int       // how many deliveries list is of
	more bool      // list is not the last part of the response
	at   time.Time // of the encoding: remaining invisible times count from here

	encoder encoder
	head    []byte       // of all frames, except for large bodies
	room    *[]byte      // of Pool; head has its memory unless it grew
	bufs    []mem.Buffer // of all frames; nil for the next part of head until encode ends
	cuts    []int        // where in head these parts end
	frame   int          // where in bufs the frame begins that is being made
	size    int          // of that frame, in bytes
}

// A Frame is one encoded message of a stream; [Codec] takes it as it is.
type Frame struct{ data mem.BufferSlice }

// maxFrameAge is the maximum age of frames when they are sent, because they contain remaining
// invisible times.
const maxFrameAge = 20 * time.Millisecond

// maxPacked is from how many bytes on a packed frame takes no further message.
const maxPacked = 1 << 20

// maxCopied is the maximum size of a body that is copied into the buffer of its message: a copy
// costs less than a further buffer.
const maxCopied = 4 << 10

// headRoom is the approximate size of a frame without the body.
const headRoom = 512

// Prepare encodes ds while the engine writes that it hands them out. With more, further parts of
// the packed response follow, so the last frame has no status.
func (f *Deliveries) Prepare(ds []*tidegate.Delivery, more bool) {
	f.more = more
	_ = f.encode(ds) // Frames gets the error again, and returns it
}

// Frames returns the frames of ds, one for each unless they are Packed: those that Prepare made,
// if it made them of these and not too long ago. They refer to the bodies of ds. It
// fails if a text is not UTF-8, which protobuf does not take.
func (f *Deliveries) Frames(ds []*tidegate.Delivery) ([]Frame, error) {
	if f.of != len(ds) || time.Since(f.at) > maxFrameAge {
		if err := f.encode(ds); err != nil {
			return nil, err
		}
	}
	return f.list, nil
}

// At returns the time of the encoding, from which the remaining invisible times count.
func (f *Deliveries) At() time.Time { return f.at }

// Forget drops the frames of Prepare.
func (f *Deliveries) Forget() { f.list, f.of, f.bufs, f.head, f.room = nil, 0, nil, nil, nil }

// encode makes the frames of ds, in place of those that there were.
func (f *Deliveries) encode(ds []*tidegate.Delivery) error {
	f.Forget()
	f.at = time.Now()
	f.frame, f.size, f.cuts = 0, 0, f.cuts[:0]
	f.bufs = make([]mem.Buffer, 0, 2*len(ds)+2) // enough for all: frames refer to it
	room := headRoom * len(ds)
	for _, d := range ds {
		if len(d.Body) <= maxCopied {
			room += len(d.Body)
		}
	}
	f.room = Pool.Get(room)
	f.head = (*f.room)[:0]
	if !f.Packed {
		f.list = make([]Frame, 0, len(ds))
	}
	for _, d := range ds {
		if err := f.add(d); err != nil {
			f.list = nil
			return err
		}
		if !f.Packed || f.size >= maxPacked {
			f.endFrame()
		}
	}
	if f.Packed {
		f.head = appendMoment(f.head, TagResponseTime, f.at.Unix(), f.at.Nanosecond())
		if !f.Begun.IsZero() {
			f.head = protowire.AppendVarint(f.head, TagResponseWaited)
			f.head = protowire.AppendVarint(f.head, uint64(max(f.at.Sub(f.Begun), 0).Microseconds())) //nolint:gosec // not negative
		}
		if !f.more {
			f.endRun()
			f.bufs = append(f.bufs, okStatus)
		}
		f.endFrame()
	}
	f.cut()
	f.of = len(ds)
	return nil
}

// endRun makes a buffer of the part of head that is in no buffer yet.
func (f *Deliveries) endRun() {
	begin := 0
	if n := len(f.cuts); n > 0 {
		begin = f.cuts[n-1]
	}
	if begin < len(f.head) {
		f.bufs = append(f.bufs, nil)
		f.cuts = append(f.cuts, len(f.head))
	}
}

// cut gives the buffers of head their memory, which goes back to the pool when gRPC has
// written all of them.
func (f *Deliveries) cut() {
	*f.room = f.head
	rest, begin, next := mem.NewBuffer(f.room, Pool), 0, 0
	for i, b := range f.bufs {
		if b != nil {
			continue
		}
		if next == len(f.cuts)-1 {
			f.bufs[i] = rest
			return
		}
		f.bufs[i], rest = mem.SplitUnsafe(rest, f.cuts[next]-begin)
		begin = f.cuts[next]
		next++
	}
}

// endFrame makes a frame of the buffers since the last one.
func (f *Deliveries) endFrame() {
	f.endRun()
	f.list = append(f.list, Frame{f.bufs[f.frame:len(f.bufs):len(f.bufs)]})
	f.frame, f.size = len(f.bufs), 0
}

// okStatus is a ReceiveMessageResponse with the status OK, encoded.
var okStatus = func() mem.Buffer {
	b, err := proto.Marshal(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: OK}})
	if err != nil {
		panic(err) // it is constant
	}
	return mem.SliceBuffer(b)
}()

func (f *Deliveries) add(d *tidegate.Delivery) error {
	user, dead := deadLetterQueue(d.Properties)
	p := system{
		kind: TypeOf(&d.Message), encoding: rmqpb.Encoding_IDENTITY, born: d.BornAt, bornHost: d.BornHost, queue: d.Queue,
		delivery: d, digest: rmqpb.DigestType_MD5, at: f.at, dead: dead,
	}
	if p.born.IsZero() {
		p.born = time.Unix(0, 0) // RocketMQ's value of an unknown time
	}
	if f.CRC {
		p.digest = rmqpb.DigestType_CRC32
	}
	e := &f.encoder
	e.other = false
	e.begin(&d.Message, user, &p)
	// RocketMQ's consumers find these among the properties.
	if d.MessageGroup != "" {
		e.property(protocol.PropertyMessageGroup, d.MessageGroup)
	}
	if d.TransactionID != "" {
		e.property(protocol.PropertyTransactionID, d.TransactionID)
	}
	tag := TagResponseMessage
	if f.Packed {
		tag = TagResponsePacked
	}
	start := len(f.head)
	f.head = e.message(f.head, tag, f.Namespace, d.Topic, len(d.Body))
	if e.other {
		return fmt.Errorf("message %q of queue %d, offset %d: %w", d.ID, d.Queue, d.Offset, errNotUTF8)
	}
	copied := len(d.Body) <= maxCopied
	if copied {
		f.head = append(f.head, d.Body...)
	}
	f.size += len(f.head) - start
	if !copied {
		f.endRun()
		f.bufs = append(f.bufs, mem.SliceBuffer(d.Body))
		f.size += len(d.Body)
	}
	return nil
}

var errNotUTF8 = errors.New("a name, key or property is not UTF-8, so the message cannot be encoded")

// A ReceivedFrame is one encoded ReceiveMessageResponse. It is to be freed.
type ReceivedFrame struct {
	Data []byte
	room *[]byte // of frameRooms, that data lies in; nil: of none
}

// maxRoom is the size in bytes of the largest frame whose memory is used again.
const maxRoom = 2 << 20

// frameRooms has memory for frames. gRPC's own pool clears the memory that it gives out,
// which for small frames takes as long as reading them.
var frameRooms = sync.Pool{New: func() any { return new([]byte) }}

func newFrame(data mem.BufferSlice) ReceivedFrame {
	n := data.Len()
	if n > maxRoom {
		return ReceivedFrame{Data: data.Materialize()}
	}
	room := frameRooms.Get().(*[]byte)
	if cap(*room) < n {
		*room = make([]byte, max(n, min(2*cap(*room), maxRoom)))
	}
	f := ReceivedFrame{Data: (*room)[:n], room: room}
	data.CopyTo(f.Data)
	return f
}

// Free gives the frame's memory back. The frame and its parts are not used afterwards.
func (f *ReceivedFrame) Free() {
	if f.room != nil {
		frameRooms.Put(f.room)
	}
	*f = ReceivedFrame{}
}

// Unreadable is the error that gRPC has for a frame that is no protobuf.
func Unreadable(err error) error {
	return status.Errorf(codes.Internal, "a frame of the response is not a ReceiveMessageResponse: %v", err)
}

// A Decoder decodes the messages of one receive. The zero value is ready.
type Decoder struct {
	decoder
	message received
	parts   delivered
}

// A Parsed is a received message without its body.
type Parsed struct {
	Delivery  *tidegate.Delivery // without the body
	Invisible time.Duration      // remaining invisible time; 0 if the server does not send it

	body     []byte // shares memory with the frame
	digest   *rmqpb.Digest
	encoding rmqpb.Encoding
}

// Parse decodes a Message. Its result holds until the next call, and shares memory with raw, except
// for the delivery.
func (d *Decoder) Parse(raw []byte) (Parsed, error) {
	m := &d.message
	m.message, m.system, d.more = rmqpb.Message{}, rmqpb.SystemProperties{}, &d.parts
	m.head, m.message.Body = splitBody(raw)
	if !d.decode(m, string(m.head)) {
		if err := proto.Unmarshal(raw, &m.message); err != nil {
			return Parsed{Delivery: deliveryOf(&m.message)}, err
		}
	}
	return parsedOf(&m.message), nil
}

func parsedOf(pb *rmqpb.Message) Parsed {
	p := Parsed{Delivery: deliveryOf(pb), body: pb.GetBody()}
	sys := pb.GetSystemProperties()
	p.digest, p.encoding = sys.GetBodyDigest(), sys.GetBodyEncoding()
	if d := sys.GetInvisibleDuration(); d != nil && d.CheckValid() == nil {
		p.Invisible = max(d.AsDuration(), 0)
	}
	return p
}

// Unpack checks the body, decompresses it and gives it to the delivery, in memory of its own.
// A body that does not match its digest, cannot be decompressed or is larger
// than maxBody before or after that is an error, and so is a delivery that could
// never be settled. A body in an encoding that is not known is an error too, because a handler would
// read it as the sender's.
func (p *Parsed) Unpack(maxBody int) error {
	if p.Delivery.Handle == "" {
		return errors.New("the message has no receipt handle")
	}
	if n := len(p.body); n > maxBody {
		return fmt.Errorf("the body has %d bytes; the limit is %d (Options.MaxReceiveSize), raise it to receive the message", n, maxBody)
	}
	if err := checkDigest(p.body, p.digest); err != nil {
		return err
	}
	switch p.encoding {
	case rmqpb.Encoding_ENCODING_UNSPECIFIED, rmqpb.Encoding_IDENTITY:
	case rmqpb.Encoding_GZIP:
		body, err := decompress(p.body, maxBody)
		p.Delivery.Body = body
		return err
	default:
		return fmt.Errorf("the body has the encoding %d, and this version knows IDENTITY (1) and GZIP (2); update the client, or have the sender use one of them", p.encoding)
	}
	if p.body != nil {
		p.Delivery.Body = append(make([]byte, 0, len(p.body)), p.body...)
	}
	return nil
}

// DecodeMessage returns the delivery of a message that is a part of another one, such as a
// transaction check.
func DecodeMessage(pb *rmqpb.Message, maxBody int) (*tidegate.Delivery, error) {
	p := parsedOf(pb)
	if err := p.Unpack(maxBody); err != nil {
		return nil, err
	}
	return p.Delivery, nil
}

// DecodeAck fills in a request in few allocations: all entries are in one slice, and their texts
// are parts of one string. It returns false, and the request is undefined, if raw does not end with
// its entries, if an entry has another field than ID and handle, or if raw cannot be decoded.
func DecodeAck(raw []byte, request *rmqpb.AckMessageRequest) bool {
	count, head := 0, 0
	r := Fields(raw)
	for r.Next() {
		switch {
		case r.Tag == TagAckEntry:
			count++
		case r.Tag&7 != kindBytes || count > 0:
			return false
		default:
			head = r.at
		}
	}
	if r.Err != nil || proto.Unmarshal(raw[:head], request) != nil {
		return false
	}
	entries := make([]rmqpb.AckMessageEntry, count)
	request.Entries = make([]*rmqpb.AckMessageEntry, count)
	r = FieldReader{raw: raw[head:], text: string(raw[head:])}
	for i := range entries {
		r.Next()
		if !r.pair(&entries[i].MessageId, &entries[i].ReceiptHandle) {
			return false
		}
		request.Entries[i] = &entries[i]
	}
	return true
}
