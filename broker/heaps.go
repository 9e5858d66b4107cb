package broker

import "container/heap"

// A leaseHeap has the lease that is due first in front.
type leaseHeap []*lease

var _ heap.Interface = (*leaseHeap)(nil)

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].Due.Before(h[j].Due) }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer, h[j].timer = i, j
}

// Push implements heap.Interface.
func (h *leaseHeap) Push(x any) {
	l := x.(*lease)
	l.timer = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *leaseHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.timer = -1
	return l
}

// An offsetHeap has the lease with the lowest offset in front.
type offsetHeap []*lease

var _ heap.Interface = (*offsetHeap)(nil)

func (h offsetHeap) Len() int           { return len(h) }
func (h offsetHeap) Less(i, j int) bool { return h[i].offset < h[j].offset }
func (h offsetHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *offsetHeap) Push(x any) { *h = append(*h, x.(*lease)) }

// Pop implements heap.Interface.
func (h *offsetHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
