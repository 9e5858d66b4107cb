package plan

// dueUnits is a heap of units by the due time of their first message.
type dueUnits []*unit

func (h dueUnits) Len() int { return len(h) }
func (h dueUnits) Less(i, j int) bool {
	return h[i].items.First().Due.Before(h[j].items.First().Due)
}
func (h dueUnits) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

// Push implements heap.Interface.
func (h *dueUnits) Push(x any) {
	u := x.(*unit)
	u.heapAt = len(*h)
	*h = append(*h, u)
}

// Pop implements heap.Interface.
func (h *dueUnits) Pop() any {
	old := *h
	u := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	u.heapAt = -1
	return u
}
