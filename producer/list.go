package producer

// A list is a doubly linked list whose links are fields of its elements, so
// that an element joins without an allocation and leaves from any place at once.
type list[T any] struct {
	first, last *link[T]
	n           int
}

// A link is the place of one element. It is in one list at most.
type link[T any] struct {
	in         *list[T]
	prev, next *link[T]
	value      T
}

func (l *list[T]) pushBack(e *link[T]) {
	e.in, e.prev, e.next = l, l.last, nil
	if l.last != nil {
		l.last.next = e
	} else {
		l.first = e
	}
	l.last = e
	l.n++
}

func (l *list[T]) pushFront(e *link[T]) {
	e.in, e.prev, e.next = l, nil, l.first
	if l.first != nil {
		l.first.prev = e
	} else {
		l.last = e
	}
	l.first = e
	l.n++
}

// leave takes the element out of its list, if it is in one.
func (e *link[T]) leave() {
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

// all yields the elements. The one that was yielded may leave meanwhile.
func (l *list[T]) all(yield func(T) bool) {
	for e := l.first; e != nil; {
		next := e.next
		if !yield(e.value) {
			return
		}
		e = next
	}
}
