package diskfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	logSuffix = ".log"

	// The chunks of a new database's first log have an older form, without how far the log was
	// synced. Their types are those from 5 to 8.
	walShortHeader    = 11
	walShortFirstType = 5
)

// A Shortened is the error of a file of which less is on disk than was, or something else.
type Shortened struct {
	Path        string
	Left, Known int64 // bytes: the readable ones from its beginning, and those that were on disk
	Missing     bool  // the whole file
	Replaced    bool  // by a file of Left bytes
}

// Error implements error.
func (s *Shortened) Error() string {
	if s.Missing {
		return fmt.Sprintf("%s is missing: %d bytes of it were on disk, so acknowledged data is lost", s.Path, s.Known)
	}
	if s.Replaced {
		return fmt.Sprintf("%s has %d bytes instead of %d: it was truncated or replaced, so acknowledged messages are lost", s.Path, s.Left, s.Known)
	}
	return fmt.Sprintf("%s is truncated or corrupt after %d bytes, but %d bytes of it were on disk, so acknowledged data is lost", s.Path, s.Left, s.Known)
}

// CheckSynced compares the files of a database with their notes. It returns a *Shortened for each
// file of which synced data is missing or not readable.
func CheckSynced(fs vfs.FS, dir string, files []SyncedFile) (shortened []*Shortened, err error) {
	for _, f := range files {
		s, err := checkSynced(fs, fs.PathJoin(dir, f.Name), f)
		if err != nil {
			return nil, err
		}
		if s != nil {
			shortened = append(shortened, s)
		}
	}
	return shortened, nil
}

func checkSynced(vfs vfs.FS, path string, known SyncedFile) (*Shortened, error) {
	f, err := vfs.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Shortened{Path: path, Known: known.Bytes, Missing: true}, nil
	}
	if err != nil {
		return nil, err
	}
	var left int64
	if number, ofLog := strings.CutSuffix(known.Name, logSuffix); ofLog {
		n, _ := strconv.ParseUint(number, 10, 64) // 0 if the name is not Pebble's, which no chunk has
		left, err = readableLog(struct{ io.Reader }{f}, uint32(n), known.Bytes)
	} else {
		var info interface{ Size() int64 }
		if info, err = f.Stat(); err == nil {
			left = min(info.Size(), known.Bytes) // its content is checked against KNOWN
		}
	}
	if err = errors.Join(err, f.Close()); err != nil || left == known.Bytes {
		return nil, err
	}
	return &Shortened{Path: path, Left: left, Known: known.Bytes}, nil
}

// readableLog returns how many of the first size bytes of a log are whole chunks of the log with
// this number.
func readableLog(r io.Reader, number uint32, size int64) (n int64, err error) {
	block := make([]byte, walBlock)
	for n < size {
		want := int(min(walBlock, size-n))
		got, err := io.ReadFull(r, block[:want])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return n, err
		}
		whole := readableBlock(block[:got], number)
		if n += int64(whole); whole < want {
			return n, nil
		}
	}
	return n, nil
}

// readableBlock returns how many bytes of a block, or of its beginning, are whole chunks.
func readableBlock(p []byte, number uint32) (n int) {
	for n < len(p) {
		rest := p[n:]
		switch length, ok := wholeChunk(rest, number); {
		case ok:
			n += length
		case walBlock-n < walHeader && len(bytes.Trim(rest, "\x00")) == 0: // padding
			return len(p)
		case isTrailer(rest, number):
			return len(p)
		default:
			return n
		}
	}
	return n
}

// isTrailer reports whether p is the end of a closed log: a chunk of the next log's number without
// content and checksum.
func isTrailer(p []byte, number uint32) bool {
	return len(p) == walShortHeader && p[walTypeAt] == walShortFirstType && binary.LittleEndian.Uint32(p[walNumberAt:]) == number+1
}

// wholeChunk returns the length of the chunk at the beginning of p, if it is one of the log.
func wholeChunk(p []byte, number uint32) (length int, ok bool) {
	if len(p) < walShortHeader || p[walTypeAt] < walShortFirstType || p[walTypeAt] > walLastType {
		return 0, false
	}
	header := walHeader
	if p[walTypeAt] < walFirstType {
		header = walShortHeader
	}
	n := header + int(binary.LittleEndian.Uint16(p[walLengthAt:]))
	return n, n <= len(p) && binary.LittleEndian.Uint32(p[walNumberAt:]) == number && binary.LittleEndian.Uint32(p) == walChecksum(p[walCheckedAt:n])
}
