package plan

import "time"

// dueUnits is a heap of units by the time at which they can be sent.
type dueUnits[T Sharer, C any] []*unit[T, C]

func (h dueUnits[T, C]) Len() int { return len(h) }
func (h dueUnits[T, C]) Less(i, j int) bool {
	return h[i].at().Before(h[j].at())
}
func (h dueUnits[T, C]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

// at returns when a waiting unit can be sent: when its first message is due or, if a lane holds the
// unit, at the end of the requested wait.
func (u *unit[T, C]) at() time.Time {
	it := u.items.First()
	if it.By != nil && u.place.In(it.By.holding(u)) {
		return it.Until
	}
	return it.Due
}

// Push implements heap.Interface.
func (h *dueUnits[T, C]) Push(x any) {
	u := x.(*unit[T, C])
	u.heapAt = len(*h)
	*h = append(*h, u)
}

// Pop implements heap.Interface.
func (h *dueUnits[T, C]) Pop() any {
	old := *h
	u := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	u.heapAt = -1
	return u
}
