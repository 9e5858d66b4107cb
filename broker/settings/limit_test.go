package settings

import (
	"math"
	"strings"
	"testing"
)

func TestRateIsChecked(t *testing.T) {
	t.Parallel()
	err := Topic{MaxRate: Rate{MessagesPerSecond: -1, BytesPerSecond: math.NaN(), Burst: -1}}.Validate()
	for _, w := range []string{"max_rate.messages_per_second is -1", "max_rate.bytes_per_second is NaN", "max_rate.burst is -1"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}

func TestPressureIsChecked(t *testing.T) {
	t.Parallel()
	err := Limits{Pressure: Pressure{MinFreeDisk: -2, MaxCompactionDebt: -2, MaxColdReads: -1, ColdDistance: -1}}.Validate()
	for _, w := range []string{"min_free_disk_bytes is -2", "max_compaction_debt_bytes is -2", "max_cold_reads_bytes_per_second is -1", "cold_distance_bytes is -1"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}
