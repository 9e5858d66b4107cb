package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// limitDiskFull is the limit of a disk without room, beyond limitFreeDisk: its
// value is the bytes that are missing.
const limitDiskFull = "disk full"

// diskFullPushBack is what producers are told while the disk is full, since
// nobody knows when there will be room.
const diskFullPushBack = 5 * time.Second

func diskFull(full *store.DiskFull) *Throttle {
	return &Throttle{Limit: limitDiskFull, Unit: unitBytes, Value: full.Missing, Mark: 1, Since: full.Since, RetryAfter: Duration(diskFullPushBack)}
}
