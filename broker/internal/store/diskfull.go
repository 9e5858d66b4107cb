package store

// DiskFull returns nil, or what is known of the disk if it is full: what can
// wait should be refused, so that what is left is there for the groups'
// progress. It ends by itself when there is room again.
func (s *Store) DiskFull() *DiskFull {
	if s.room == nil {
		return nil
	}
	return s.room.Full()
}

// StopWaiting has nothing wait for room on a full disk any more, as before Close: a write that
// finds none, the ballast included, be it of a log or of a table, breaks the store, and who waits
// for it is told.
func (s *Store) StopWaiting() {
	if s.room != nil {
		s.room.StopWaiting()
	}
}
