//go:build !linux

package main

import "time"

// maxMemory is not measured on this system.
func maxMemory(int) int64 { return 0 }

// processorTime is not known on this platform.
func processorTime() time.Duration { return 0 }
