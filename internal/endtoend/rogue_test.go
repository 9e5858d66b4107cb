package endtoend

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// rawCodec passes messages on as bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// A rogue is a gRPC proxy before a broker, which passes everything on unless it misbehaves. Its
// functions are called for each frame by several goroutines; a nil function passes frames on.
type rogue struct {
	// request may return another request, or a response that replaces the broker's.
	request func(method string, req []byte) (changed, answer []byte)

	// response returns the frames that take the place of one of the broker's. An error ends the
	// stream, after the frames; errEndOK does so with success.
	response func(method string, frame []byte) ([][]byte, error)

	// plain hides that the broker is more than a RocketMQ.
	plain bool
}

// errEndOK ends a stream of a rogue before its time, as if it were complete.
var errEndOK = errors.New("the stream ends here")

// client returns a client of b through the proxy. It ends with the test.
func (r *rogue) client(t *testing.T, b *brokertest.Broker) *rocketmq.Client {
	t.Helper()
	const buffer = 256 << 10
	lis := bufconn.Listen(buffer)
	far, err := grpc.NewClient("passthrough:///"+b.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(b.Dial), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, st grpc.ServerStream) error {
		return r.carry(far, st)
	}))
	go g.Serve(lis)
	c := b.ClientWith(rocketmq.Options{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }})
	t.Cleanup(func() {
		c.Close()
		g.Stop()
		far.Close()
	})
	return c
}

// carry passes one call on.
func (r *rogue) carry(far *grpc.ClientConn, st grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(st)
	md, _ := metadata.FromIncomingContext(st.Context())
	md = md.Copy()
	if r.plain {
		md.Delete("x-tidegate-features")
	}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(st.Context(), md))
	defer cancel()
	out, err := far.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	answers := make(chan []byte, 1)
	go r.carryRequests(method, st, out, answers)
	frames := make(chan []byte)
	var end error
	go func() {
		defer close(frames)
		for {
			var frame []byte
			if end = out.RecvMsg(&frame); end != nil {
				return
			}
			select {
			case frames <- frame:
			case <-ctx.Done():
				return
			}
		}
	}()
	for first := true; ; first = false {
		select {
		case answer := <-answers:
			return st.SendMsg(&answer)
		case frame, ok := <-frames:
			if !ok {
				st.SetTrailer(r.visible(out.Trailer()))
				if errors.Is(end, io.EOF) {
					return nil
				}
				return end
			}
			if first {
				header, err := out.Header()
				if err != nil {
					return err
				}
				if err := st.SetHeader(r.visible(header)); err != nil {
					return err
				}
			}
			if err := r.answer(method, st, frame); err != nil {
				if errors.Is(err, errEndOK) {
					return nil
				}
				return err
			}
		}
	}
}

// visible returns the part of a header that the client sees.
func (r *rogue) visible(md metadata.MD) metadata.MD {
	md = md.Copy()
	md.Delete("content-type")
	if r.plain {
		md.Delete("x-tidegate-features")
	}
	return md
}

// carryRequests passes the client's messages on until it has no more.
func (r *rogue) carryRequests(method string, st grpc.ServerStream, out grpc.ClientStream, answers chan<- []byte) {
	for {
		var req []byte
		if err := st.RecvMsg(&req); err != nil {
			_ = out.CloseSend()
			return
		}
		if r.request != nil {
			changed, answer := r.request(method, req)
			if answer != nil {
				answers <- answer
				return
			}
			req = changed
		}
		if out.SendMsg(&req) != nil {
			return
		}
	}
}

// answer passes one of the broker's frames on.
func (r *rogue) answer(method string, st grpc.ServerStream, frame []byte) error {
	frames, end := [][]byte{frame}, error(nil)
	if r.response != nil {
		frames, end = r.response(method, frame)
	}
	for _, f := range frames {
		if err := st.SendMsg(&f); err != nil {
			return err
		}
	}
	return end
}

// errBroken ends a stream as a broken connection does.
var errBroken = status.Error(codes.Unavailable, "broken by the test")

// edit returns a frame of the type of m after change.
func edit[M proto.Message](t *testing.T, frame []byte, m M, change func(M)) []byte {
	t.Helper()
	if err := proto.Unmarshal(frame, m); err != nil {
		t.Error(err)
		return frame
	}
	change(m)
	out, err := proto.Marshal(m)
	if err != nil {
		t.Error(err)
	}
	return out
}

// messagesOf returns the messages of a frame, of both protocols.
func messagesOf(r *rmqpb.ReceiveMessageResponse) []*rmqpb.Message {
	if m := r.GetMessage(); m != nil {
		return append([]*rmqpb.Message{m}, r.GetPacked()...)
	}
	return r.GetPacked()
}
