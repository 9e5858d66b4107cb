// Package record has the form of the store's records: their keys, by which they sort, and the
// encoding of their values. It reads and writes bytes alone, and knows no database. A record that
// cannot be read is an error that wraps [ErrCorrupt].
package record
