package bench

import (
	"runtime"
	"time"
)

// A Client is the usage of the benchmark's process in a round.
type Client struct {
	CPU     float64 `json:"cpu_s"`       // processor time in seconds; 0 where the platform does not show it
	GCs     uint32  `json:"gcs"`         // garbage collections
	GCPause float64 `json:"gc_pause_us"` // in which all goroutines stood
	Took    float64 `json:"took_s"`
}

// A used is the usage of the process since its start.
type used struct {
	at    time.Time
	cpu   time.Duration
	gcs   uint32
	pause uint64
}

func usage() used {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{time.Now(), processorTime(), m.NumGC, m.PauseTotalNs}
}

func (u used) since(before used) Client {
	return Client{
		CPU: (u.cpu - before.cpu).Seconds(), GCs: u.gcs - before.gcs,
		GCPause: float64(u.pause-before.pause) / 1e3, Took: u.at.Sub(before.at).Seconds(),
	}
}
