//go:build race

package serve

// raceDetector is whether the race detector is on, which multiplies the memory of a process.
const raceDetector = true
