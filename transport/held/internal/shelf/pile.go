package shelf

import "container/heap"

// A pile is a heap whose elements know their place in it, so that they can be moved and removed.
type pile[T any] struct{ heap order[T] }

type order[T any] struct {
	list  []T
	less  func(a, b T) bool
	place func(T) *int // from 1; 0 if the element is not in the pile
}

func newPile[T any](less func(a, b T) bool, place func(T) *int) pile[T] {
	return pile[T]{order[T]{less: less, place: place}}
}

func (p *pile[T]) len() int { return len(p.heap.list) }

// first returns the smallest element of a pile that is not empty.
func (p *pile[T]) first() T { return p.heap.list[0] }

// put adds x, or moves it after its order has changed.
func (p *pile[T]) put(x T) {
	if n := *p.heap.place(x); n > 0 {
		heap.Fix(&p.heap, n-1)
		return
	}
	heap.Push(&p.heap, x)
}

// remove removes x if it is there.
func (p *pile[T]) remove(x T) {
	if n := *p.heap.place(x); n > 0 {
		heap.Remove(&p.heap, n-1)
	}
}

// Len is part of heap.Interface.
func (o *order[T]) Len() int { return len(o.list) }

// Less is part of heap.Interface.
func (o *order[T]) Less(i, j int) bool { return o.less(o.list[i], o.list[j]) }

// Swap is part of heap.Interface.
func (o *order[T]) Swap(i, j int) {
	o.list[i], o.list[j] = o.list[j], o.list[i]
	*o.place(o.list[i]), *o.place(o.list[j]) = i+1, j+1
}

// Push is part of heap.Interface.
func (o *order[T]) Push(x any) {
	o.list = append(o.list, x.(T))
	*o.place(x.(T)) = len(o.list)
}

// Pop is part of heap.Interface.
func (o *order[T]) Pop() any {
	var none T
	n := len(o.list) - 1
	x := o.list[n]
	o.list[n] = none
	o.list = o.list[:n]
	*o.place(x) = 0
	return x
}
