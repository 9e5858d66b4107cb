//go:build race

package consume

const raceEnabled = true
