package plan

// A List is an ordered list of elements. The zero value is an empty list.
type List[T any] struct {
	first, last *Link[T]
	n           int
}

// A Link is the place of one element. It is in one list at most.
type Link[T any] struct {
	Value T // the element

	in         *List[T]
	prev, next *Link[T]
}

// Len returns the number of elements.
func (l *List[T]) Len() int { return l.n }

// First returns the first element, and the zero value of an empty list.
func (l *List[T]) First() (first T) {
	if l.first != nil {
		first = l.first.Value
	}
	return first
}

// PushBack puts e, which is in no list, at the end.
func (l *List[T]) PushBack(e *Link[T]) {
	e.in, e.prev, e.next = l, l.last, nil
	if l.last != nil {
		l.last.next = e
	} else {
		l.first = e
	}
	l.last = e
	l.n++
}

// PushFront puts e, which is in no list, at the front.
func (l *List[T]) PushFront(e *Link[T]) {
	e.in, e.prev, e.next = l, nil, l.first
	if l.first != nil {
		l.first.prev = e
	} else {
		l.last = e
	}
	l.first = e
	l.n++
}

// Joined reports whether the element is in a list.
func (e *Link[T]) Joined() bool { return e.in != nil }

// In reports whether the element is in l.
func (e *Link[T]) In(l *List[T]) bool { return e.in == l }

// Leave takes the element out of its list, if it is in one.
func (e *Link[T]) Leave() {
	l := e.in
	if l == nil {
		return
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.last = e.prev
	}
	l.n--
	e.in, e.prev, e.next = nil, nil, nil
}

// All yields the elements in order. The one that was yielded may leave meanwhile.
func (l *List[T]) All(yield func(T) bool) {
	for e := l.first; e != nil; {
		next := e.next
		if !yield(e.Value) {
			return
		}
		e = next
	}
}
