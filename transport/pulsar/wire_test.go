package pulsar

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// The types of Pulsar's commands, in PulsarApi.proto of the client. Each is also the number of the
// command's field in the frame.
const (
	wireConnect = iota + 2
	wireConnected
	wireSubscribe
	wireProducer
	wireSend
	wireReceipt
	wireSendError
	wireMessage
	wireAck
	wireFlow
	_
	wireSuccess
	wireError
	wireCloseProducer
	wireCloseConsumer
	wireProducerSuccess
	wirePing
	wirePong
	wireRedeliver
	wireMetadata
	wireMetadataResponse
	wireLookup
	wireLookupResponse
	wireAckResponse = 38
)

// A wireServer is a small Pulsar behind a socket, for the real client: it accepts producers and
// consumers of all topics, delivers the messages that a test has given it, and notes
// acknowledgements.
type wireServer struct {
	t       *testing.T
	address string

	mu         sync.Mutex
	partitions map[string]int         // by full name of the topic
	messages   map[string][][]byte    // payloads with metadata, by full name; each has its number as ID
	delivered  map[string]int         // of messages
	acked      map[string]map[int]int // acknowledgements of messages
	returned   chan int               // messages of requests to deliver them again
	topics     map[int]string         // by ID of the consumer
	subscribed []string               // topics of all subscriptions

	// handle takes a command before the server does, and reports whether it has. Set before use.
	handle func(c *wireConn, kind int, f wireFields) bool
}

// A wireConn is a connection to a wireServer.
type wireConn struct {
	net.Conn
	mu sync.Mutex
}

// send writes commands at once.
func (c *wireConn) send(commands ...[]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.Write(slices.Concat(commands...)) // the client may have gone
}

func newWireServer(t *testing.T) *wireServer {
	s := &wireServer{
		t: t, partitions: map[string]int{}, messages: map[string][][]byte{}, delivered: map[string]int{},
		acked: map[string]map[int]int{}, topics: map[int]string{}, returned: make(chan int, 100),
	}
	s.address = peer(t, nil, s.serve)
	return s
}

func (s *wireServer) client(o Options) *Client {
	s.t.Helper()
	c, err := New("pulsar://"+s.address, o)
	assert.Must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (s *wireServer) serve(conn net.Conn) {
	c, r := &wireConn{Conn: conn}, bufio.NewReader(conn)
	for {
		var sizes [8]byte
		if _, err := io.ReadFull(r, sizes[:]); err != nil {
			return
		}
		rest := make([]byte, binary.BigEndian.Uint32(sizes[:])-4)
		if _, err := io.ReadFull(r, rest); err != nil {
			return
		}
		command := wireRead(rest[:binary.BigEndian.Uint32(sizes[4:])])
		kind := command.number(1)
		f := wireRead(command.bytes(kind))
		if s.handle == nil || !s.handle(c, kind, f) {
			s.respond(c, kind, f)
		}
	}
}

func (s *wireServer) respond(c *wireConn, kind int, f wireFields) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case wireConnect:
		c.send(wireFrame(wireConnected, wire{1: "wire", 2: 20, 3: 5 << 20}))
	case wirePing:
		c.send(wireFrame(wirePong, wire{}))
	case wireMetadata:
		c.send(wireFrame(wireMetadataResponse, wire{1: s.partitions[string(f.bytes(1))], 2: f.number(2), 3: 0}))
	case wireLookup:
		c.send(wireFrame(wireLookupResponse, wire{1: "pulsar://" + s.address, 3: 1, 4: f.number(2), 5: 1}))
	case wireProducer:
		c.send(wireFrame(wireProducerSuccess, wire{1: f.number(3), 2: "producer", 3: -1}))
	case wireSend:
		c.send(wireReceiptOf(f))
	case wireSubscribe:
		s.topics[f.number(4)] = string(f.bytes(1))
		s.subscribed = append(s.subscribed, string(f.bytes(1)))
		c.send(wireFrame(wireSuccess, wire{1: f.number(5)}))
	case wireFlow:
		id := f.number(1)
		topic := s.topics[id]
		for range f.number(2) {
			n := s.delivered[topic]
			if n == len(s.messages[topic]) {
				break
			}
			s.delivered[topic]++
			frame := wireFrame(wireMessage, wire{1: id, 2: wire{1: 7, 2: n}})
			frame = append(frame, s.messages[topic][n]...)
			binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
			c.send(frame)
		}
	case wireAck:
		topic := s.topics[f.number(1)]
		if s.acked[topic] == nil {
			s.acked[topic] = map[int]int{}
		}
		for _, id := range f[3] {
			s.acked[topic][wireRead(id.([]byte)).number(2)]++
		}
		if f[8] != nil {
			c.send(wireFrame(wireAckResponse, wire{1: f.number(1), 6: f.number(8)}))
		}
	case wireRedeliver:
		s.returned <- len(f[2])
	case wireCloseProducer, wireCloseConsumer:
		c.send(wireFrame(wireSuccess, wire{1: f.number(2)}))
	default:
		s.t.Errorf("command %d is unknown", kind)
	}
}

// put adds a message of a topic, with fields of its metadata.
func (s *wireServer) put(topic, body string, fields wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	metadata := wire{1: "producer", 2: len(s.messages[topic]), 3: int(time.Now().UnixMilli())}
	maps.Copy(metadata, fields)
	m := metadata.encode()
	b := binary.BigEndian.AppendUint32(nil, uint32(len(m)))
	b = append(append(b, m...), body...)
	sum := binary.BigEndian.AppendUint32([]byte{0x0e, 0x01}, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	s.messages[topic] = append(s.messages[topic], append(sum, b...))
}

// wireReceiptOf returns the response to a send.
func wireReceiptOf(f wireFields) []byte {
	return wireFrame(wireReceipt, wire{1: f.number(1), 2: f.number(2), 3: wire{1: 7, 2: f.number(2)}})
}

// A wire is a message of protocol buffers to encode: ints, strings and wires by field number.
type wire map[int]any

func (w wire) encode() (b []byte) {
	for n := range 100 {
		switch v := w[n].(type) {
		case int:
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(n)<<3), uint64(v))
		case string:
			b = append(binary.AppendUvarint(binary.AppendUvarint(b, uint64(n)<<3|2), uint64(len(v))), v...)
		case wire:
			part := v.encode()
			b = append(binary.AppendUvarint(binary.AppendUvarint(b, uint64(n)<<3|2), uint64(len(part))), part...)
		}
	}
	return b
}

// wireFrame returns the frame of a command without a payload.
func wireFrame(kind int, body wire) []byte {
	c := wire{1: kind, kind: body}.encode()
	b := binary.BigEndian.AppendUint32(nil, uint32(len(c)+4))
	return append(binary.BigEndian.AppendUint32(b, uint32(len(c))), c...)
}

// wireFields are the values of a decoded message by field number: ints and bytes.
type wireFields map[int][]any

func wireRead(b []byte) wireFields {
	f := wireFields{}
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		b = b[n:]
		v, n := binary.Uvarint(b)
		b = b[n:]
		switch field := int(tag >> 3); tag & 7 {
		case 0:
			f[field] = append(f[field], int(v))
		case 2:
			f[field] = append(f[field], b[:v])
			b = b[v:]
		default:
			panic(fmt.Sprintf("wire type %d", tag&7))
		}
	}
	return f
}

func (f wireFields) number(n int) int {
	if len(f[n]) == 0 {
		return 0
	}
	return f[n][0].(int)
}

func (f wireFields) bytes(n int) []byte {
	if len(f[n]) == 0 {
		return nil
	}
	return f[n][0].([]byte)
}

// The client passes on the responses that it has read after its connection has ended: a server ends
// it with an error of any producer, and has responded to others before. The client panics if a
// producer is closed meanwhile.
func TestResponsesOfALostConnection(t *testing.T) {
	t.Parallel() // each loss costs 0.2 s
	const sends = 60
	s := newWireServer(t)
	var mu sync.Mutex
	responses := map[*wireConn][][]byte{}
	s.handle = func(c *wireConn, kind int, f wireFields) bool {
		if kind != wireSend {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if responses[c] == nil {
			responses[c] = append(responses[c], wireFrame(wireSendError, wire{1: 9999, 2: 1, 3: 2, 4: "PersistenceError"}))
		}
		if responses[c] = append(responses[c], wireReceiptOf(f)); len(responses[c]) > sends {
			c.send(responses[c]...)
		}
		return true
	}
	c := s.client(Options{})
	var msgs []*tidegate.Message
	for range sends {
		msgs = append(msgs, message("x"))
	}
	stored := 0
	for range 20 {
		for i, r := range c.Send(t.Context(), msgs) {
			if r.Err == nil {
				stored++
			} else if got, _ := observed(r.Err); got.class != tidegate.ClassTransient {
				t.Errorf("send %d: %v", i, r.Err)
			}
		}
	}
	assert.That(t, stored > 0, "no send got its response")
}

// The chunks of a large message, which another program has sent, are acknowledged with it and come
// again with it, also if the consumer has the retry topic too.
func TestChunkedMessages(t *testing.T) {
	t.Parallel()
	s := newWireServer(t)
	topic := namespace + "orders"
	for _, uuid := range []string{"a", "b"} {
		s.put(topic, "half of ", wire{9: 13, 26: uuid, 27: 2, 28: 13, 29: 0})
		s.put(topic, "all "+uuid, wire{9: 13, 26: uuid, 27: 2, 28: 13, 29: 1})
	}
	c := s.client(Options{})
	q := request("billing")
	ack(t, c, one(t, c, q, "half of all a", 1))
	d := one(t, c, q, "half of all b", 1)
	s.mu.Lock()
	assert.Equal(t, "acknowledged chunks", len(s.acked[topic]), 2)
	assert.Equal(t, "acknowledgements of a chunk", s.acked[topic][0]+s.acked[topic][1], 2)
	s.mu.Unlock()
	settle(t, c, d, transport.Verdict{Kind: transport.NegativeAck, Delay: time.Millisecond})
	for returned := 0; returned < 2; {
		select {
		case n := <-s.returned:
			returned += n
		case <-time.After(10 * time.Second):
			t.Fatalf("%d chunks are to come again, want 2", returned)
		}
	}
}

// An encrypted message of another program does not stop the messages behind it, however few messages
// the consumer asks for.
func TestEncryptedMessages(t *testing.T) {
	t.Parallel()
	s := newWireServer(t)
	topic := namespace + "orders"
	for range 3 {
		s.put(topic, "secret", wire{13: wire{1: "key", 2: "value"}})
	}
	s.put(topic, "plain", nil)
	c := s.client(Options{Prefetch: 1})
	ack(t, c, one(t, c, request("billing"), "plain", 1))
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Equal(t, "acknowledged messages", len(s.acked[topic]), 1)
	assert.Equal(t, "messages that are to come again", len(s.returned), 0)
}

// The client accepts no name that looks like that of a partition without a number.
func TestNamesLikePartitions(t *testing.T) {
	t.Parallel()
	c := newWireServer(t).client(Options{})
	m := message("x")
	m.Topic = "my-partition-stuff"
	want := expected{class: tidegate.ClassPermanent, code: 40002}
	want.check(t, "send", c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
	for _, topic := range []string{m.Topic, "orders-partition-3"} { // the retry topic has such a name
		q := request("billing")
		q.Topic = topic
		want.check(t, "receive from "+topic, assert.Err(c.Receive(t.Context(), q)))
	}
}
