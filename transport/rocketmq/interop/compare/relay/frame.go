package relay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/net/http2/hpack"
)

// The parts of HTTP/2 (RFC 9113, section 6) that the relay needs.
const (
	clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	kindData         = 0
	kindHeaders      = 1
	kindReset        = 3
	kindSettings     = 4
	kindPing         = 6
	kindWindowUpdate = 8

	flagEndStream  = 1 // of data and headers
	flagAck        = 1 // of settings and pings
	flagEndHeaders = 4
	flagPadded     = 8
	flagPriority   = 32

	settingHeaderTableSize = 1

	frameHeader = 9
	tableSize   = 4096 // of a connection's header compression without a setting
)

// A frame is one frame of HTTP/2.
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

func (f frame) append(b []byte) []byte {
	n := len(f.payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), f.kind, f.flags)
	b = binary.BigEndian.AppendUint32(b, f.stream)
	return append(b, f.payload...)
}

func readFrame(r io.Reader) (frame, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: h[3], flags: h[4], stream: binary.BigEndian.Uint32(h[5:]) &^ (1 << 31)}
	f.payload = make([]byte, int(h[0])<<16|int(h[1])<<8|int(h[2]))
	_, err := io.ReadFull(r, f.payload)
	return f, err
}

// readFrames reads a frame, or a header block with its continuations, which no other frame may
// interrupt.
func readFrames(r io.Reader) ([]frame, error) {
	f, err := readFrame(r)
	frames := []frame{f}
	for last := f; err == nil && f.kind == kindHeaders && last.flags&flagEndHeaders == 0; frames = append(frames, last) {
		last, err = readFrame(r)
	}
	return frames, err
}

// withoutTable returns settings that allow the peer no table of headers. Without the table each
// header block stands on its own, so that a single one can be dropped or reordered.
func (f frame) withoutTable() frame {
	if f.flags&flagAck != 0 {
		return f
	}
	p := bytes.Clone(f.payload)
	p = binary.BigEndian.AppendUint16(p, settingHeaderTableSize)
	f.payload = binary.BigEndian.AppendUint32(p, 0)
	return f
}

func windowUpdate(stream uint32, n int) frame {
	return frame{kind: kindWindowUpdate, stream: stream, payload: binary.BigEndian.AppendUint32(nil, uint32(n))}
}

// A decoder reads the header blocks of a client.
type decoder struct{ hpack *hpack.Decoder }

func newDecoder() decoder { return decoder{hpack.NewDecoder(tableSize, nil)} }

// path returns the path of a request, or "" for trailers.
func (d decoder) path(frames []frame) (string, error) {
	block, err := frames[0].fragment()
	if err != nil {
		return "", err
	}
	for _, f := range frames[1:] {
		block = append(block, f.payload...)
	}
	fields, err := d.hpack.DecodeFull(block)
	if err != nil {
		return "", err
	}
	for _, field := range fields {
		if field.Name == ":path" {
			return field.Value, nil
		}
	}
	return "", nil
}

// fragment returns the part of the header block in a frame of headers.
func (f frame) fragment() ([]byte, error) {
	b, padding := bytes.Clone(f.payload), 0
	if f.flags&flagPadded != 0 && len(b) > 0 {
		padding, b = int(b[0]), b[1:]
	}
	if f.flags&flagPriority != 0 && len(b) >= 5 {
		b = b[5:]
	}
	if padding > len(b) {
		return nil, fmt.Errorf("a frame of headers of %d bytes has %d bytes of padding", len(f.payload), padding)
	}
	return b[:len(b)-padding], nil
}

// throttledResponse is the response of a proxy whose broker throttles.
func throttledResponse(stream uint32) []frame {
	return []frame{
		{kindHeaders, flagEndHeaders, stream, block(":status", "200", "content-type", "application/grpc")},
		{kindData, 0, stream, throttledMessage},
		{kindHeaders, flagEndHeaders | flagEndStream, stream, block("grpc-status", "0")},
	}
}

// throttledMessage is a SendMessageResponse with its length before it, as RocketMQ 5.2 sends it:
// field 1 is the status with the code (1) and the message (2).
var throttledMessage = func() []byte {
	const code, text = 42900, "[OVERLOAD]system busy, start flow control for a while"
	status := binary.AppendUvarint([]byte{1 << 3}, code)
	status = append(append(status, 2<<3|2, byte(len(text))), text...)
	body := append([]byte{1<<3 | 2, byte(len(status))}, status...)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}()

// block returns a header block with literal fields only.
func block(pairs ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // a buffer takes all
	}
	return b.Bytes()
}
