package flow

// Lanes hold the messages that wait for a handler: new messages in one lane, retries in the other.
// In each lane the topics take turns. The zero value is empty.
type Lanes[T any] struct {
	fresh, retried lane[T]
	popped         int
}

// Len returns the number of messages.
func (l *Lanes[T]) Len() int { return l.fresh.n + l.retried.n }

// Push adds a message of a topic, which is numbered from 0.
func (l *Lanes[T]) Push(topic int, retried bool, x T) {
	if retried {
		l.retried.push(topic, x)
	} else {
		l.fresh.push(topic, x)
	}
}

// Pop removes the message to handle next; false if there is none. While both lanes have messages,
// new messages have three turns of four, so that neither lane starves. With preferFresh they have
// all turns.
func (l *Lanes[T]) Pop(preferFresh bool) (x T, ok bool) {
	if l.Len() == 0 {
		return x, false
	}
	from := &l.fresh
	if l.fresh.n == 0 || !preferFresh && l.retried.n > 0 && l.popped%4 == 3 {
		from = &l.retried
	}
	l.popped++
	return from.pop(), true
}

// A lane gives each topic with messages one turn after the other.
type lane[T any] struct {
	topics []queue[T]
	order  queue[int] // the topics with messages
	n      int
}

func (l *lane[T]) push(topic int, x T) {
	for topic >= len(l.topics) {
		l.topics = append(l.topics, queue[T]{})
	}
	q := &l.topics[topic]
	if q.len() == 0 {
		l.order.push(topic)
	}
	q.push(x)
	l.n++
}

func (l *lane[T]) pop() T {
	topic := l.order.pop()
	q := &l.topics[topic]
	x := q.pop()
	if q.len() > 0 {
		l.order.push(topic)
	}
	l.n--
	return x
}

// A queue is first in, first out.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(x T) {
	if q.head > 0 && len(q.items) == cap(q.items) && q.head >= len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, x)
}

func (q *queue[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return x
}
