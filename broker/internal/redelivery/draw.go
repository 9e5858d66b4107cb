package redelivery

// A Draw is the random part of redelivery-collision-avoidance-factor (Apache ActiveMQ Artemis):
// "either positive or negative at random", and "a random number between 0.0 and 1.0". The zero
// value means no random part.
type Draw struct {
	Negative bool
	Number   float64 // from 0, below 1
}

// DrawFrom derives a draw from numbers that identify its purpose. Equal numbers give equal draws in
// every process, so a draw need not be stored for a restart.
func DrawFrom(first uint64, more ...uint64) Draw {
	x := first
	for _, v := range more {
		x = mix(x + 0x9e3779b97f4a7c15 + v)
	}
	return Draw{Negative: x&1 == 1, Number: float64(x>>11) / (1 << 53)}
}

// mix spreads the bits of x over the result (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
