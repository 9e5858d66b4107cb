package consume

import "container/heap"

// A dueHeap has the lease that is due first in front.
type dueHeap []*Lease

var _ heap.Interface = (*dueHeap)(nil)

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].Due.Before(h[j].Due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dueIndex, h[j].dueIndex = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	l := x.(*Lease)
	l.dueIndex = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.dueIndex = -1
	return l
}

// An offsetHeap has the lease with the lowest offset in front.
type offsetHeap []*Lease

var _ heap.Interface = (*offsetHeap)(nil)

func (h offsetHeap) Len() int           { return len(h) }
func (h offsetHeap) Less(i, j int) bool { return h[i].offset < h[j].offset }
func (h offsetHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *offsetHeap) Push(x any) { *h = append(*h, x.(*Lease)) }

// Pop implements heap.Interface.
func (h *offsetHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
