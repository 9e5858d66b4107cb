package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	logSuffix = ".log"

	// The chunks of a new database's first log have an older form, without how far the log was
	// synced. Their types are those from 5 to 8.
	walShortHeader    = 11
	walShortFirstType = 5
)

// A shortened is the error of a file of which less is on disk than was, or something else.
type shortened struct {
	Path        string
	Left, Known int64 // bytes: the readable ones from its beginning, and those that were on disk
	Missing     bool  // the whole file
	Replaced    bool  // by a file of Left bytes
}

// Error implements error.
func (s *shortened) Error() string {
	if s.Missing {
		return fmt.Sprintf("%s is missing: %d bytes of it were on disk, so acknowledged data is lost", s.Path, s.Known)
	}
	if s.Replaced {
		return fmt.Sprintf("%s has %d bytes instead of %d: it was truncated or replaced, so acknowledged messages are lost", s.Path, s.Left, s.Known)
	}
	return fmt.Sprintf("%s is truncated or corrupt after %d bytes, but %d bytes of it were on disk, so acknowledged data is lost", s.Path, s.Left, s.Known)
}

// checkSynced compares the files of a database with their notes. It returns a *Shortened for each
// file of which synced data is missing or not readable.
func checkSynced(fs vfs.FS, dir string, files []syncedFile) (shortened []*shortened, err error) {
	for _, f := range files {
		s, err := diskfsCheckSynced(fs, fs.PathJoin(dir, f.Name), f)
		if err != nil {
			return nil, err
		}
		if s != nil {
			shortened = append(shortened, s)
		}
	}
	return shortened, nil
}

func diskfsCheckSynced(vfs vfs.FS, path string, known syncedFile) (*shortened, error) {
	f, err := vfs.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &shortened{Path: path, Known: known.Bytes, Missing: true}, nil
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
	return &shortened{Path: path, Left: left, Known: known.Bytes}, nil
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

const manifestPrefix = "MANIFEST-"

// knownFS records the size and checksum of a database's manifest after each fsync of it. Pebble
// accepts any end of a manifest and removes the tables that the manifest does not name: one wrong
// byte after a crash would remove messages. The record is on disk before a marker names the
// manifest.
type knownFS struct {
	vfs.FS
	dir  string // of the database
	path string // of the file that has sums

	mu    sync.Mutex // held over writing that file, which Pebble's one writer of a manifest waits for anyway
	order []string   // the manifests in sums, the oldest first
	sums  map[string]string
}

// newKnownFS returns a KnownFS of the database in a directory. noted is the line of the manifest
// that a marker names, if there is one.
func newKnownFS(fs vfs.FS, dir, path string, noted [2]string) *knownFS {
	k := &knownFS{FS: fs, dir: dir, path: path, sums: map[string]string{}}
	if manifest, line := noted[0], noted[1]; line != "" {
		k.order, k.sums[manifest] = []string{manifest}, line
	}
	return k
}

// Create implements vfs.FS.
func (k *knownFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := k.FS.Create(name, c)
	if base := k.PathBase(name); err == nil && k.PathDir(name) == k.dir && strings.HasPrefix(base, manifestPrefix) {
		return &manifestFile{File: f, fs: k, name: base}, nil
	}
	return f, err
}

// Unwrap implements vfs.FS.
func (k *knownFS) Unwrap() vfs.FS { return k.FS }

// note records the content of a manifest on disk. The record of the previous manifest stays,
// because a crash can occur before the marker names the new one.
func (k *knownFS) note(name string, size int64, sum uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sums[name] == "" {
		k.order = append(k.order, name)
		if len(k.order) > 2 {
			delete(k.sums, k.order[0])
			k.order = k.order[1:]
		}
	}
	k.sums[name] = sumLine(size, sum)
	return writeFile(k.FS, k.path, formatSums(k.sums))
}

// A manifestFile is a manifest that is being written.
type manifestFile struct {
	vfs.File
	fs   *knownFS
	name string
	size int64 // Pebble writes a manifest from one goroutine at a time
	sum  uint32
	bad  error // of a write: the content of the file is unknown from then on
}

// Write implements vfs.File.
func (f *manifestFile) Write(p []byte) (int, error) {
	// Computed before the write, which may change p: Pebble's file system in
	// memory does so under the race detector.
	sum := crc32.Update(f.sum, castagnoli, p)
	n, err := f.File.Write(p)
	f.size += int64(n)
	f.sum = sum
	if err != nil {
		f.bad = err
	}
	return n, err
}

// Sync implements vfs.File.
func (f *manifestFile) Sync() error {
	if f.bad != nil {
		return f.bad
	}
	if err := f.File.Sync(); err != nil {
		return err
	}
	return f.fs.note(f.name, f.size, f.sum)
}

// SyncData implements vfs.File.
func (f *manifestFile) SyncData() error { return f.Sync() }

// castagnoli is the polynomial of all checksums.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumFormat is the form of a file's size and checksum.
const sumFormat = "%d %08x"

// sumLine returns a file's size and checksum in SumFormat.
func sumLine(size int64, sum uint32) string { return fmt.Sprintf(sumFormat, size, sum) }

// formatSums returns a text of lines by file, with a checksum of its own at the end.
func formatSums(lines map[string]string) []byte {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%s %s\n", name, lines[name])
	}
	fmt.Fprintf(&text, "%08x\n", crc32.Checksum(text.Bytes(), castagnoli))
	return text.Bytes()
}

// parseSums parses the result of FormatSums. ok is false if the text is damaged.
func parseSums(text []byte) (files map[string]string, ok bool) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n') + 1
	if string(text[end:]) != fmt.Sprintf("%08x\n", crc32.Checksum(text[:end], castagnoli)) {
		return nil, false
	}
	files = map[string]string{}
	for line := range strings.Lines(string(text[:end])) {
		name, rest, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !found {
			return nil, false
		}
		files[name] = rest
	}
	return files, true
}
