package server_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The floors are gRPC servers that do the least that a broker must. Everything above them is the
// broker's own cost.

var answerOK = &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}

// echo responds to every send and stores nothing: it has the minimal cost of gRPC.
type echo struct {
	rmqpb.UnimplementedMessagingServiceServer
}

func (echo) SendMessage(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	out := &rmqpb.SendMessageResponse{Status: answerOK}
	for _, m := range r.Messages {
		out.Entries = append(out.Entries, &rmqpb.SendResultEntry{Status: answerOK, MessageId: m.SystemProperties.GetMessageId()})
	}
	return out, nil
}

// wal responds to a send once the message is in a file and synced. One sync serves all sends that
// arrived during the previous sync.
type wal struct {
	echo
	file *os.File

	mu      sync.Mutex
	writing bool
	next    *round
}

// A round has the messages that one write and sync make durable.
type round struct {
	buf  []byte
	done chan struct{}
	err  error
}

func newWAL(b testing.TB) *wal {
	f, err := os.CreateTemp(b.TempDir(), "wal")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return &wal{file: f, next: &round{done: make(chan struct{})}}
}

func (w *wal) SendMessage(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	record, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	if err := w.append(record); err != nil {
		return nil, err
	}
	return w.echo.SendMessage(ctx, r)
}

// append returns when the record is on disk.
func (w *wal) append(record []byte) error {
	w.mu.Lock()
	mine := w.next
	mine.buf = append(mine.buf, record...)
	first := !w.writing
	w.writing = true
	w.mu.Unlock()
	if first {
		go w.write()
	}
	<-mine.done
	return mine.err
}

func (w *wal) write() {
	for {
		w.mu.Lock()
		c := w.next
		if len(c.buf) == 0 {
			w.writing = false
			w.mu.Unlock()
			return
		}
		w.next = &round{done: make(chan struct{})}
		w.mu.Unlock()
		if _, c.err = w.file.Write(c.buf); c.err == nil {
			c.err = datasync(w.file)
		}
		close(c.done)
	}
}

// A relay is the least durable broker: a message is in a file and synced before the response to its
// send, and then in memory until a receive takes it. An acknowledgement is in a second file and
// synced before its response. A relay has no groups, no leases, no retries and no limits, and never
// reads its files.
type relay struct {
	*wal
	acks   *wal
	stored chan *rmqpb.Message
}

func newRelay(b testing.TB) *relay {
	return &relay{newWAL(b), newWAL(b), make(chan *rmqpb.Message, 1<<20)}
}

func (y *relay) SendMessage(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	out, err := y.wal.SendMessage(ctx, r)
	if err != nil {
		return nil, err
	}
	stored := timestamppb.Now()
	for _, m := range r.Messages {
		sys := m.SystemProperties
		sys.ReceiptHandle, sys.DeliveryAttempt = new(cannedHandle), proto.Int32(1)
		sys.StoreTimestamp, sys.StoreHost, sys.BodyDigest = stored, "bench", digest(m.Body)
		y.stored <- m
	}
	return out, nil
}

func (y *relay) ReceiveMessage(r *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: answerOK}}); err != nil {
		return err
	}
	var m *rmqpb.Message
	select {
	case m = <-y.stored:
	case <-time.After(r.LongPollingTimeout.AsDuration()):
		return nil
	case <-stream.Context().Done():
		return context.Cause(stream.Context())
	}
	for n := int32(1); ; n++ {
		m.SystemProperties.InvisibleDuration = r.InvisibleDuration
		if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}}); err != nil {
			return err
		}
		more := n < r.BatchSize
		if more {
			select {
			case m = <-y.stored:
			default:
				more = false
			}
		}
		if !more {
			return stream.Send(deliveredAt(time.Now()))
		}
	}
}

// deliveredAt is the last frame of a response with messages.
func deliveredAt(at time.Time) *rmqpb.ReceiveMessageResponse {
	return &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.New(at)}}
}

func (y *relay) AckMessage(_ context.Context, r *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	if err := y.acks.append(make([]byte, 20*len(r.Entries))); err != nil {
		return nil, err
	}
	return acknowledged(r), nil
}

func acknowledged(r *rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
	out := &rmqpb.AckMessageResponse{Status: answerOK}
	for _, e := range r.Entries {
		out.Entries = append(out.Entries, &rmqpb.AckMessageResultEntry{Status: answerOK, MessageId: e.MessageId, ReceiptHandle: e.ReceiptHandle})
	}
	return out
}

// cannedHandle is about as long as the broker's receipt handles.
var cannedHandle = strings.Repeat("h", 40)

func digest(body []byte) *rmqpb.Digest {
	return &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum(body))}
}

// canned responds to every receive with the same 32 messages of 1 KiB, whose digests it need not
// compute, and to every acknowledgement with OK.
type canned struct {
	echo
	messages []*rmqpb.ReceiveMessageResponse
}

func newCanned(body []byte) *canned {
	c := &canned{}
	for i := range 32 {
		m := &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: "t"}, Body: body,
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: fmt.Sprintf("01A%031X", i), BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_NORMAL,
				BornTimestamp: timestamppb.Now(), StoreTimestamp: timestamppb.Now(), BornHost: "bench", StoreHost: "bench",
				ReceiptHandle:   new(cannedHandle),
				DeliveryAttempt: proto.Int32(1), InvisibleDuration: durationpb.New(time.Minute),
				BodyDigest: digest(body),
			},
		}
		c.messages = append(c.messages, &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}})
	}
	return c
}

func (c *canned) ReceiveMessage(_ *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	if err := stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: answerOK}}); err != nil {
		return err
	}
	for _, m := range c.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return stream.Send(deliveredAt(time.Now()))
}

func (c *canned) AckMessage(_ context.Context, r *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	return acknowledged(r), nil
}
