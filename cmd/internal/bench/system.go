package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// System describes the machine of the client. Facts that the platform does not show are left out.
func System() map[string]string {
	s := map[string]string{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		"cpus": fmt.Sprint(runtime.NumCPU()), "gomaxprocs": fmt.Sprint(runtime.GOMAXPROCS(0)),
	}
	for name, fact := range map[string]struct{ file, line string }{
		"cpu": {"/proc/cpuinfo", "model name"}, "kernel": {"/proc/sys/kernel/osrelease", ""}, "load": {"/proc/loadavg", ""},
	} {
		text, err := os.ReadFile(fact.file)
		if err != nil {
			continue // not Linux
		}
		if value := factOf(string(text), fact.line); value != "" {
			s[name] = value
		}
	}
	return s
}

// factOf returns the value of "name: value" in a text, or without a name its first line.
func factOf(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch {
		case name == "":
			return strings.TrimSpace(line)
		case strings.TrimSpace(key) == name:
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Busy returns a warning if the machine had more work at the start than it has processors; empty
// otherwise.
func Busy(system map[string]string) string {
	first, _, _ := strings.Cut(system["load"], " ")
	load, err := strconv.ParseFloat(first, 64)
	cpus, cerr := strconv.Atoi(system["cpus"])
	if err != nil || cerr != nil || load <= float64(cpus) {
		return ""
	}
	return fmt.Sprintf("the machine was busy at the start: load %s on %d processors", first, cpus)
}
