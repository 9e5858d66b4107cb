package settings

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// minAge is the smallest limit of an age.
const minAge = Duration(100 * time.Millisecond)

// Limits are the limits of the whole broker. Topics and groups have further limits.
type Limits struct {
	// MaxBacklog is the backlog limit of topics without a limit of their own. Zero means no limit.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// ClientQuota is the send rate of each client. Zero means no limit.
	ClientQuota Quota `json:"client_quota,omitzero"`

	// Pressure has the limits of the storage's state. Zero means the defaults of its fields.
	Pressure Pressure `json:"pressure,omitzero"`
}

// Validate returns an error that names every field with an invalid value, or nil.
func (l Limits) Validate() error {
	return errors.Join(l.MaxBacklog.Validate("max_backlog"), l.ClientQuota.Validate("client_quota"), l.Pressure.Validate("pressure"))
}

// A Limit bounds a backlog: the messages that a consumer group has not consumed yet, whether ready,
// in flight or waiting for a retry. The limit of a topic also counts the messages that wait for
// their delivery time. A zero field means no limit.
type Limit struct {
	Messages int64 `json:"messages,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"` // of bodies

	// Age is the maximum age of the oldest unconsumed message, at least 100 ms. The broker checks
	// the age at most ten times a second, and only while messages are sent.
	Age Duration `json:"age,omitempty"`
}

// Validate returns an error that names every field with an invalid value, or nil. The names in the
// error begin with field, the name of the setting that has the limit.
func (l Limit) Validate(field string) error {
	var errs []error
	if l.Messages < 0 || l.Bytes < 0 {
		errs = append(errs, fmt.Errorf("%s is %d messages and %d bytes; neither may be negative, 0 is no limit", field, l.Messages, l.Bytes))
	}
	if l.Age != 0 && l.Age < minAge {
		errs = append(errs, fmt.Errorf("%s.age is %v; give %v or more, or 0 for no limit", field, time.Duration(l.Age), time.Duration(minAge)))
	}
	errs = append(errs, atMost(field+".age", l.Age))
	return errors.Join(errs...)
}

// A Quota limits the send rate of one client. Zero means no limit.
type Quota struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`

	// Burst is the number of messages that a client can send at once after a pause. Default: the
	// messages of one second, at least 1.
	Burst int `json:"burst,omitempty"`
}

// Validate returns an error with the values if the quota is invalid, or nil. The error begins with
// field, the name of the setting that has the quota.
func (q Quota) Validate(field string) error {
	if !(q.MessagesPerSecond >= 0) || math.IsInf(q.MessagesPerSecond, 0) || q.Burst < 0 || q.MessagesPerSecond == 0 && q.Burst > 0 {
		return fmt.Errorf("%s is %g messages per second with a burst of %d; give a rate above 0 and a burst of 0 or more, or a rate and burst of 0 for no limit",
			field, q.MessagesPerSecond, q.Burst)
	}
	return nil
}

// A Rate bounds the send rate of a topic. A zero field means no limit.
type Rate struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`
	BytesPerSecond    float64 `json:"bytes_per_second,omitempty"` // of bodies

	// Burst is the number of messages that the topic accepts at once after a pause. The burst of
	// bytes cannot be set: it is the bytes of one second, or one message if that is larger.
	// Default: the messages of one second, at least 1.
	Burst int `json:"burst,omitempty"`
}

// Validate returns an error that names every field with an invalid value, or nil. The names in the
// error begin with field, the name of the setting that has the rate.
func (r Rate) Validate(field string) error {
	var errs []error
	for _, x := range []struct {
		name  string
		value float64
	}{{"messages_per_second", r.MessagesPerSecond}, {"bytes_per_second", r.BytesPerSecond}} {
		if !(x.value >= 0) || math.IsInf(x.value, 0) {
			errs = append(errs, fmt.Errorf("%s.%s is %g; give a number above 0, or 0 for no limit", field, x.name, x.value))
		}
	}
	if r.Burst < 0 || r.Burst > 0 && r.MessagesPerSecond == 0 {
		errs = append(errs, fmt.Errorf("%s.burst is %d; it must not be negative, and needs messages_per_second", field, r.Burst))
	}
	return errors.Join(errs...)
}

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

// WithDefaults returns p with the default of every zero field except MinFreeDisk, whose default
// depends on the disk.
func (p Pressure) WithDefaults() Pressure {
	p.MaxCompactionDebt = cmp.Or(p.MaxCompactionDebt, 64<<30)
	p.MaxWriteStall = cmp.Or(p.MaxWriteStall, Duration(time.Second))
	p.ColdDistance = cmp.Or(p.ColdDistance, 64<<20)
	return p
}

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
