package topic

import "github.com/tidegate/tidegate/broker/internal/store"

// Appended returns the end of a queue, including messages on their way to the disk. It waits for
// the lock of the message log.
func (q *Queue) Appended(st *store.Store) (end store.Mark) {
	st.Messages.Add(func(*store.Batch) { end = q.Next() }, nil)
	return end
}

// BytesBefore reads the size of all bodies before an offset of a queue. If no message from the
// offset on is stored, it is the size of all bodies that the queue ever had.
func (t *Topic) BytesBefore(st *store.Store, q *Queue, offset int64) (int64, error) {
	if low := q.Low(); low.Offset == offset {
		return low.Bytes, nil
	}
	bytes, ok, err := st.BytesBefore(t.ID(), q.Number(), offset)
	if ok || err != nil {
		return bytes, err
	}
	var all int64
	if err := st.Messages.Add(func(*store.Batch) { all = q.Next().Bytes }, nil).Wait(); err != nil {
		return 0, err
	}
	// The message at the offset may have been on its way to the disk.
	if bytes, ok, err = st.BytesBefore(t.ID(), q.Number(), offset); ok || err != nil {
		return bytes, err
	}
	return all, nil
}
