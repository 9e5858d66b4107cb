package store

// DiskFull returns the state of the disk if it is full, and nil otherwise. While it is full,
// callers should reject writes that can wait, so that the remaining space is available for the
// progress of groups. The state ends when space is free again.
func (s *Store) DiskFull() *DiskFull {
	if s.room == nil {
		return nil
	}
	return s.room.Full()
}

// StopWaiting ends all waits for space on a full disk, for example before Close. A write that finds
// neither space nor the ballast then breaks the store and returns the error.
func (s *Store) StopWaiting() {
	if s.room != nil {
		s.room.StopWaiting()
	}
}
