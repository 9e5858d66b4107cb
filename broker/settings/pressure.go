package settings

import (
	"errors"
	"fmt"
	"time"
)

// Pressure has the limits of the storage's state. While one of the first three is reached, the
// broker rejects all sends; MaxColdReads rejects the sends to one topic. Receives and settlements
// continue, because they reduce the pressure. Without a data directory only MaxColdReads applies.
type Pressure struct {
	// MinFreeDisk is the free space of the disk, in bytes, below which the broker rejects sends and
	// commits of transactions and does not move delayed messages to their queues. The throttle ends
	// at 1.25 times this value. The free space is for the progress of consumers and the compaction
	// of tables. -1 means no limit: the broker fills the disk, except for 160 MiB that the data
	// directory reserves, or 3/16 of a disk of less than 768 MiB. Consumers continue in 64 MiB
	// of it, about a million acknowledgements, and a start after a kill needs the rest.
	// Default: 1 GiB, or 5 % of a smaller disk, at least 256 MiB or an eighth of the disk.
	MinFreeDisk int64 `json:"min_free_disk_bytes,omitempty"`

	// MaxCompactionDebt is the compaction debt at which the broker rejects sends: the number of
	// bytes that the storage engine still has to compact. The throttle ends at 80 % of it.
	// -1 means no limit. Default: 64 GiB.
	MaxCompactionDebt int64 `json:"max_compaction_debt_bytes,omitempty"`

	// MaxWriteStall is the duration of a write stall from which the broker rejects sends. In a
	// stall the message store delays writes because it cannot flush or compact fast enough. The
	// throttle ends when writes continue. Negative means no limit. Default: 1 s.
	MaxWriteStall Duration `json:"max_write_stall,omitempty"`

	// MaxColdReads is the rate of cold reads, in bytes of bodies per second, at which the broker
	// rejects sends to a topic. Cold reads are those of groups that are more than ColdDistance
	// behind the end of the topic; the rates of these groups are added. The throttle ends when all
	// groups are within 80 % of ColdDistance, or when the rate falls to 80 % of
	// this value. RocketMQ: sending retry and throttling names the reason: a group that consumes
	// from an earlier moment makes "the storage pressure on the queue" surge. Zero means no limit.
	MaxColdReads int64 `json:"max_cold_reads_bytes_per_second,omitempty"`

	// ColdDistance is the backlog of a group, in bytes of bodies, above which its reads are cold.
	// With a smaller backlog, reads are mostly served from memory of the broker or of the operating
	// system. Default: 64 MiB.
	ColdDistance int64 `json:"cold_distance_bytes,omitempty"`
}

// The defaults of Pressure.
const (
	DefaultMaxCompactionDebt = 64 << 30
	DefaultMaxWriteStall     = time.Second
	DefaultColdDistance      = 64 << 20
)

// Validate returns an error that names every field with an invalid value, or nil. The names in the
// error begin with field, the name of the setting that has the limits.
func (p Pressure) Validate(field string) error {
	errs := []error{atMost(field+".max_write_stall", p.MaxWriteStall)}
	for _, x := range []struct {
		name         string
		value, least int64
	}{
		{"min_free_disk_bytes", p.MinFreeDisk, -1}, {"max_compaction_debt_bytes", p.MaxCompactionDebt, -1},
		{"max_cold_reads_bytes_per_second", p.MaxColdReads, 0}, {"cold_distance_bytes", p.ColdDistance, 0},
	} {
		if x.value < x.least {
			errs = append(errs, fmt.Errorf("%s.%s is %d; give %d or more", field, x.name, x.value, x.least))
		}
	}
	return errors.Join(errs...)
}
