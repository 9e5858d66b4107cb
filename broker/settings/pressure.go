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
	// commits, and delayed messages stay where they are. The throttle ends at a quarter more. The
	// consumers' progress and the compaction of tables use the free space. -1 means no limit.
	// Default: 1 GiB, or 5 % of a smaller disk, at least 256 MiB.
	MinFreeDisk int64 `json:"min_free_disk_bytes,omitempty"`

	// MaxCompactionDebt is the number of bytes that wait to be compacted at which the broker
	// rejects sends. The throttle ends at ResumePercent of it. -1 means no limit. Default: 64 GiB;
	// other stores of this kind delay writers from there on, because the disk does not catch up.
	MaxCompactionDebt int64 `json:"max_compaction_debt_bytes,omitempty"`

	// MaxWriteStall is how long the message store can delay writes, because it cannot flush or
	// compact fast enough, before the broker rejects sends. The throttle ends when writes continue.
	// Negative means no limit. Default: 1 s.
	MaxWriteStall Duration `json:"max_write_stall,omitempty"`

	// MaxColdReads is the number of bytes of bodies a second that groups more than ColdDistance
	// behind can read from a topic before the broker rejects sends to that topic. The throttle ends
	// when these groups are at ResumePercent of ColdDistance, or read ResumePercent of this rate
	// (RocketMQ: sending retry and throttling: a group that consumes from an earlier moment makes
	// "the storage pressure on the queue" surge). Zero means no limit.
	MaxColdReads int64 `json:"max_cold_reads_bytes_per_second,omitempty"`

	// ColdDistance is the number of bytes of bodies from which a group counts as far behind. Below
	// it, reads are served from memory of the broker or of the operating system. Default: 64 MiB.
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
	errs := []error{AtMost(field+".max_write_stall", p.MaxWriteStall)}
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
